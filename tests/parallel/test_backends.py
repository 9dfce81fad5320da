"""Communication backends as objects: what a decomposition asks of one, and a backend of one's own."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist.parallel.backends import BACKENDS, Backend
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.defaults import BackendName

SHAPE = (8, 12, 10)
OPERATIONS = ("rfft", "irfft", "fft", "ifft", "halo_pad", "halo_reduce")


@dataclass(frozen=True)
class Recording(Backend):
    """XLA's collectives, and a record of what was asked for."""

    name: ClassVar[str] = "recording"
    calls: list[str] = field(default_factory=list, compare=False)

    def unavailable_reason(self, division: Any) -> None:
        return None

    def open(self, division: Any, shapes: Any, *, halo: int = 0) -> None:
        self.calls.append(f"open {list(shapes)} {halo}")

    def close(self) -> None:
        self.calls.append("close")


def recorded(operation: str) -> Any:
    def call(self: Recording, *arguments: Any) -> Any:
        self.calls.append(operation)
        return getattr(XLA(), operation)(*arguments)

    return call


for operation in OPERATIONS:
    setattr(Recording, operation, recorded(operation))
abc.update_abstractmethods(Recording)


def test_a_backend_of_ones_own_moves_all_data() -> None:
    own = pmd.Decomposition((2, 2), backend=Recording())
    x = np.random.default_rng(0).standard_normal(SHAPE)
    np.testing.assert_allclose(pmd.pirfft3d(pmd.prfft3d(x, own), SHAPE, own), x, atol=1e-13)
    np.testing.assert_allclose(pmd.pifft3d(pmd.pfft3d(x, own), own), x, atol=1e-13)
    plain = pmd.Decomposition((2, 2), backend="xla")
    padded = pmd.halo_pad(x, 2, own)
    np.testing.assert_array_equal(padded, pmd.halo_pad(x, 2, plain))
    np.testing.assert_array_equal(pmd.halo_reduce(padded, 2, own), pmd.halo_reduce(padded, 2, plain))
    assert isinstance(own.backend, Recording)
    assert set(own.backend.calls) == set(OPERATIONS)


def test_a_simulation_runs_on_a_backend_of_ones_own() -> None:
    own = pmd.Decomposition((4, 1), backend=Recording())
    config = pmd.Config(box_size=8.0, mesh_shape=8, steps=1, halo=2, decomposition=own)
    disp = 0.1 * np.random.default_rng(0).standard_normal((8, 8, 8, 3))
    mesh = pmd.cic_paint(disp, config)
    np.testing.assert_allclose(mesh.sum(), 512)
    assert isinstance(own.backend, Recording)
    assert own.backend.calls == ["halo_reduce"]


def test_the_backend_is_part_of_the_key_of_a_compiled_function() -> None:
    plain, own = pmd.Decomposition((4, 1), backend="xla"), pmd.Decomposition((4, 1), backend=Recording())
    assert plain != own
    assert own == pmd.Decomposition((4, 1), backend=Recording())
    assert len({plain, own, pmd.Decomposition((4, 1), backend="xla")}) == 2
    assert pmd.Decomposition((2, 2)) != pmd.Decomposition((4, 1))


def test_opened_closes_after_success_only() -> None:
    own = pmd.Decomposition((4, 1), backend=Recording())
    with own.opened([SHAPE], halo=3):
        pass
    with pytest.raises(RuntimeError, match="failed"), own.opened([SHAPE]):  # other processes may not have failed
        raise RuntimeError("failed")
    assert isinstance(own.backend, Recording)
    assert own.backend.calls == [f"open {[SHAPE]} 3", "close", f"open {[SHAPE]} 0"]


def test_every_backend_has_a_name_that_can_be_asked_for() -> None:
    assert {"auto", *(kind.name for kind in BACKENDS)} == set(get_args(BackendName))
    for kind in BACKENDS:
        backend = kind.create({})
        assert kind.create(backend.options) == backend
        assert tuple(backend.options) == kind.option_names
        assert not backend.is_open
