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
from pmwd_dist.parallel.fft import irfft_block
from pmwd_dist.pm import lpt_fields
from pmwd_dist.pm.particles import resolution

SHAPE, BOX = (8, 12, 5), (10.0, 12.0, 7.0)


def configure(decomposition: pmd.Decomposition, order: int = 2) -> pmd.Config:
    return pmd.Config(box_size=BOX, mesh_shape=SHAPE, lpt_order=order, decomposition=decomposition, a_start=0.3)


def expected(delta: np.ndarray, cosmo: SimpleNamespace, order: int, a: float) -> tuple[np.ndarray, np.ndarray]:
    g = {name: values[..., 0] for name, values in problems.growth(cosmo, np.array([a])).items()}
    rate = a**2 * problems.expansion(cosmo, a)
    fields = problems.lpt_fields(delta, BOX, order)
    factors, slopes = ([g[f"{d}D1"], g[f"{d}D2"], *g[f"{d}D3"]] for d in ("", "d"))
    disp, vel = (sum(f * psi for f, psi in zip(values, fields, strict=False)) for values in (factors, slopes))
    return disp, rate * vel


def close(actual: Any, wanted: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=rtol * np.abs(wanted).max())


# The third order has the lower ones in it: those alone need fewer layouts.
CASES = [((1, 1), 3), ((1, 4), 3), ((2, 2), 3), ((4, 1), 2), ((4, 1), 1)]


@pytest.mark.parametrize(("pdims", "order"), CASES, ids=str)
def test_displacements_and_momenta_match_numpy(pdims: tuple[int, int], order: int) -> None:
    decomposition = pmd.Decomposition(pdims=pdims)
    config, cosmo = configure(decomposition, order), problems.cosmology(Omega_k=0.05, w0=-0.9, wa=0.2)
    delta = np.random.default_rng(0).standard_normal(SHAPE)
    modes = pmd.prfft3d(delta, decomposition)
    program = jax.jit(lambda modes: pmd.lpt(modes, cosmo, config)).lower(modes).compile()
    assert "all-gather" not in program.as_text()
    particles = program(modes)
    disp, vel = expected(delta, cosmo, order, config.a_start)
    # The growth tables' error (see test_cosmology) is all of it.
    close(particles.disp, disp, 1e-7)
    close(particles.vel, vel, 1e-7)
    assert problems.has_sharding(particles.disp, decomposition.sharding)
    assert problems.has_sharding(particles.vel, decomposition.sharding)


def test_derivatives_match_differences_and_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the third order, recomputed in reverse on several devices; slabs are in test_gradients.py."""
    cosmo = problems.cosmology()
    table = pmd.growth_table(cosmo)
    rng = np.random.default_rng(1)
    delta, ddelta = jnp.asarray(rng.standard_normal((2, *SHAPE)))
    ct = jnp.asarray(rng.standard_normal((2, *SHAPE, 3)))

    def derivatives(decomposition: pmd.Decomposition, *, forward: bool = False) -> Any:
        def function(delta: jax.Array, table: pmd.GrowthTable = table) -> list[jax.Array]:
            return jax.tree.leaves(pmd.lpt(pmd.prfft3d(delta, decomposition), table, configure(decomposition, 3)))

        def run(delta: jax.Array) -> Any:
            tangent = jax.jvp(function, (delta,), (ddelta,))[1] if forward else None
            return tangent, *jax.vjp(function, delta, table)[1](list(ct))

        return jax.jit(run)(delta)

    _, one, by_table = derivatives(pmd.Decomposition(pdims=(1, 1)))
    monkeypatch.setattr(lpt_fields, "stores_second_derivatives", lambda *_: False)
    decomposition = pmd.Decomposition(pdims=(2, 2))
    tangent, cotangent, growth = derivatives(decomposition, forward=True)
    close(growth.factors, np.asarray(by_table.factors), 1e-13)
    assert problems.has_sharding(cotangent, decomposition.sharding)
    close(cotangent, np.asarray(one), 1e-13)
    at = {step: np.stack(expected(delta + step * ddelta, cosmo, 3, 0.3)) for step in (-2, -1, 1, 2)}
    difference = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / 12  # exact for a cubic
    close(np.stack(tangent), difference, 1e-7)
    left, right = np.vdot(np.stack(tangent), ct), np.vdot(cotangent, ddelta)
    assert abs(left - right) < 1e-14 * np.linalg.norm(np.stack(tangent)) * np.linalg.norm(ct)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_what_is_left_of_the_equations_of_motion_has_the_next_order(order: int, single: pmd.Decomposition) -> None:
    """With T = d^2/d ln a^2 + (2 + E'/E) d/d ln a: J div_x T x = 3/2 (J - 1), and T x has no curl, in EdS at D1 = a.

    The transverse part of third order is left out: a curl of third order remains.
    """
    n, box = 16, (16.0,) * 3
    config = pmd.Config(box, n, lpt_order=order, decomposition=single)
    delta = problems.smooth_field(np.random.default_rng(4), (n, n, n))
    modes, cosmo = pmd.prfft3d(delta, single), problems.einstein_de_sitter()
    # Displacements at three times, of which that of each power of a is a combination: T a^m = m (m + 1/2) a^m.
    times = np.array([0.5, 1.0, 1.5])
    powers = np.linalg.inv(times[:, None] ** np.arange(1, 4))
    orders = np.einsum("mt,t...->m...", powers, [pmd.lpt(modes, cosmo, config, a=a).disp for a in times])
    k = problems.without_nyquist(problems.wavevectors((n, n, n), box), (n, n, n))
    slopes = np.stack(
        [np.fft.ifftn(1j * k_[..., None] * np.fft.fftn(orders, axes=(1, 2, 3)), axes=(1, 2, 3)).real for k_ in k], -1
    )

    def residuals(a: float) -> tuple[float, float]:
        power = a ** np.arange(1, 4)
        F = np.eye(3) + np.einsum("m,m...->...", power, slopes)
        T = np.einsum("m,m...->...", np.arange(1, 4) * np.arange(1.5, 4) * power, slopes)
        J = np.linalg.det(F)
        divergence = J * np.einsum("...ij,...ji", T, np.linalg.inv(F)) - 1.5 * (J - 1)
        curl = np.einsum("ijk,...lk,...lj->...i", problems.LEVI_CIVITA, F, T)
        return np.abs(divergence).max(), np.abs(curl).max()

    (far, far_curl), (near, near_curl) = residuals(0.02), residuals(0.01)
    assert np.log2(far / near) == pytest.approx(order + 1, abs=0.2)
    assert far_curl < 1e-10 or np.log2(far_curl / near_curl) > min(order, 2) + 0.8  # first order leaves none at all


def test_products_have_no_aliases_of_one_axis(single: pmd.Decomposition) -> None:
    """cos 3x cos y on 8 points: cos 6x of its square would be cos 2x."""
    config = pmd.Config(2 * np.pi, 8, decomposition=single)
    x, y, _ = np.moveaxis(problems.lattice((8, 8, 8), config.box_size), -1, 0)
    modes = pmd.prfft3d(np.cos(3 * x) * np.cos(y), single)

    def square(modes: jax.Array) -> jax.Array:
        return lpt_fields.dealiased(lambda m: irfft_block(m, 8, single) ** 2, modes, config)

    found = single.shard_map(square, jax.P(), jax.P())(modes)
    close(pmd.pirfft3d(found, (8, 8, 8), single), (1 + np.cos(2 * y)) / 4, 1e-13)


def test_particles_start_on_the_solvers_grid(single: pmd.Decomposition) -> None:
    config = configure(single)
    delta = np.random.default_rng(2).standard_normal(SHAPE)
    for dtype in (np.float32, np.float64):
        disp = pmd.lpt(pmd.prfft3d(delta.astype(dtype), single), problems.cosmology(), config).disp
        steps = np.asarray(disp, float) / resolution(config, dtype)
        assert disp.dtype == dtype
        np.testing.assert_array_equal(steps, np.rint(steps))
