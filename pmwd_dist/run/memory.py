"""Peak memory of each stage of a simulation on one device, counted in arrays.

Arrays are counted as XLA holds them: arguments, results and the temporaries of its plan, which is what the allocator of
a GPU counts too (docs/planning.md). The numbers of arrays are those of plans for an H100, with the CUDA kernels, and of
plans for a CPU, with the native ops: for 1 to 16 devices, 1 to 8 cells a particle, and halos of 0 to 50 cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pmwd_dist.config import Config
from pmwd_dist.parallel.fft import spectrum_shape
from pmwd_dist.pm.gravity import num_force_meshes
from pmwd_dist.pm.lpt_fields import stores_second_derivatives
from pmwd_dist.pm.paint import halo_widths
from pmwd_dist.pm.stepping.potential_cache import stored_potentials

Kind = Literal["cpu", "gpu"]
Stage = Literal["noise", "modes", "lpt", "step", "density", "power", "gradient"]
RUN: tuple[Stage, ...] = ("noise", "modes", "lpt", "step", "density", "power")  # the stages of a run

_STENCIL = 2  # cells beyond the halo that the gradient of the potential reads


@dataclass(frozen=True)
class Load:
    """What one device holds of a simulation, in bytes of single precision.

    Args:
      particles: one number for each particle.
      cells: one number for each cell of the mesh.
      painted: likewise, with the halo of a paint.
      padded: with the halo of the potential.
      modes: the spectrum of the mesh.
      lattice_modes: that of the lattice.
      slabs: whether the mesh is divided along x only.
      pencils: whether it is divided along y too.
      switch: whether the widths of the halo are chosen among several, by the program itself.
      order: of the LPT.
      stored: potentials that a gradient keeps.
      second_derivatives: whether it keeps those of 2LPT, too.
    """

    particles: float
    cells: float
    painted: float
    padded: float
    modes: float
    lattice_modes: float
    slabs: bool
    pencils: bool
    switch: bool
    order: int
    stored: float
    second_derivatives: bool


def load(config: Config, halo: int | None = None, bits: int = 32, kind: Kind | None = None) -> Load:
    """The load of one device, with a halo of so many cells; default: the widest one that the configuration asks for."""
    dtype = np.dtype(f"float{bits}")
    decomposition, mesh, lattice = config.decomposition, config.mesh_shape, config.particle_shape
    parts, size, widths = (*decomposition.pdims, 1), decomposition.size, halo_widths(config)
    width = widths[-1] if halo is None else halo

    def cells(pad: int) -> float:
        return 4 * math.prod(n / p + 2 * pad * (p > 1) for n, p in zip(mesh, parts, strict=True))

    return Load(
        particles=4 * math.prod(lattice) / size,
        cells=cells(0),
        painted=cells(width + 1),
        padded=cells(width + 1 + _STENCIL),
        modes=8 * math.prod(spectrum_shape(mesh, decomposition)) / size,
        lattice_modes=8 * math.prod(spectrum_shape(lattice, decomposition)) / size,
        slabs=size > 1 and decomposition.pdims[1] == 1,
        pencils=decomposition.pdims[1] > 1,
        switch=halo is None and len(widths) > 1,
        order=config.lpt_order,
        stored=stored_potentials("auto", config.steps, config, dtype, kind) * num_force_meshes(config) * cells(0),
        second_derivatives=stores_second_derivatives(config, dtype, kind),
    )


def stages(config: Config, kind: Kind, *, halo: int | None = None, bits: int = 32) -> dict[Stage, int]:
    """Peak of each stage of a run on one device, and of a gradient with respect to the white noise [bytes].

    Args:
      config: the simulation.
      kind: of the device; a GPU is taken to have the CUDA kernels, a CPU the native ops.
      halo: width [cells]; default: that of the configuration, all of them where it is "auto".
      bits: of a floating-point number.
    """
    x = load(config, halo, bits, kind)
    counts = _gpu(x) if kind == "gpu" else _cpu(x)
    return {stage: math.ceil(count * bits / 32) for stage, count in counts.items()}


def _gpu(x: Load) -> dict[Stage, float]:
    several, scalar, lattice = x.slabs or x.pencils, x.particles, x.lattice_modes
    state = 6 * scalar  # displacements and momenta
    force = 3 * x.painted + (x.padded if several else x.cells)
    # The branches of a switch don't work in place: they hold new particles beside the old ones.
    force = max(force + x.cells, state + x.cells + 3 * x.painted) if x.switch else force
    lpt = {1: 5 if several else 4, 2: 6 if several else 5, 3: 27 if x.slabs else 23.5}[x.order]
    # Derivatives of LPT keep the potential, or its second derivatives.
    kept, back = {1: (0, 10), 2: (6 if x.second_derivatives else 1, 20), 3: (2, 43)}[x.order]
    # The transpose of the force, in one pass or field by field: 8 bytes a cell of sums and 4 of its result, beside
    # potentials that are kept. The force itself takes a field more where none is kept. Beside halos both do.
    own = (1.2 * (x.cells > x.particles) + x.switch + x.pencils) * x.cells
    backwards = 4 * x.painted + own + x.stored if several else max(3 * x.painted + x.stored, force)
    particles = 2 * state + (2.5 if several else 2) * scalar
    return {
        "noise": scalar,
        "modes": scalar + (2.5 if several else 1.5) * lattice,
        "lpt": state + lpt * lattice,
        "step": state + force,
        "density": 3 * scalar + x.cells + (3 if several else 2) * x.painted,
        "power": x.cells + (3 if x.pencils else 2 if x.slabs else 1.5) * x.modes,
        "gradient": max(particles + kept * scalar + backwards, back * scalar),
    }


def _cpu(x: Load) -> dict[Stage, float]:
    scalar, lattice, halo = x.particles, x.lattice_modes, x.painted - x.cells
    several = x.slabs or x.pencils
    state = 6 * scalar
    padded = x.padded if several else x.cells
    # The branches of a switch don't work in place.
    force = 3 * x.painted + (max(state, 3 * scalar + padded) if x.switch else padded)
    # As jax 0.10 plans it; 0.12 takes a tenth less, of pencils a third.
    lpt = {1: 4.75 if several else 4, 2: 11 if x.pencils else 8.5 if several else 7, 3: 32 if x.pencils else 24.5}[
        x.order
    ]
    # Derivatives of LPT keep the potential, or its second derivatives; their own peak is that of some whole fields.
    kept, back = {1: (0, 0), 2: (6 if x.second_derivatives else 1, 26.5), 3: (2, 46.5)}[x.order]
    backwards = 3 * x.painted + padded + 0.5 * x.cells + x.switch * (9 * scalar + x.cells) + x.stored
    return {
        "noise": 4 * scalar,
        "modes": scalar + (3 if several else 2) * lattice,
        "lpt": state + lpt * lattice,
        "step": state + force,
        "density": 3 * scalar + x.cells + several * (x.painted + (4.5 if x.pencils else 1.5) * halo),
        "power": x.cells + 4 * x.modes,
        "gradient": max((15 + kept) * scalar + backwards, back * scalar),
    }
