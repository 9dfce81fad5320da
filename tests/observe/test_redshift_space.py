"""Redshift space against its formula in numpy and Kaiser's limit, in every layout, with gradients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd

BOX, N = (24.0, 32.0, 24.0), (8, 8, 6)
OBLIQUE = (1.0, 2.0, -2.0)


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    return pmd.Config(**({"box_size": BOX, "mesh_shape": N, "lpt_order": 2, "decomposition": decomposition} | changes))


def random_particles() -> pmd.Particles:
    disp, vel = np.random.default_rng(0).uniform(-3, 3, (2, *N, 3))
    return pmd.Particles(disp, vel)


def moved(particles: pmd.Particles, lines: Any, a: float, cosmo: Any) -> np.ndarray:
    """Displacements in redshift space, for lines of sight of any length."""
    unit = lines / np.linalg.norm(lines, axis=-1, keepdims=True)
    vel = np.asarray(particles.vel)
    E = np.sqrt(0.31 * a**-3 + 0.69)
    assert cosmo.Omega_c + cosmo.Omega_b == pytest.approx(0.31)
    return np.asarray(particles.disp) + (vel * unit).sum(-1, keepdims=True) * unit / (a**2 * E)


def test_particles_move_along_the_line_of_sight(decomposition: pmd.Decomposition) -> None:
    config, cosmo, particles = configure(decomposition), problems.cosmology(), random_particles()
    table = pmd.growth_table(cosmo)
    weights = np.random.default_rng(1).standard_normal((*N, 3))
    observer = np.array([5.0, 17.0, 11.0])
    sites = problems.lattice(N, BOX)
    radial = np.mod(sites + particles.disp, BOX) - observer

    @jax.jit
    def run(particles: pmd.Particles, observer: jax.Array, a: jax.Array) -> Any:
        def loss(particles: pmd.Particles, observer: jax.Array, a: jax.Array) -> Any:
            results = [
                pmd.observe.redshift_space(particles, table, config, line_of_sight=OBLIQUE, a=a).disp,
                pmd.observe.redshift_space(particles, table, config, observer=observer, a=a).disp,
            ]
            return sum((result * weights).sum() for result in results), results

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(particles, observer, a)

    (_, results), gradients = run(particles, observer, 0.6)
    expected = moved(particles, np.array(OBLIQUE), 0.6, cosmo), moved(particles, radial, 0.6, cosmo)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-6)  # of the growth table's E
        assert problems.has_sharding(result, decomposition.sharding)

    away = np.array([1.0, -2.0, 3.0])

    def value(step: float) -> float:
        shifted = pmd.Particles(particles.disp + step * weights, particles.vel - step * weights)
        return float(run(shifted, observer + step * away, 0.6 + step)[0][0])

    slope = np.vdot(gradients[0].disp - gradients[0].vel, weights) + gradients[1] @ away + gradients[2]
    step = 1e-5
    np.testing.assert_allclose(slope, (value(step) - value(-step)) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize(("name", "axis"), [("x", 0), ("y", 1), ("z", 2)])
def test_axes_have_names(name: str, axis: int, single: pmd.Decomposition) -> None:
    particles, config = random_particles(), configure(single)
    result = pmd.observe.redshift_space(particles, problems.cosmology(), config, line_of_sight=name, a=1.0)
    expected = np.asarray(particles.disp) + np.asarray(particles.vel) * (np.arange(3) == axis)  # E(1) = 1
    np.testing.assert_allclose(result.disp, expected, rtol=0, atol=1e-12)


def test_a_particle_at_the_observer_stays(single: pmd.Decomposition) -> None:
    config, cosmo = configure(single), problems.cosmology()
    particles = pmd.Particles(np.zeros((*N, 3)), np.ones((*N, 3)))

    def total(vel: Any, observer: Any) -> Any:
        moved = pmd.observe.redshift_space(pmd.Particles(particles.disp, vel), cosmo, config, observer=observer, a=1.0)
        return moved.disp.sum(), moved.disp

    (_, disp), gradient = jax.value_and_grad(total, has_aux=True)(particles.vel, (0.0, 0.0, 0.0))
    assert not disp[0, 0, 0].any()
    assert np.abs(disp[1:]).min() >= 0
    assert np.isfinite(gradient).all()


def test_long_waves_have_kaiser_s_factor(single: pmd.Decomposition) -> None:
    """delta_s(k) = (1 + f mu^2) delta(k) mode by mode, and so its multipoles; shares of mu are those of the modes."""
    n, a = 16, 0.7
    config = pmd.Config(16.0, n, lpt_order=1, decomposition=single)
    cosmo = problems.cosmology()
    delta = 1e-3 * problems.smooth_field(np.random.default_rng(2), (n,) * 3)
    modes = pmd.prfft3d(delta, single)
    particles = pmd.lpt(modes, cosmo, config, a=a)
    # Cloud-in-cell is smooth half a cell from the mesh; the mean over a few places leaves no trace of the lattice.
    shifted = pmd.Particles(particles.disp + 0.5 * 16 / n, particles.vel)
    found = pmd.density(pmd.observe.redshift_space(shifted, cosmo, config, line_of_sight=OBLIQUE, a=a), config)
    before = pmd.density(shifted, config)
    f = float(pmd.growth_rate(a, cosmo))
    k = problems.wavevectors((n,) * 3, (16.0,) * 3)
    k2 = np.maximum(sum(k_**2 for k_ in k), 1e-30)
    mu2 = sum(k_ * u for k_, u in zip(k, np.array(OBLIQUE) / 3, strict=True)) ** 2 / k2
    kaiser = np.fft.ifftn(np.fft.fftn(np.asarray(before)) * (1 + f * mu2)).real
    assert np.linalg.norm(found - kaiser) < 0.02 * np.linalg.norm(kaiser - before)
    poles = pmd.observe.power_multipoles(found, config, line_of_sight=OBLIQUE)
    expected = pmd.observe.power_multipoles(kaiser, config, line_of_sight=OBLIQUE)
    np.testing.assert_allclose(poles.power[:, 0], expected.power[:, 0], rtol=0.02, atol=0.02 * expected.power[0, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"line_of_sight": "w"}, "line_of_sight='w' must be 'x', 'y', 'z' or three numbers"),
        ({"line_of_sight": (0, 0, 0)}, "not all zero"),
        ({"line_of_sight": "x", "observer": (1, 1, 1)}, "together with observer"),
        ({"observer": (1, 40, 1)}, r"observer=\[1.0, 40.0, 1.0\] must lie in the box of 24 x 32 x 24 Mpc/h"),
        ({"observer": (1, 1)}, "must lie in the box"),
        ({"a": 3.0}, "a=3.0 must be a scale factor"),
        ({"a": None}, "a=None is not known for these particles; pass their scale factor, which transformations of JAX"),
    ],
)
def test_bad_lines_of_sight_are_refused(options: Any, message: str, single: pmd.Decomposition) -> None:
    with pytest.raises(ValueError, match=message):
        pmd.observe.redshift_space(random_particles(), problems.cosmology(), configure(single), **{"a": 1.0} | options)
