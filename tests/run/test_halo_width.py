"""The width of the halo of a run: chosen from its first displacements, widened when these grow beyond it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import Events, make, particles

from pmwd_dist.run.common.job import execute
from pmwd_dist.run.simulation import halo_width, job

# Slabs of 4 cells of 3 Mpc/h, through which particles move by up to 14 Mpc/h.
THIN = ("devices.pdims=[4, 1]", "box.size=48", "box.mesh=16", "output.slice_thickness=0", "output.redshifts=0")


@pytest.mark.slow
def test_widened_halos_give_the_bits_of_all_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(halo_width, "MARGIN", 0.3)
    narrow, events = make(tmp_path / "narrow", *THIN), Events()
    execute(narrow, events)
    chosen, steps = events.of("halo"), events.of("step")
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert len(chosen) > 1
    assert [choice.cells for choice in chosen] == sorted({choice.cells for choice in chosen})
    assert chosen[0].cells < steps[-1].displacement_cells <= chosen[-1].cells

    monkeypatch.setattr(job, "is_automatic", lambda config: False)
    whole, events = make(tmp_path / "whole", *THIN), Events()
    execute(whole, events)
    assert not events.of("halo")
    for name, values in particles(narrow.folder).items():
        np.testing.assert_array_equal(values, particles(whole.folder)[name])
    assert (narrow.folder / "power_z0.000.csv").read_text() == (whole.folder / "power_z0.000.csv").read_text()


def test_width_holds_displacements_and_a_lattice_spacing(tmp_path: Path):
    config = make(tmp_path / "run", *THIN).simulation.config
    assert halo_width.is_automatic(config)
    assert [halo_width.halo_width(displacement, config) for displacement in (0.1, 12.0, 60.0, np.nan)] == [2, 5, 16, 16]
