"""The density of a slice of the box at each redshift."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Self

import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax.program import jit
from pmwd_dist.io.arrays import Arrays, read_arrays, reading, write_arrays
from pmwd_dist.observe.sheet import slab_density
from pmwd_dist.report import plot
from pmwd_dist.report.page import Caption
from pmwd_dist.report.style import titled
from pmwd_dist.run.outputs.base import RESTORE, Drawing, Output, View
from pmwd_dist.run.settings.simulation_sections import OutputSection


class Slices(Output):
    """Mean density of a slab at the lower end of the z axis, at each output."""

    name = "density"
    suffix = "npz"
    rank = -1
    caption = Caption(
        "Density",
        "Mean density of a slice of the box in units of the cosmic mean, on a logarithmic scale.",
        "filaments and voids whose contrast grows with time, without a pattern along the axes.",
    )

    thickness: float

    @classmethod
    def of(cls, section: OutputSection) -> Self | None:
        """The slices of [output], if it has any."""
        return cls(thickness=section.slice_thickness) if section.slice_thickness else None

    def names(self, z: float) -> list[str]:
        return [self.file(z, "npz"), self.file(z, "png")]

    def measure(self, view: View) -> Arrays:
        """Density of the phase-space sheet; of the particles if a tracer of the sheet is beyond the halo."""
        config = view.config
        cell, cells = config.cell_size[2], config.mesh_shape[2]
        planes = min(max(1, round(self.thickness / cell)), cells)
        image = np.asarray(slab_density(view.rest, config, planes))
        if not np.isfinite(image).all():
            mean = jit(lambda x: jnp.mean(x[:, :, :planes], 2), out_shardings=config.decomposition.replicated)
            image = np.asarray(mean(view.density))
        values = {"z": view.z, "density": image, "sides": config.box_size[:2], "thickness": planes * cell}
        return {name: np.asarray(value) for name, value in values.items()}

    def write(self, folder: Path, z: float, values: Arrays) -> None:
        write_arrays(folder / self.file(z, "npz"), values, {})

    @classmethod
    def read(cls, path: Path) -> Arrays:
        """The density and its redshift `z`, `sides` and `thickness` [Mpc/h]."""
        found = read_arrays(path, shapes={"z": (), "sides": (2,), "thickness": ()}, remedy=RESTORE)
        with reading(path, RESTORE):
            return found | {"density": found["density"].astype(float)}

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        return draw_slab(cls.read(path))


def draw_slab(slab: Arrays, velocity: np.ndarray | None = None) -> Drawing:
    """Density of a slab, with redshift and thickness, and velocities if there are any."""
    title = f"redshift {slab['z']:.3g}, mean over $0 < z < {slab['thickness']:.3g}$ Mpc/$h$"
    draw = partial(plot.density, slab["density"], slab["sides"].tolist(), velocity=velocity)
    return partial(titled, draw, title, 15)
