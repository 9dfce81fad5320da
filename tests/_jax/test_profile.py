"""Seconds of a program by part."""

from __future__ import annotations

import json
import threading
import time
from time import perf_counter, sleep

import jax
import jax.numpy as jnp
import pytest

from pmwd_dist._jax.profile import part, recording


def test_compilation_is_told_from_work():
    """Of a function within another too, whose tracing lies within that of the other and counts once."""

    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return jnp.sin(x) + 1

    @jax.jit
    def outer(x: jax.Array) -> jax.Array:
        return inner(inner(x) * 2)

    x = jnp.ones(7)
    with recording(0.0) as profile:
        began = perf_counter()
        outer(x)
        assert 0 < (first := profile.compilation) <= perf_counter() - began
        outer(x)
        assert profile.compilation == first
    jnp.cos(x * 3)
    assert profile.compilation == first


def test_parts_exclude_the_parts_within_them_and_add_up_to_the_total():
    drawn = list[float]()

    @part("output")
    def output() -> None:
        sleep(0.02)
        with part("drawing"):
            began = perf_counter()
            sleep(0.03)
            drawn.append(perf_counter() - began)
        jax.jit(lambda x: jnp.sin(x) * 5)(jnp.ones(3))

    with recording(perf_counter()) as profile:
        for _ in range(2):
            output()
        other = threading.Thread(target=output)
        other.start()
        other.join()
        record = json.loads(json.dumps(profile.record()))
    seconds = record["seconds"]
    assert seconds["drawing"] == pytest.approx(drawn[0] + drawn[1], abs=0.01)
    assert seconds["drawing, beside"] == pytest.approx(drawn[2], abs=0.01)
    assert min(seconds[name] for name in ("tracing", "lowering", "compilation", "compilation, beside")) > 0
    own = [x for name, x in seconds.items() if not name.endswith(", beside")]
    assert sum(own) == pytest.approx(record["total"], abs=1e-3)
    assert 0.04 < seconds["output"] < record["total"] - seconds["compilation"] - seconds["drawing"]
    assert record["programs"] >= 3
    output()  # not recorded
    assert profile.record()["seconds"]["drawing"] == seconds["drawing"]


def test_a_clock_that_is_set_back_takes_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: -3600 * time.perf_counter())
    with recording(perf_counter()) as profile:
        with part("output"):
            jax.jit(lambda x: jnp.sin(x) * 7)(jnp.ones(3))
        record = profile.record()
    assert min(record["seconds"].values()) >= 0
    assert sum(record["seconds"].values()) == pytest.approx(record["total"], abs=1e-3)


def test_a_recording_within_another_is_the_same():
    with recording(0.0) as outer, recording(1.0) as inner:
        assert inner is outer
    with recording(0.0) as later:
        assert later is not outer
