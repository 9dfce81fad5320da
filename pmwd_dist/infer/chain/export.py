"""Chains for other libraries: xarray, for ArviZ and for files, and GetDist (Lewis 2019, 1910.13970)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from pmwd_dist._checks import check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.sampled_parameters import symbol_of
from pmwd_dist.infer.chain.chain import Chain

_FROM = "must be an infer.Chain", "infer.load_chain reads one"


def as_arviz(chain: Chain) -> Any:
    """The chain as `xarray.DataTree`, the format of ArviZ, or as `arviz.InferenceData` if ArviZ is older than 1.0.

    The group posterior has the parameters. The group sample_stats has lp, the log density; energy_change, the energy
    error of the step before each draw; and projection and power of the white noise at wavenumbers k [h/Mpc]
    (`infer.bands`). The white noise itself is in the group noise with its draws, since functions of a posterior expect
    all draws of each variable. Methods of the result write files, netCDF and zarr among them.

    Args:
      chain: chain from `sample` or `load_chain`.

    Raises:
      ImportError: xarray is not installed.

    Examples:
      >>> infer.as_arviz(chain).to_netcdf("chain.nc")
    """
    from xarray import Dataset, DataTree

    check_type(chain, Chain, "chain", *_FROM)
    count, draws = chain.logdensity.shape
    drawn, coordinates = ("chain", "draw"), {"chain": np.arange(count), "draw": np.arange(draws)}
    thin = chain.energy_change.shape[1] // draws
    stats: Any = {"lp": (drawn, chain.logdensity), "energy_change": (drawn, chain.energy_change[:, thin - 1 :: thin])}
    if chain.powers:
        for name, table in (("projection", chain.projections), ("power", chain.powers)):
            stats[name] = (*drawn, "k"), np.stack(list(table.values()), axis=-1)
        stats["k"] = list(chain.powers)
    groups = {
        "posterior": Dataset({name: (drawn, x) for name, x in chain.parameters.items()}, coordinates),
        "sample_stats": Dataset(stats, coordinates),
    }
    if chain.noise is not None:
        every = draws // len(chain.noise)
        last = coordinates | {"draw": np.arange(every - 1, draws, every)}
        groups["noise"] = Dataset({"noise": ((*drawn, "x", "y", "z"), np.moveaxis(chain.noise, 1, 0))}, last)
    tree = DataTree.from_dict(groups)
    with suppress(PackageNotFoundError):
        if int(version("arviz").split(".")[0]) < 1:  # the last for Python 3.11, whose figures take no tree
            return import_module("arviz").from_datatree(tree)
    return tree


def as_getdist(chain: Chain, *, labels: Mapping[str, str] | None = None, **options: Any) -> Any:
    """The parameters of each chain as `getdist.MCSamples`, with minus the log density.

    Args:
      chain: chain from `sample` or `load_chain`.
      labels: LaTeX of parameters by name, without dollars; default: the symbols of reports.
      options: options of `MCSamples`. Parameters with a bounded prior need ranges={"sigma8": (0.1, None)}, or densities
        are smoothed beyond the bounds.

    Raises:
      ValueError: a chain without parameters, or labels that are not by names of its parameters.
      ImportError: getdist is not installed.
    """
    from getdist import MCSamples

    check_type(chain, Chain, "chain", *_FROM)
    if not chain.parameters:
        raise ArgumentError("chain.parameters", {}, "is empty", "the white noise alone has no contours")
    names = list(chain.parameters)
    if not isinstance(labels := {} if labels is None else labels, Mapping) or set(labels) - set(names):
        remedy = r'pass {"sigma8": r"\sigma_8"}'
        raise ArgumentError("labels", labels, f"must be a mapping from some of the parameters {names}", remedy)
    symbols = [labels.get(name, symbol_of(name) or name) for name in names]
    samples = np.stack([chain.parameters[name] for name in names], axis=-1)
    default: dict[str, Any] = {"sampler": "mcmc"}
    loglikes = list(-chain.logdensity)
    return MCSamples(samples=list(samples), loglikes=loglikes, names=names, labels=symbols, **(default | options))
