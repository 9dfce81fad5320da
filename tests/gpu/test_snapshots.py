"""The checks of `snapshots_on_gpu.py` on CPUs."""

from __future__ import annotations

import pytest
import snapshots_on_gpu

from pmwd_dist.io.snapshot.writer import Format


@pytest.mark.parametrize("kind", ["gadget", "swift"])
def test_few_chunks_are_on_the_host(kind: Format):
    snapshots_on_gpu.check_chunks((64, 128, 128), kind)


def test_after_an_error_a_snapshot_can_be_written_again():
    snapshots_on_gpu.check_error((64, 64, 128))
