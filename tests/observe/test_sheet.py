"""The density of the sheet: mass is conserved, and structure is that of the particles, without their lattice."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe import sheet
from pmwd_dist.ops.rounding import max_abs

N, BOX = 8, 16.0


def make(disp: np.ndarray, decomposition: Any, mesh: int = N, box: float = BOX) -> tuple[pmd.Particles, pmd.Config]:
    config = pmd.Config(box, mesh, disp.shape[:3], decomposition=decomposition, halo=4)
    return pmd.Particles(*jax.device_put((disp, np.zeros_like(disp)), config.decomposition.sharding)), config


def waves(n: int, rms: float) -> np.ndarray:
    """Displacements of long waves."""
    rng = np.random.default_rng(0)
    return rms * np.stack([problems.smooth_field(rng, (n, n, n), largest=2) for _ in range(3)], -1)


def test_mass_is_conserved_on_any_layout(decomposition: pmd.Decomposition, single: pmd.Decomposition) -> None:
    disp = np.random.default_rng(1).uniform(-5, 5, (N, N, N, 3))
    image = sheet.slab_density(*make(disp, decomposition), planes=N)
    np.testing.assert_allclose(np.mean(image), 1, rtol=1e-9)
    np.testing.assert_allclose(image, sheet.slab_density(*make(disp, single), planes=N), rtol=0, atol=1e-8)


def test_a_thin_slab_is_that_of_the_whole_lattice(single: pmd.Decomposition, monkeypatch: pytest.MonkeyPatch) -> None:
    n, box = 16, 64.0
    particles, config = make(waves(n, 1.0), single, box=box, mesh=n)
    low, count = sheet._lattice_planes(float(max_abs(particles.disp[..., 2])), 2, config)
    assert low < 0
    assert count < n
    part = sheet.slab_density(particles, config, 2)
    programs = sheet._slab_density._cache_size()
    monkeypatch.setattr(sheet, "_lattice_planes", lambda max_displacement, planes, config: (low - 1, count))
    sheet.slab_density(particles, config, 2)
    assert sheet._slab_density._cache_size() == programs  # one for all outputs of a run
    monkeypatch.setattr(sheet, "_lattice_planes", lambda max_displacement, planes, config: (0, n))
    np.testing.assert_allclose(part, sheet.slab_density(particles, config, 2), rtol=0, atol=1e-8)


def test_long_waves_are_those_of_the_particles(single: pmd.Decomposition) -> None:
    """Linear interpolation takes a factor sinc^2 from the displacement of a wave: 1.3 % at 16 sites a wavelength."""
    n, box = 32, 64.0
    particles, config = make(waves(n, 2.0), single, mesh=n, box=box)
    ours = np.fft.rfft2(sheet.slab_density(particles, config, n))
    plain = np.fft.rfft2(np.mean(pmd.density(particles, config), axis=2))
    x, y = np.fft.fftfreq(n, 1 / n)[:, None], np.arange(n // 2 + 1)
    long = (np.hypot(x, y) <= 2.5) & (np.hypot(x, y) > 0)
    assert np.abs(ours - plain)[long].max() < 0.02 * np.abs(plain)[long].max()
    short = np.hypot(x, y) > 9
    assert (np.abs(ours[short]) ** 2).sum() < (np.abs(plain[short]) ** 2).sum()


@pytest.mark.parametrize("ratio", [1, 2])
def test_a_stretched_void_is_smooth(single: pmd.Decomposition, ratio: int) -> None:
    """x = q + psi(q) has the density 1 / (1 + psi'), which particles sample at gaps of up to 1.8 spacings."""
    n, box = 32, 64.0
    k = 2 * np.pi / box
    disp = np.zeros((n, 4, 4, 3))
    disp[..., 0] = (0.8 / k * np.sin(k * problems.lattice((n, 4, 4), (box,) * 3)[..., 0])) - 1
    config = pmd.Config(box, (n * ratio, 4 * ratio, 4 * ratio), (n, 4, 4), decomposition=single)
    particles = pmd.Particles(*jax.numpy.asarray([disp, 0 * disp]))
    cells = np.arange(n * ratio) * config.cell_size[0]
    q = np.linspace(0, box, 100_000)
    expected = np.interp(cells + 1, q + 0.8 / k * np.sin(k * q), 1 / (1 + 0.8 * np.cos(k * q)), period=box)
    void = expected < 0.8
    ours = np.asarray(sheet.slab_density(particles, config, 4 * ratio)).mean(1)
    plain = np.asarray(pmd.density(particles, config)).mean((1, 2))
    hatching, left = (np.std((x / expected)[void]) for x in (plain, ours))
    assert hatching > 0.1
    assert left < hatching / 4
