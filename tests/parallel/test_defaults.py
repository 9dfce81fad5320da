"""Names and defaults of communication backends."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.config import update
from pmwd_dist.parallel import defaults
from pmwd_dist.parallel.decomposition import default_decomposition


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No default of the environment or of another test."""
    monkeypatch.setattr(defaults, "_set", {})
    for name in ("BACKEND", "TRANSPOSE_COMM_BACKEND", "HALO_COMM_BACKEND"):
        monkeypatch.delenv(f"PMWD_{name}", raising=False)


def comms(decomposition: pmd.Decomposition) -> tuple[str, ...]:
    """Communication backends of transposes and halos, of cuDecomp alone."""
    return tuple(decomposition.backend.options.values())


def test_arguments_beat_calls_and_calls_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(pmd.Decomposition, (1, 1), backend="cudecomp")
    assert comms(make()) == ("nccl", "nccl")
    monkeypatch.setenv("PMWD_TRANSPOSE_COMM_BACKEND", "NVSHMEM_PL")
    monkeypatch.setenv("PMWD_HALO_COMM_BACKEND", "mpi")
    assert comms(make()) == ("nvshmem_pl", "mpi")
    update("transpose_comm_backend", "NCCL_PL")
    update("halo_comm_backend", "nvshmem")
    assert comms(make()) == ("nccl_pl", "nvshmem")
    chosen = make(transpose_comm="mpi_a2a", halo_comm="mpi_blocking")
    assert comms(chosen) == ("mpi_a2a", "mpi_blocking")


def test_the_default_backend_may_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pmd.Decomposition((1, 1)).backend.name == "xla"
    monkeypatch.setenv("PMWD_BACKEND", "cudecomp")
    assert pmd.Decomposition((1, 1)).backend.name == "cudecomp"
    assert comms(pmd.Decomposition((1, 1), backend="xla")) == ()
    update("backend", "xla")
    assert pmd.Decomposition((1, 1)) == pmd.Decomposition((1, 1), backend="xla")


def test_a_change_never_meets_an_older_program() -> None:
    traces = []

    @partial(jax.jit, static_argnames="decomposition")
    def run(x: jax.Array, decomposition: pmd.Decomposition) -> jax.Array:
        traces.append(decomposition)
        return pmd.prfft3d(x, decomposition)

    x = np.ones((4, 4, 4))
    for value in ("nccl", "nccl_pl", "nccl"):
        update("transpose_comm_backend", value)
        run(x, pmd.Decomposition((1, 1), backend="cudecomp"))  # one device has nothing to move
    assert [comms(decomposition)[0] for decomposition in traces] == ["nccl", "nccl_pl"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transpose_backend", "nccl", "name='transpose_backend' is not known; use one of backend, transpose_comm"),
        (
            "transpose_comm_backend",
            "mpi",
            "transpose_comm_backend='mpi' is not known; use one of mpi_p2p, .*nvshmem_sm",
        ),
        ("halo_comm_backend", "nccl_pl", "halo_comm_backend='nccl_pl' is not known; use one of mpi, .*blocking"),
        ("backend", "nccl", "backend='nccl' is not known; use one of auto, xla, peer, cudecomp"),
    ],
)
def test_unknown_names_and_values(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=message):
        update(name, value)
    if name != "transpose_backend":
        monkeypatch.setenv(f"PMWD_{name.upper()}", value)
        with pytest.raises(ValueError, match=f"PMWD_{name.upper()}='{value}' is not known"):
            defaults.default(name)
        if name == "backend":
            with pytest.raises(ValueError, match=f"PMWD_BACKEND='{value}' is not known"):
                default_decomposition([(8, 8, 8)])
        argument = name.removesuffix("_backend")
        with pytest.raises(ValueError, match=f"{argument}='{value}' is not known"):
            pmd.Decomposition((1, 1), **{"backend": "cudecomp", argument: value})  # type: ignore[arg-type]
