"""Chains as ArviZ keeps them: a netCDF 4 file with the groups posterior and sample_stats, by h5py alone."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from pmwd_dist._files import atomic_write
from pmwd_dist.infer.chains import Chain


def save_arviz(chain: Chain, path: str | Path) -> Path:
    """Write a chain for ArviZ: `arviz.from_netcdf(path)`, or `xarray.open_datatree(path)`.

    The group posterior has the parameters, and the white noise of the draws of which it was kept along a dimension of
    its own, noise_draw; sample_stats has lp, the log density, and energy_change, of the step before each draw.

    Args:
      chain: from `sample` or `load_chain`.
      path: of the file.

    Raises:
      OSError: the file can't be written.
    """
    path = Path(path)
    count, draws = chain.logdensity.shape
    posterior: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {
        name: (x, ("chain", "draw")) for name, x in chain.parameters.items()
    }
    sizes = {"chain": count, "draw": draws}
    if chain.noise is not None:
        noise = np.moveaxis(chain.noise, 1, 0)
        posterior["noise"] = noise, ("chain", "noise_draw", "x", "y", "z")
        sizes |= dict(zip(("noise_draw", "x", "y", "z"), noise.shape[1:], strict=True))
    thin = chain.energy_change.shape[1] // draws
    stats = {
        "lp": (chain.logdensity, ("chain", "draw")),
        "energy_change": (chain.energy_change[:, thin - 1 :: thin], ("chain", "draw")),
    }
    with atomic_write(path) as aside, h5py.File(aside, "w", track_order=True) as file:
        _write_group(file.create_group("posterior", track_order=True), posterior, sizes)
        _write_group(file.create_group("sample_stats", track_order=True), stats, {"chain": count, "draw": draws})
    return path


def _write_group(
    group: h5py.Group, variables: dict[str, tuple[np.ndarray, tuple[str, ...]]], sizes: dict[str, int]
) -> None:
    """Write variables with coordinates, as netCDF 4 has them: dimension scales that count from 0."""
    group.attrs["inference_library"] = "pmwd_dist"
    for index, (name, size) in enumerate(sizes.items()):
        scale = group.create_dataset(name, data=np.arange(size))
        scale.make_scale(name)
        scale.attrs["_Netcdf4Dimid"] = np.int32(index)
    for name, (values, dimensions) in variables.items():
        data = group.create_dataset(name, data=values)
        for axis, dimension in enumerate(dimensions):
            data.dims[axis].attach_scale(group[dimension])
