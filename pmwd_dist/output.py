"""The results of a run at one redshift: power spectrum, density slab, snapshot and figures."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import pmwd_dist as pmd
from pmwd_dist import distributed, report
from pmwd_dist.config import Config
from pmwd_dist.files import together
from pmwd_dist.plan import Plan
from pmwd_dist.settings.models import redshift_label
from pmwd_dist.settings.physics import Simulation
from pmwd_dist.snapshot import save_snapshot


def write_output(plan: Plan, particles: pmd.Particles, a: float, z: float) -> list[str]:
    """Write all results at a redshift into the run's folder. Collective.

    Returns:
      The names of the files; of a snapshot of several processes, that of this process.

    Raises:
      SimulationError: the density is not finite.
      OSError, SharedError: a file can't be written.
    """
    label, output, folder = redshift_label(z), plan.settings.output, plan.folder
    config = plan.simulation.config
    density = pmd.density(particles, config)
    spectrum = measure(density, plan.simulation, z)
    slab = project(density, config, output.slice_thickness, z)
    del density
    _check(spectrum, z)
    names = [f"power_{label}.csv", "power.png"]
    if slab is not None:
        names += [f"density_{label}.npz", f"density_{label}.png"]
    with together():
        if distributed.is_main():
            report.write_spectrum(folder / names[0], spectrum)
            report.draw_spectra(folder / names[1], report.read_spectra(folder))
            if slab is not None:
                report.write_slab(folder / names[2], slab)
                report.draw_slab(folder / names[3], slab)
    if output.snapshot != "none":
        path = folder / f"snapshot_{label}.hdf5"
        names.append(save_snapshot(path, particles, plan.simulation.cosmo, config, a, format=output.snapshot).name)
    return names


def measure(density: Array, simulation: Simulation, z: float) -> report.Spectrum:
    """The power spectrum of a density field, shape mesh_shape, and linear theory."""
    spectrum = pmd.power_spectrum(density, simulation.config)
    k, power, modes = (np.asarray(x, float) for x in (spectrum.k, spectrum.power, spectrum.modes))
    growth = float(pmd.growth(1 / (1 + z), simulation.cosmo))
    # The mean wavenumber of a bin may lie a rounding error beyond a table.
    linear = np.asarray(simulation.linear_power(np.maximum(k, 1e-8)), float) * growth**2
    return report.Spectrum(z, k, power, modes, linear)


def project(density: Array, config: Config, thickness: float, z: float) -> report.Slab | None:
    """The mean density of a slab at the lower end of the z axis; None if it is to have no thickness."""
    if thickness == 0:
        return None
    cell, cells = config.cell_size[2], config.mesh_shape[2]
    planes = min(max(1, round(thickness / cell)), cells)
    image = np.asarray(_mean_of_planes(density, planes, config))
    return report.Slab(z, image, config.box_size[:2], planes * cell)


@partial(jax.jit, static_argnames=("planes", "config"))
def _mean_of_planes(density: Array, planes: int, config: Config) -> Array:
    image = jnp.mean(density[:, :, :planes], axis=2)
    return jax.lax.with_sharding_constraint(image, config.layout.replicated)


def _check(spectrum: report.Spectrum, z: float) -> None:
    if not np.isfinite(spectrum.power[spectrum.modes > 0]).all():
        raise pmd.SimulationError(
            f"the density at z = {z:g} is not finite: a displacement exceeds the halo, or is not a number; "
            'set devices.halo to "auto" or to more cells'
        )
