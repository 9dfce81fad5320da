"""The communication backend of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pmwd_dist.config import Config
from pmwd_dist.ops.stencil import WIDTH
from pmwd_dist.parallel.fft import spectrum_shape
from pmwd_dist.pm.paint import halo_widths


def communication(config: Config) -> AbstractContextManager[None]:
    """The communication backend, open for all fields, spectra and halos of a run. Collective."""
    decomposition = config.decomposition
    fields = {config.mesh_shape, config.particle_shape}
    spectra = {spectrum_shape(shape, decomposition) for shape in fields}
    block = decomposition.block(config.mesh_shape)
    widths = [n for n, parts in zip(block, decomposition.pdims, strict=False) if parts > 1]
    halo = min([halo_widths(config)[-1] + 1 + WIDTH, *widths])  # cuDecomp's halos end at the next neighbour
    return decomposition.opened(sorted(fields | spectra), halo=halo)
