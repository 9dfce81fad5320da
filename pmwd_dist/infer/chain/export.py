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
    """Write a chain for ArviZ, to open with `arviz.from_netcdf(path)` or `xarray.open_datatree(path)`.

    The group posterior has the parameters. The group sample_stats has lp, the log density; energy_change, the energy
    error of the step before each draw; and projection and power of the white noise at wavenumbers k [h/Mpc]
    (`chain.scales`). The white noise itself is in the group noise with its draws, since functions of a posterior expect
    all draws of each variable. A zarr store has one file for each of these fields.

    Args:
      chain: chain from `sample` or `load_chain`.
      path: path of the file, or of a zarr store if it ends with .zarr.

    Raises:
      ValueError: the path of a store exists, or h5netcdf, or zarr for stores, is not installed.
      OSError: the file can't be written.
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
    """The parameters of each chain as `getdist.MCSamples`, with minus the log density.

    Args:
      chain: chain from `sample` or `load_chain`.
      options: options of `MCSamples`, such as labels=["b_1"] in the order of `chain.parameters`. Parameters with a
        bounded prior need ranges={"sigma8": (0.1, None)}, or densities are smoothed beyond the bounds.

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
    """Variables, coordinates among them, and coordinates of each group."""
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
    as_variables = {name: {axis: (x, (axis,)) for axis, x in axes.items()} for name, (_, axes) in groups.items()}
    return {name: (as_variables[name] | variables, axes) for name, (variables, axes) in groups.items()}


def _write_netcdf(path: Path, groups: dict[str, tuple[Variables, Coordinates]]) -> None:
    import h5netcdf

    with h5netcdf.File(path, "w") as file:
        for name, (variables, coordinates) in groups.items():
            group = file.create_group(name)
            group.attrs.update(_LIBRARY)
            group.dimensions = {name: len(values) for name, values in coordinates.items()}
            for variable, (values, dimensions) in variables.items():
                group.create_variable(variable, dimensions, data=values)


def _write_store(path: Path, groups: dict[str, tuple[Variables, Coordinates]]) -> None:
    """Write a store with named dimensions; if that fails, nothing is left."""
    import zarr

    aside = temporary(path)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        store: Any = zarr.open_group(aside, mode="w", zarr_format=2)  # has a summary of all metadata
        for path_of_group, (variables, _) in groups.items():
            group = store.create_group(path_of_group, attributes=_LIBRARY)
            for name, (values, dimensions) in variables.items():
                chunks = (1, 1, *values.shape[2:]) if len(dimensions) > 3 else values.shape
                # A fill value would be read as missing, so zeros must be written. Fields exceed the limits of codecs.
                storage: Any = {"fill_value": None, "config": {"write_empty_chunks": True}, "compressors": None}
                data = group.create_array(name, data=values, chunks=chunks, **storage)
                data.attrs["_ARRAY_DIMENSIONS"] = list(dimensions)  # as xarray names them
        zarr.consolidate_metadata(aside)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
