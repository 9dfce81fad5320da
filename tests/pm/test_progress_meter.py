"""Progress meters of diffrax in `nbody`."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd

METER = diffrax.TextProgressMeter()
SHOWN = ["0.00%", "50.00%", "100.00%"]


def start(pdims: tuple[int, int]) -> tuple[pmd.Particles, Any]:
    """Particles, and their displacement after two steps with options of `nbody`."""
    config = pmd.Config(box_size=16.0, mesh_shape=8, steps=2, decomposition=pmd.Decomposition(pdims))
    table = pmd.growth_table(problems.cosmology())
    noise = pmd.white_noise(jax.random.key(0), config)
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
    return particles, lambda particles, **options: pmd.nbody(particles, table, config, **options).particles.disp


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    jax.effects_barrier()
    return capsys.readouterr().out.split()


@pytest.mark.parametrize("pdims", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_each_step_is_shown_once_inside_jit_and_in_gradients(
    pdims: tuple[int, int], capsys: pytest.CaptureFixture[str]
):
    particles, evolve = start(pdims)
    disp = jax.block_until_ready(evolve(particles, progress_meter=METER))
    assert shown(capsys) == SHOWN
    np.testing.assert_array_equal(disp, evolve(particles))

    def total(particles: pmd.Particles, meter: Any) -> jax.Array:
        return (evolve(particles, progress_meter=meter) ** 2).sum()

    gradient = jax.jit(jax.value_and_grad(total), static_argnums=1)
    _, by_particles = jax.block_until_ready(gradient(particles, METER))
    assert shown(capsys) == SHOWN
    np.testing.assert_array_equal(by_particles.disp, gradient(particles, None)[1].disp)


def test_without_a_meter_the_program_is_the_same():
    particles, evolve = start((1, 1))
    programs = [
        jax.jit(lambda x, options=options: evolve(x, **options)).lower(particles).as_text()
        for options in ({}, {"progress_meter": diffrax.NoProgressMeter()}, {"progress_meter": METER})
    ]
    assert programs[0] == programs[1]
    assert "callback" not in programs[0]
    assert "callback" in programs[2]


def test_other_solvers_show_their_progress(capsys: pytest.CaptureFixture[str]):
    particles, evolve = start((1, 1))
    jax.block_until_ready(evolve(particles, solver=diffrax.Heun(), progress_meter=METER))
    assert shown(capsys)[::2] == ["0.00%", "100.00%"]


def test_what_is_no_meter():
    particles, evolve = start((1, 1))
    with pytest.raises(ValueError, match=r"progress_meter=True must be a progress meter; use diffrax\.Tqdm"):
        evolve(particles, progress_meter=True)
