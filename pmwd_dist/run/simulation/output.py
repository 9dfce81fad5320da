"""Results of a run at one redshift: power spectrum, density slab, tables and snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmwd_dist._jax.profile import part
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.io.arrays import Arrays, write_arrays
from pmwd_dist.io.snapshot.writer import Snapshot
from pmwd_dist.observe.power import power_spectrum, shot_noise
from pmwd_dist.observe.sheet import slab_density
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.pm.paint import density
from pmwd_dist.pm.particles import ExactParticles, Particles
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report import drawing, results
from pmwd_dist.report.tables import Table, write_table
from pmwd_dist.run.common import manifest
from pmwd_dist.run.settings.physics import SimulationSetup
from pmwd_dist.run.settings.simulation_sections import redshift_label
from pmwd_dist.run.simulation import light_cone
from pmwd_dist.run.simulation.fields import write_fields
from pmwd_dist.run.simulation.observables import View, galaxy_counts, wanted
from pmwd_dist.run.simulation.plan import SimulationJob
from pmwd_dist.run.simulation.writer import Writer


def write_output(
    plan: SimulationJob, rest: ExactParticles, moving: Callable[[], Particles], a: float, z: float, writer: Writer
) -> list[str]:
    """Measure all results at a redshift, and write them into the run's folder. Collective.

    Args:
      plan: plan of the run.
      rest: particles at the redshift.
      moving: function that returns the particles with momenta in Mpc/h, 12 bytes a particle more.
      a: scale factor.
      z: redshift.
      writer: writer of the snapshot, which goes on with it afterwards.

    Returns:
      The names of the files; a snapshot of several processes has one file each.

    Raises:
      SimulationError: the density is not finite.
      OSError, SharedError: a file of this output, or of the last one, can't be written.
    """
    output, folder, config = plan.settings.output, plan.folder, plan.simulation.config
    particles = Particles(rest.disp, rest.momenta)  # for functions of the displacements
    field = density(particles, config)
    spectrum = measure(field, plan.simulation, z)
    slab = project(particles, field, config, output.slice_thickness, z)
    _check(spectrum["power"], f"the density at z = {z:g}", "exceeds the halo, or is not a number")
    chosen = wanted(plan.settings)
    if chosen or output.snapshot != "none":
        particles = moving()
    # Redshifts move particles beyond a halo that was chosen for their displacements.
    given = dataclasses.replace(config, halo=plan.settings.devices.halo)
    view = View(dataclasses.replace(plan.simulation, config=given), particles, field, a, plan.data)
    tables = {name: measure(getattr(plan.settings.observe, name), view) for name, measure in chosen.items()}
    view = dataclasses.replace(view, density=jnp.zeros(()))  # the mesh is free for the counts
    del field
    for name, table in tables.items():
        if "P0" in table.columns:
            _check(table["P0"], f"observe.{name} at z = {z:g}", "by redshift exceeds the halo")
    writer.finish()
    label, names = redshift_label(z), plan.names_at(z)
    with part("output: writing"), raise_on_all_processes():
        if distributed.is_main():
            manifest.claim(folder, names + plan.snapshots_at(z))
            write_table(folder / f"power_{label}.csv", spectrum)
            if slab is not None:
                write_arrays(folder / f"density_{label}.npz", slab, {})
            for name, table in tables.items():
                write_table(folder / f"{name}_{label}.csv", table)
            if output.figures:
                drawing.draw(folder / name for name in names if name.endswith(".png"))
    if plan.counted is not None:
        counts = galaxy_counts(plan.counted, view), {"axes": "cells along x, y, z", "window": "cloud-in-cell"}
        about = {"box_size": config.box_size, "units": "Mpc/h", "z": z}
        write_fields(folder / f"counts_{label}.hdf5", {"counts": counts}, about)
    if output.snapshot != "none":
        options = {"format": output.snapshot, "precision": output.precision, "compression": output.compression}
        with part("output: copying"):
            snapshot = Snapshot(particles, plan.simulation.cosmo, config, a, **options)
            names.append(writer.write(snapshot, folder / f"snapshot_{label}.hdf5"))
    return names


def write_light_cone(plan: SimulationJob, shells: Array) -> list[str]:
    """Write the light cone and the lensing by it into the run's folder. Collective.

    Returns:
      The names of the files.

    Raises:
      OSError, SharedError: a file can't be written.
    """
    names, folder = plan.light_cone_files, plan.folder
    with raise_on_all_processes():
        if distributed.is_main():
            manifest.claim(folder, names)
    tables = light_cone.write_maps(plan, shells)
    with raise_on_all_processes():
        if distributed.is_main():
            for name, table in tables.items():
                write_table(folder / name, table)
            if plan.settings.output.figures:
                drawing.draw([folder / results.CONVERGENCE])
    return names


def measure(density: Array, simulation: SimulationSetup, z: float) -> Table:
    """Power spectrum of a density field of shape mesh_shape, and of linear theory.

    With massive neutrinos both are spectra of cold matter, and the one of all matter is a column.
    """
    spectrum, a = power_spectrum(density, simulation.config), 1 / (1 + z)
    table = growth_table_to(2, simulation.cosmo)
    # linear_power is singular at k = 0, the mean wavenumber of a bin without modes.
    k, response = np.maximum(np.asarray(spectrum.k, float), 1e-8), table.response
    linear = simulation.linear_power(k) * np.asarray(table.linear(k, a)[0], float) ** 2
    total = None if response is None else np.asarray(spectrum.power * response.total(k, a) ** 2)
    return results.spectrum_table(spectrum, linear, shot_noise(simulation.config), total)


def project(particles: Particles, density: Array, config: Config, thickness: float, z: float) -> Arrays | None:
    """Mean density of a slab at the lower end of the z axis; None if its thickness is zero.

    The density of the phase-space sheet; the density of the particles if a tracer of the sheet is beyond the halo.
    """
    if thickness == 0:
        return None
    cell, cells = config.cell_size[2], config.mesh_shape[2]
    planes = min(max(1, round(thickness / cell)), cells)
    image = np.asarray(slab_density(particles, config, planes))
    if not np.isfinite(image).all():
        mean = jax.jit(lambda x: jnp.mean(x[:, :, :planes], 2), out_shardings=config.decomposition.replicated)
        image = np.asarray(mean(density))
    values = {"z": z, "density": image, "sides": config.box_size[:2], "thickness": planes * cell}
    return {name: np.asarray(value) for name, value in values.items()}


def _check(values: np.ndarray, what: str, cause: str) -> None:
    """Raise SimulationError unless all values are finite."""
    if not np.isfinite(values).all():
        remedy = 'set devices.halo to "auto" or to more cells'
        raise SimulationError(f"{what} is not finite: a displacement {cause}; {remedy}")
