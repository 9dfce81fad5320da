"""The canaries of `canaries_on_gpu.py` on a CPU: a good program passes, writes beside or short of a result do not."""

from __future__ import annotations

import ctypes
from typing import Any

import canaries_on_gpu
import jax
import numpy as np
import pytest


def test_a_case_passes_on_a_cpu() -> None:
    count = dict.fromkeys(canaries_on_gpu.COUNTS, 0)
    canaries_on_gpu.check(1, *canaries_on_gpu.steps(1), count)
    assert count["in place"] == count["results"] >= 4 * 20
    assert count["pairs"] > 0


def test_a_canary_that_is_written_is_told() -> None:
    cage = canaries_on_gpu.Cage(0xFF)
    cage.put(np.ones((3, 5), np.float32))
    cage.check("nothing was written")
    ctypes.memset(cage.canaries[1].unsafe_buffer_pointer() + 12, 0, 1)
    with pytest.raises(AssertionError, match=r"a kernel: a canary of \(3, 5\) was written"):
        cage.check("a kernel")


def test_a_result_that_is_not_written_is_told() -> None:
    """As of a kernel that leaves what was in the memory of its result."""
    seen: list[int] = []

    def forgets(operands: Any) -> Any:
        def what_was_there(x: Any) -> Any:
            seen.append(canaries_on_gpu.FILLS[min(len(seen), 2)])
            return np.full_like(x, seen[-1])

        return jax.pure_callback(what_was_there, jax.ShapeDtypeStruct((4,), np.float32), operands)

    with pytest.raises(AssertionError, match="seed 7, fill 7f"):
        canaries_on_gpu.check(7, forgets, np.ones(4, np.float32), dict.fromkeys(canaries_on_gpu.COUNTS, 0))
