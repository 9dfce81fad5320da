"""Lagrangian perturbation theory against full transforms in numpy, with its derivatives, in every layout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm.particles import resolution

SHAPE, BOX = (8, 12, 5), (10.0, 12.0, 7.0)


def configure(decomposition: pmd.Decomposition, order: int = 2) -> pmd.Config:
    return pmd.Config(box_size=BOX, mesh_shape=SHAPE, lpt_order=order, decomposition=decomposition, a_start=0.3)


def expected(delta: np.ndarray, cosmo: SimpleNamespace, order: int, a: float) -> tuple[np.ndarray, np.ndarray]:
    g = {name: values[0] for name, values in problems.growth(cosmo, np.array([a])).items()}
    rate = a**2 * problems.expansion(cosmo, a)
    psi1 = problems.displacement(delta, BOX)
    disp, vel = g["D1"] * psi1, rate * g["dD1"] * psi1
    if order == 2:
        psi2 = problems.second_order(delta, BOX)
        disp, vel = disp + g["D2"] * psi2, vel + rate * g["dD2"] * psi2
    return disp, vel


def close(actual: Any, wanted: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=rtol * np.abs(wanted).max())


@pytest.mark.parametrize("order", [1, 2])
def test_displacements_and_momenta_match_numpy(decomposition: pmd.Decomposition, order: int) -> None:
    config, cosmo = configure(decomposition, order), problems.cosmology(Omega_k=0.05, w0=-0.9, wa=0.2)
    delta = np.random.default_rng(0).standard_normal(SHAPE)
    particles = pmd.lpt(pmd.prfft3d(delta, decomposition), cosmo, config)
    disp, vel = expected(delta, cosmo, order, config.a_start)
    # The growth tables' error (see test_cosmology) is all of it.
    close(particles.disp, disp, 1e-7)
    close(particles.vel, vel, 1e-7)
    assert problems.has_sharding(particles.disp, decomposition.sharding)
    assert problems.has_sharding(particles.vel, decomposition.sharding)


def test_derivatives_match_differences_and_one_device(
    decomposition: pmd.Decomposition, single: pmd.Decomposition
) -> None:
    cosmo = problems.cosmology()
    rng = np.random.default_rng(1)
    delta, ddelta = jnp.asarray(rng.standard_normal((2, *SHAPE)))
    ct = jnp.asarray(rng.standard_normal((2, *SHAPE, 3)))

    def derivatives(decomposition: pmd.Decomposition) -> Any:
        def function(delta: jax.Array) -> list[jax.Array]:
            return jax.tree.leaves(pmd.lpt(pmd.prfft3d(delta, decomposition), cosmo, configure(decomposition)))

        def run(delta: jax.Array) -> Any:
            _, pull = jax.vjp(function, delta)
            return jax.jvp(function, (delta,), (ddelta,))[1], pull(list(ct))[0]

        return problems.compiled(run)(delta)

    tangent, cotangent = derivatives(decomposition)
    ahead, behind = (expected(delta + sign * ddelta, cosmo, 2, 0.3) for sign in (1, -1))
    for got, plus, minus in zip(tangent, ahead, behind, strict=True):
        close(got, (plus - minus) / 2, 1e-7)  # exact for a quadratic
    left, right = np.vdot(np.stack(tangent), ct), np.vdot(cotangent, ddelta)
    assert abs(left - right) < 1e-14 * np.linalg.norm(np.stack(tangent)) * np.linalg.norm(ct)
    close(cotangent, np.asarray(derivatives(single)[1]), 1e-13)
    assert problems.has_sharding(cotangent, decomposition.sharding)


def test_a_plane_wave_has_no_second_order(single: pmd.Decomposition) -> None:
    delta, psi = problems.plane_wave(SHAPE, BOX, 2.0, axis=1)
    particles = pmd.lpt(pmd.prfft3d(delta, single), problems.einstein_de_sitter(), configure(single), a=0.5)
    close(particles.disp, 0.5 * psi, 1e-8)  # D1 = a to the tables' error
    close(particles.vel, 0.5**1.5 * psi, 1e-8)


def test_two_crossed_waves_displace_by_the_analytic_second_order(single: pmd.Decomposition) -> None:
    """delta = cos(kx) + cos(ky): source cos(kx) cos(ky), so psi2 = -grad of its inverse Laplacian, times -3/7 D^2."""
    shape, length = (8, 8, 4), 8.0
    config = pmd.Config(box_size=(8.0, 8.0, 4.0), mesh_shape=shape, decomposition=single)
    k = 2 * np.pi / length
    x = problems.lattice(shape, config.box_size) * k
    delta = np.cos(x[..., 0]) + np.cos(x[..., 1])
    particles = pmd.lpt(pmd.prfft3d(delta, single), problems.einstein_de_sitter(), config, a=1.0)
    # div psi2 = cos(kx) cos(ky)  =>  psi2_x = sin(kx) cos(ky) / (2k)
    psi1 = -np.sin(x[..., 0]) / k
    psi2 = np.sin(x[..., 0]) * np.cos(x[..., 1]) / (2 * k)
    close(particles.disp[..., 0], psi1 - 3 / 7 * psi2, 1e-8)
    close(particles.vel[..., 0], psi1 - 6 / 7 * psi2, 1e-8)


def test_particles_start_on_the_solvers_grid(single: pmd.Decomposition) -> None:
    config = configure(single)
    delta = np.random.default_rng(2).standard_normal(SHAPE)
    for dtype in (np.float32, np.float64):
        disp = pmd.lpt(pmd.prfft3d(delta.astype(dtype), single), problems.cosmology(), config).disp
        steps = np.asarray(disp, float) / resolution(config, dtype)
        assert disp.dtype == dtype
        np.testing.assert_array_equal(steps, np.rint(steps))


def test_wrong_shapes_are_refused() -> None:
    config = configure(pmd.Decomposition(pdims=(1, 4)))
    with pytest.raises(ValueError, match=r"modes.shape=\(8, 12, 3\) must be \(8, 12, 4\)"):
        pmd.lpt(np.zeros((8, 12, 3), complex), problems.cosmology(), config)
