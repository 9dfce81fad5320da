"""Chains as ArviZ keeps them: a netCDF 4 file with the groups posterior and sample_stats, by h5py alone."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from pmwd_dist._files import atomic_write
from pmwd_dist.infer.chains import Chain

Variables = dict[str, tuple[np.ndarray, tuple[str, ...]]]


def save_arviz(chain: Chain, path: str | Path) -> Path:
    """Write a chain for ArviZ: `arviz.from_netcdf(path)`, or `xarray.open_datatree(path)`.

    The group posterior has the parameters; sample_stats has lp, the log density, energy_change, of the step before each
    draw, and projection and power of the modes of the white noise at wavenumbers k [h/Mpc] (`infer.scales`). The white
    noise itself, of the draws of which it was kept, is in the group noise, with the numbers of these draws: functions
    that go over a posterior expect all draws of what is in it.

    Args:
      chain: from `sample` or `load_chain`.
      path: of the file.

    Raises:
      OSError: the file can't be written.
    """
    path = Path(path)
    count, draws = chain.logdensity.shape
    coordinates = {"chain": np.arange(count), "draw": np.arange(draws)}
    thin = chain.energy_change.shape[1] // draws
    stats: Variables = {
        "lp": (chain.logdensity, ("chain", "draw")),
        "energy_change": (chain.energy_change[:, thin - 1 :: thin], ("chain", "draw")),
    }
    of_stats = dict(coordinates)
    for name, table in (("projection", chain.projections), ("power", chain.powers)):
        if table:
            stats[name] = np.stack(list(table.values()), axis=-1), ("chain", "draw", "k")
            of_stats["k"] = np.array(list(table))
    posterior: Variables = {name: (x, ("chain", "draw")) for name, x in chain.parameters.items()}
    with atomic_write(path) as aside, h5py.File(aside, "w", track_order=True) as file:
        _write_group(file, "posterior", posterior, coordinates)
        _write_group(file, "sample_stats", stats, of_stats)
        if chain.noise is not None:
            kept = np.moveaxis(chain.noise, 1, 0)
            every = draws // kept.shape[1]
            cells = {axis: np.arange(size) for axis, size in zip("xyz", kept.shape[2:], strict=True)}
            of_noise = coordinates | {"draw": np.arange(every - 1, draws, every)} | cells
            _write_group(file, "noise", {"noise": (kept, tuple(of_noise))}, of_noise)
    return path


def _write_group(file: h5py.File, path: str, variables: Variables, coordinates: dict[str, np.ndarray]) -> None:
    """Write variables with coordinates, as netCDF 4 has them: dimension scales."""
    group = file.create_group(path, track_order=True)
    group.attrs["inference_library"] = "pmwd_dist"
    for index, (name, values) in enumerate(coordinates.items()):
        scale = group.create_dataset(name, data=values)
        scale.make_scale(name)
        scale.attrs["_Netcdf4Dimid"] = np.int32(index)
    for name, (values, dimensions) in variables.items():
        data = group.create_dataset(name, data=values)
        for axis, dimension in enumerate(dimensions):
            data.dims[axis].attach_scale(group[dimension])
