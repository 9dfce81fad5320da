"""Chains for other libraries: ArviZ, as netCDF 4 files or zarr stores, and GetDist (Lewis 2019, 1910.13970)."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write, exists, temporary
from pmwd_dist.infer.chain.chain import Chain

Coordinates = dict[str, np.ndarray]
Variables = dict[str, tuple[np.ndarray, tuple[str, ...]]]
_LIBRARY = {"inference_library": "pmwd_dist"}


def save_arviz(chain: Chain, path: str | Path) -> Path:
    """Write a chain for ArviZ: `arviz.from_netcdf(path)`, or of files and stores `xarray.open_datatree(path)`.

    The group posterior has the parameters; sample_stats has lp, the log density, energy_change, of the step before each
    draw, and projection and power of the modes of the white noise at wavenumbers k [h/Mpc] (`infer.scales`). The white
    noise itself, of the draws of which it was kept, is in the group noise, with the numbers of these draws: functions
    that go over a posterior expect all draws of what is in it. In a zarr store each of its fields is a file of its own.

    Args:
      chain: from `sample` or `load_chain`.
      path: of the file, or of a zarr store, if it ends with .zarr.

    Raises:
      ValueError: there is something at the path of a store, or h5netcdf or zarr, for stores, is not installed.
      OSError: it can't be written.
    """
    path = Path(path)
    library, other = ("zarr", ".nc") if path.suffix == ".zarr" else ("h5netcdf", ".zarr")
    if find_spec(library) is None:
        extra = "zarr" if library == "zarr" else "arviz"
        raise ArgumentError(
            "path", str(path), f"needs {library}", f"`pip install '.[{extra}]'`, or end it with {other}"
        )
    if library == "zarr":
        if exists(path):
            raise ArgumentError("path", str(path), "is there", "remove it, or use another path")
        _write_store(path, _groups(chain))
    else:
        with atomic_write(path) as aside:
            _write_netcdf(aside, _groups(chain))
    return path


def as_getdist(chain: Chain, **options: Any) -> Any:
    """The parameters of a chain as `getdist.MCSamples`, each chain one of its own, with minus the log density.

    Args:
      chain: from `sample` or `load_chain`.
      options: of `MCSamples`, such as labels=["b_1"] in the order of `chain.parameters`, or, of parameters whose
        prior ends somewhere, ranges={"sigma8": (0.1, None)}, without which densities are smoothed beyond.

    Raises:
      ValueError: a chain without parameters.
      ImportError: getdist is not installed.
    """
    from getdist import MCSamples

    if not chain.parameters:
        raise ArgumentError("chain.parameters", {}, "is empty", "the white noise alone has no contours")
    names = list(chain.parameters)
    samples = np.stack([chain.parameters[name] for name in names], axis=-1)
    given: dict[str, Any] = {"names": names, "labels": names, "sampler": "mcmc"}
    return MCSamples(samples=list(samples), loglikes=list(-chain.logdensity), **(given | options))


def _groups(chain: Chain) -> dict[str, tuple[Variables, Coordinates]]:
    """Variables and coordinates of each group."""
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
    groups = {"posterior": (posterior, coordinates), "sample_stats": (stats, of_stats)}
    if chain.noise is not None:
        kept = np.moveaxis(chain.noise, 1, 0)
        every = draws // kept.shape[1]
        cells = {axis: np.arange(size) for axis, size in zip("xyz", kept.shape[2:], strict=True)}
        of_noise = coordinates | {"draw": np.arange(every - 1, draws, every)} | cells
        groups["noise"] = {"noise": (kept, tuple(of_noise))}, of_noise
    return groups


def _write_netcdf(path: Path, groups: dict[str, tuple[Variables, Coordinates]]) -> None:
    import h5netcdf

    with h5netcdf.File(path, "w") as file:
        for name, (variables, coordinates) in groups.items():
            group = file.create_group(name)
            group.attrs.update(_LIBRARY)
            group.dimensions = {name: len(values) for name, values in coordinates.items()}
            each: Variables = {name: (values, (name,)) for name, values in coordinates.items()} | variables
            for variable, (values, dimensions) in each.items():
                group.create_variable(variable, dimensions, data=values)


def _write_store(path: Path, groups: dict[str, tuple[Variables, Coordinates]]) -> None:
    """Write a store with named dimensions; if that fails, nothing is left."""
    import zarr

    aside = temporary(path)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        store: Any = zarr.open_group(aside, mode="w", zarr_format=2)  # of which summaries of all metadata are part
        for path_of_group, (variables, coordinates) in groups.items():
            group = store.create_group(path_of_group, attributes=_LIBRARY)
            each = {name: (values, (name,)) for name, values in coordinates.items()} | variables
            for name, (values, dimensions) in each.items():
                chunks = (1, 1, *values.shape[2:]) if len(dimensions) > 3 else values.shape
                # Without a value to fill with, which would be read as missing, zeros must be written; and codecs have
                # limits that fields exceed.
                storage: Any = {"fill_value": None, "config": {"write_empty_chunks": True}, "compressors": None}
                data = group.create_array(name, data=values, chunks=chunks, **storage)
                data.attrs["_ARRAY_DIMENSIONS"] = list(dimensions)  # as xarray names them
        zarr.consolidate_metadata(aside)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
