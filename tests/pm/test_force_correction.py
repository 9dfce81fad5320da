"""Factors of the potential: the trainable correction of the force, tables, failures and costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from simulations import COSMO, configure, initial

import pmwd_dist as pmd
from pmwd_dist.pm import potential_factor
from pmwd_dist.pm.status import Code

SPACING = 2.0
NYQUIST = np.pi / SPACING


def correction() -> pmd.ForceCorrection:
    return pmd.ForceCorrection(SPACING, np.random.default_rng(0).uniform(0, 1, (9, 5)))


def at(x: Any, sigma8: float) -> Any:
    """f at wavenumbers over the Nyquist frequency."""
    return np.log(correction()(jnp.asarray(x) * NYQUIST, jnp.asarray(sigma8)))


def test_the_correction_is_the_spline_of_its_formula() -> None:
    x = np.array([0.05, 0.3, 0.99, 1.7])

    def spline(centres: Any, at: float) -> Any:
        from scipy.interpolate import BSpline

        h = centres[1] - centres[0]
        basis = [BSpline.basis_element(c + h * np.arange(-2, 3), extrapolate=False)(at) for c in centres]
        return np.nan_to_num(np.array(basis))

    expected = [spline(0.2 * np.arange(2, 11), xi) @ np.asarray(correction().coefficients) for xi in x]
    for s in (0.1, 0.7, 1.0):
        np.testing.assert_allclose(at(x, s), expected @ spline(0.5 * np.arange(-1, 4), s), atol=1e-12)
    np.testing.assert_array_equal(at(x, 1.5), at(x, 1.0))
    np.testing.assert_allclose(at([1e-3], 0.5) / at([5e-4], 0.5), 8, rtol=1e-6)  # as k^3
    assert (np.asarray(pmd.ForceCorrection(SPACING)(jnp.asarray(x), jnp.asarray(0.5))) == 1).all()


def test_a_file_holds_every_bit_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "force.json"
    values: Any = {"cells": 2, "steps": (10, 40), "error": (0.5, 1.5), "start": (0.1, 3)}
    values["cosmologies"] = (("sigma8", 0.7, 0.9), ("w0", -1.1, -0.9))
    cosmologies = {name: ends for name, *ends in values["cosmologies"]}
    pmd.ForceCorrection(SPACING, correction().coefficients, **(values | {"cosmologies": cosmologies})).save(
        path, seeds=[1, 2], loss=0.1
    )
    again = pmd.ForceCorrection.load(path)
    assert (again.spacing, {name: getattr(again, name) for name in values}) == (SPACING, values)
    np.testing.assert_array_equal(again.coefficients, correction().coefficients)
    content = json.loads(path.read_text())
    assert content["provenance"] == {"seeds": [1, 2], "loss": 0.1}
    for change in (
        {"spacing": -1},
        {"spacing": "two"},
        {"coefficients": [[1]]},
        {"coefficients": [["x"] * 5] * 9},
        {"steps": [0, 9]},
        {"spacing": 10**400},
        {"coefficients": [[10**400] * 5] * 9},
        {"cells": 10**400},
        {"cells": True},
        {"steps": []},
        {"steps": [10, 20, 30]},
        {"error": {}},
        {"error": [True, 1]},
        {"error": 0.5},
        {"start": [0.1]},
        {"steps": [30, 10]},
        {"cosmologies": {"sigma8": [1]}},
        {"cosmologies": {"sigma8": [1, None]}},
        {"cosmologies": {"x": [1, 2]}},
        {"cosmologies": {"sigma8": [1, 0.9]}},
        {"cosmologies": [1]},
        {"spacing": None},
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=r"is not a file of ForceCorrection.save"):
            pmd.ForceCorrection.load(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"is not a file of ForceCorrection.save"):
        pmd.ForceCorrection.load(path)
    with pytest.raises(ValueError, match=r"coefficients=\(2,\) must have the shape \(9, 5\)"):
        pmd.ForceCorrection(SPACING, [1.0, 2.0])


@pytest.mark.parametrize(("spacing", "cells"), [(2, 2), (4, 1), (4, 2)])
def test_the_package_has_corrections(spacing: float, cells: int) -> None:
    def config(spacing: float = spacing, **options: Any) -> pmd.Config:
        return pmd.Config(8.0 * spacing, 8 * cells, 8, **({"steps": 20, "lpt_order": 3} | options))

    found = pmd.ForceCorrection.auto(config(1.09 * spacing))
    assert (found.spacing, found.cells) == (spacing, cells)
    assert found.error is not None
    k = jnp.linspace(0.01, 1, 50) * np.pi / spacing * cells
    for sigma8 in (0.1, 0.5, 1.0):
        assert (jnp.abs(jnp.log(found(k, jnp.asarray(sigma8)))) < 2).all()
    near = f"the nearest one is for particles {spacing} Mpc/h apart, {cells} cells? a particle"
    for other in (config(1.2 * spacing), config(steps=45), config(a_start=0.2), config(lpt_order=1)):
        with pytest.raises(ValueError, match=near):
            pmd.ForceCorrection.auto(other)
    with pytest.warns(UserWarning, match=r"sigma8 = 1.2 is outside of .* to .*, the training"):
        pmd.ForceCorrection.auto(config(), problems.cosmology(sigma8=1.2))
    jax.jit(lambda x: pmd.ForceCorrection.auto(config(), pmd.growth_table(problems.cosmology(Omega_c=x))))(0.26)
    with pytest.raises(ValueError, match=r"config is a \w+ and must be a pmwd_dist.Config"):
        pmd.ForceCorrection.auto(problems.cosmology())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for finite differences"):
        pmd.ForceCorrection.auto(config(gradient="spectral"))
    flat = pmd.Config((8.0 * spacing, 8.0 * spacing, 4.0 * spacing), 8 * cells, 8, steps=20, lpt_order=3)
    with pytest.raises(ValueError, match="none was trained"):
        pmd.ForceCorrection.auto(flat)


@pytest.mark.parametrize("decomposition", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)], indirect=True)
def test_the_cosmology_moves_the_factor(decomposition: pmd.Decomposition) -> None:
    config = configure(decomposition, box_size=16.0, steps=2, a_start=0.2)
    particles = initial(config)

    @jax.jit
    def loss(sigma8: Any) -> Any:
        table = pmd.growth_table(problems.cosmology(sigma8=sigma8))
        return jnp.mean(pmd.nbody(particles, table, config, potential_factor=correction()).particles.disp ** 2)

    sigma8, step = jnp.asarray(0.6), 1e-4
    expected = (loss(sigma8 + step) - loss(sigma8 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(loss)(sigma8), expected, rtol=1e-5)
    assert abs(expected) > 1e-3 * loss(sigma8)


# --- factors of the potential: table, failures, cost; other tests have one in their forces -----------------------


def wave(config: pmd.Config) -> pmd.Particles:
    x = jnp.arange(config.mesh_shape[0]) * 2 * jnp.pi / config.mesh_shape[0]
    disp = jnp.broadcast_to(jnp.sin(x)[:, None, None, None], (*config.particle_shape, 3))
    return pmd.Particles(disp, disp)


@pytest.mark.parametrize("k_scale", [0.02, 0.3, 2.0])
def test_smooth_factors_are_interpolated_to_1e_4(k_scale: float, single: pmd.Decomposition) -> None:
    config = configure(single, box_size=200.0, mesh_shape=64)

    def factor(k: Any, a: Any) -> Any:
        return 1 + 0.2 * a * k**2 / (k_scale**2 + k**2)

    def block() -> jax.Array:
        return potential_factor.on_modes(potential_factor.tabulate(factor, jnp.asarray(0.5), config), config)

    found = single.shard_map(block, (), single.spectrum_spec)()
    k = np.sqrt(sum(np.asarray(x) ** 2 for x in pmd.fftfreq3d(config.mesh_shape, single, config.box_size)))
    np.testing.assert_allclose(found.ravel()[1:], factor(k, 0.5).ravel()[1:], rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:the simulation failed")
@pytest.mark.parametrize(("bad", "steps"), [(0.0, 2), (jnp.nan, 2), (1.0, 4)])
def test_a_factor_that_is_not_positive_fails_the_step(bad: Any, steps: int) -> None:
    config, factor = configure(), lambda k, a: jnp.where((a < 0.5) | (k < 0.6), 1, bad)
    status = pmd.nbody(wave(config), COSMO, config, potential_factor=factor).status
    code = Code.SUCCESSFUL if steps == 4 else Code.NOT_FINITE
    assert (status.code, status.step) == (code, steps)


def test_derivatives_of_the_particles_alone_need_no_more_transforms() -> None:
    config = configure(steps=2)

    def transforms(strength: float | None, wanted: int = 0) -> int:
        def loss(particles: pmd.Particles, strength: Any) -> Any:
            factor = None if strength is None else lambda k, a: 1 + strength * a * k
            adjoint = pmd.ReversibleAdjoint(stored_potentials=0)
            run = pmd.nbody(particles, COSMO, config, potential_factor=factor, adjoint=adjoint)
            return jnp.mean(run.particles.disp**2)

        text = jax.jit(jax.grad(loss, argnums=wanted)).lower(wave(config), strength).as_text()
        return len(re.findall(r"@jaxdecomp_ops_i?rfft\(|stablehlo\.fft", text))

    without = transforms(None)
    assert transforms(0.1) == without > 0
    assert transforms(0.1, 1) > without
