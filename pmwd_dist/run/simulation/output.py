"""Files of a run at one redshift, and at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jax import Array

from pmwd_dist._jax.profile import part
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.pm.paint import density
from pmwd_dist.pm.particles import ExactParticles, Particles
from pmwd_dist.report import drawing
from pmwd_dist.run.common import manifest
from pmwd_dist.run.outputs.base import View
from pmwd_dist.run.outputs.registry import figures
from pmwd_dist.run.outputs.writer import Writer
from pmwd_dist.run.simulation.plan import SimulationPlan


def write_output(
    plan: SimulationPlan, rest: ExactParticles, moving: Callable[[], Particles], a: float, z: float, writer: Writer
) -> list[str]:
    """Measure all outputs at a redshift, and write them into the run's folder. Collective.

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
    folder, config, names = plan.folder, plan.simulation.config, plan.names_at(z)
    given = dataclasses.replace(config, halo=plan.settings.devices.halo)
    simulation, particles = dataclasses.replace(plan.simulation, config=given), Particles(rest.disp, rest.momenta)
    view = View(simulation, config, particles, moving, a, z, plan.data, density(particles, config))
    measured = [(output, output.measure(view)) for output in plan.results]
    view.density = None  # the mesh is free for what is divided
    writer.finish()
    with part("output: writing"), raise_on_all_processes():
        if distributed.is_main():
            manifest.claim(folder, plan.all_names_at(z))
            for output, values in measured:
                output.write(folder, z, values)
            drawing.draw(figures(folder, names))
    for output in plan.results:
        output.write_divided(folder, view, writer)
    return names


def write_last(plan: SimulationPlan, shells: Array) -> list[str]:
    """Write the files at the end of a run, whose light cone has these shells, into its folder. Collective.

    Returns:
      The names of the files.

    Raises:
      OSError, SharedError: a file can't be written.
    """
    names, folder = plan.last_names, plan.folder
    with raise_on_all_processes():
        if distributed.is_main():
            manifest.claim(folder, names)
    for output in plan.results:
        output.write_last(folder, plan.simulation, shells)
    with raise_on_all_processes():
        if distributed.is_main():
            drawing.draw(figures(folder, names))
    return names
