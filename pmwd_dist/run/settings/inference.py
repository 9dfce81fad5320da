"""Settings of an inference: the sections of its TOML file, and the division of chains over devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, create_model

from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.sampled_parameters import KEYS, NAMES, PARAMETERS, split_index
from pmwd_dist.infer import priors
from pmwd_dist.infer.constants import ENERGY_VARIANCE, ENERGY_VARIANCES, LARGEST_DISPERSION, SLOPES
from pmwd_dist.infer.filtered_noise import SMALL_SCALE_NOISE
from pmwd_dist.infer.priors import Prior
from pmwd_dist.observe.assignment import Window
from pmwd_dist.observe.shells import Assignment
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.run.settings.section import OBSERVER, File, Listed, Place, Section, about, one_or_several
from pmwd_dist.run.settings.simulation import Settings
from pmwd_dist.run.settings.writing import Raw, toml_value

CHAINS = "chains"  # axis of the device mesh over which groups of chains are divided
_KINDS: Any = {"normal": priors.Normal, "uniform": priors.Uniform, "lognormal": priors.LogNormal}
_Numbers = float | Annotated[tuple[float, ...], Listed]


class PriorTable(Section):
    """The prior of a parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["normal", "uniform", "lognormal"]
    mean: _Numbers | None = None
    median: _Numbers | None = None
    sd: _Numbers | None = None
    low: _Numbers | None = None
    high: _Numbers | None = None

    @property
    def lengths(self) -> set[int]:
        """Numbers of values of the keys that are lists, one value for each of several parameters."""
        values = self.model_dump(exclude={"kind"}).values()
        return {len(value) for value in values if isinstance(value, tuple)}

    def build(self, index: int = 0) -> Prior:
        """The prior, or the one of a parameter of several; ValueError for keys of another kind, or wrong values."""
        make = _KINDS[self.kind]
        needed, others = ([x.name for x in fields(make) if (x.default is MISSING) is free] for free in (True, False))
        given = {name: value for name, value in self.model_dump(exclude={"kind"}).items() if value is not None}
        if not {*needed} <= given.keys() <= {*needed, *others}:
            more = f", and may have {' and '.join(others)}" if others else ""
            raise ValueError(f'of kind "{self.kind}" needs {" and ".join(needed)}{more}')
        return make(**{name: value[index] if isinstance(value, tuple) else value for name, value in given.items()})


def _prior(value: object) -> object:
    if value is None or isinstance(value, PriorTable):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a table with a kind")  # noqa: TRY004
    try:
        table = PriorTable.model_validate(value)
        if len(table.lengths) > 1:
            raise ValueError("has lists of several lengths")
        for i in range(*table.lengths or {1}):
            table.build(i)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = first["msg"].lower().removeprefix("value error, ")
        raise ValueError(f"has a wrong {first['loc'][0] if first['loc'] else 'value'}: {reason}") from error
    except ArgumentError as error:
        raise ValueError(f"has {error.argument} = {toml_value(error.value)}, which {error.reason}") from error
    return table


_Prior = Annotated[PriorTable | None, BeforeValidator(_prior)]


class Data(Section):
    """The observations."""

    file: File = about(
        'an .npy file, or "file.h5:/dataset": density in units of the mean, counts, '
        'convergence, of shape (sources, rays, rays), or shear, (sources, 2, rays, rays); "mock": drawn from the model',
        "mock",
    )
    mask: File | None = about("file with 1 where there are data, and 0 elsewhere", None, "survey.h5:/mask")
    counts: File | None = about(
        "file with the number of galaxies in each pixel, of all maps or one, in place of likelihood.density; pixels "
        "without any have no data",
        None,
        "survey.h5:/counts",
    )
    selection: File | None = about(
        "file with the fraction of the galaxies that is observed; of Poisson counts", None, "survey.h5:/selection"
    )
    bins: File | None = about(
        "file with the bin of each cell, 0, 1, 2, ..., such as shells of distance; each bin has a mean number of "
        "galaxies of its own, with the prior of nbar",
        None,
        "survey.h5:/bins",
    )
    templates: Annotated[tuple[File, ...], BeforeValidator(one_or_several)] | None = about(
        "files with fields T of systematics: predictions are multiplied by 1 + sum of A T, with amplitudes A that have "
        "the prior of template",
        None,
        ["survey.h5:/dust"],
    )
    truth: dict[str, float] | None = about(
        "parameters of the mock; default: values of [cosmology] and [model], else drawn from their priors",
        None,
        Raw("{ b1 = 0.8 }"),
    )


class Model(Section):
    """The forward model: gravity and galaxies."""

    gravity: Literal["nbody", "lpt", "linear"] = about("nbody (with time.steps), lpt or linear", "nbody")
    bias: Literal["lagrangian", "eulerian", "none"] = about("lagrangian, eulerian (b1 only) or none", "lagrangian")
    b1: float = about("first bias; of long waves it is 1 + b1 if lagrangian and b1 if eulerian", 1.0)
    b2: float = about("lagrangian bias of the squared density", 0.0)
    bs2: float = about("lagrangian bias of the squared tidal field", 0.0)
    bnabla2: float = about("lagrangian bias of the Laplacian of the density [(Mpc/h)^2]", 0.0)
    bphi: float = about("lagrangian bias of f_nl phi, the primordial potential", 0.0)
    bphidelta: float = about("lagrangian bias of f_nl phi delta", 0.0)
    b3: float = about("lagrangian bias of the cubed density", 0.0)
    bdeltas2: float = about("lagrangian bias of the density times the squared tidal field", 0.0)
    bs3: float = about("lagrangian bias of the cubed tidal field", 0.0)
    smoothing: float | None = about("radius of the filter of the lagrangian density [Mpc/h]", None, 4.0, gt=0, le=1e5)
    line_of_sight: Literal["x", "y", "z", "none"] = about("axis of the redshift distortions, or none", "z")
    window: Window = about(
        "window of the data on the mesh: cloud-in-cell; nearest, of galaxies counted in cells; or triangular",
        "cloud-in-cell",
    )
    light_cone: bool = about(
        "galaxies on the light cone of an observer in the box, at the distances of their redshifts in [cosmology]",
        False,
    )
    observer: Place | None = OBSERVER


def _positive_or_file(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError('must be a number greater than 0, or name a file, as "noise.h5:/sigma"')
    return float(value)


NOISES = {"gaussian": "sigma", "poisson": "nbar", "lensing": "density"}  # keys of the amount of noise, by kind
SHAPES = {"gaussian": ("slope", "noise_k2"), "poisson": ("dispersion",)}  # its optional keys that may have priors


class LikelihoodSection(Section):
    """The noise of the data."""

    kind: Literal["gaussian", "poisson", "lensing"] = about(
        "gaussian (densities), poisson (counts) or lensing (maps of the sources of [observe.light_cone])", "gaussian"
    )
    quantity: Literal["convergence", "shear"] = about("maps of lensing: convergence or shear", "convergence")
    sigma: Annotated[float | File | None, BeforeValidator(_positive_or_file)] = about(
        "gaussian standard deviation in a cell, a number or a file with one for each, unless it has a prior", None, 0.5
    )
    k_max: float | None = about(
        "largest wavenumber that is compared, of a gaussian [h/Mpc]; default: all", None, 0.3, gt=0
    )
    small_scale_noise: float = about(
        "standard deviation of the noise of modes beyond k_max with a mask, a file of sigma or a slope, in units of "
        "sigma; its power should be that of the density at k_max or more",
        SMALL_SCALE_NOISE,
        ge=0.1,
        le=100,
    )
    slope: float | None = about(
        "change s of a gaussian variance with the predicted density, sigma^2 (1 + s delta), unless it has a prior; "
        "default: 0",
        None,
        1.0,
        ge=SLOPES[0],
        le=SLOPES[1],
    )
    noise_k2: float | None = about(
        "change c of a gaussian power with the wavenumber, sigma^2 (1 + c k^2) [(Mpc/h)^2], unless it has a prior; "
        "default: 0",
        None,
        10.0,
    )
    nbar: float | None = about(
        "mean number of galaxies in a cell, of poisson, unless it has a prior", None, 2.0, gt=0, le=1e6
    )
    dispersion: float | None = about(
        "variance of counts beyond poisson's, in units of the squared mean, unless it has a prior; default: 0",
        None,
        0.2,
        gt=0,
        le=LARGEST_DISPERSION,
    )
    density: Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(one_or_several)] | None = about(
        "lensed galaxies in a square arcminute, of lensing; one number, or one for each source; or data.counts",
        None,
        10.0,
    )
    ellipticity: float = about("standard deviation of a component of their ellipticity", 0.26, gt=0)

    @property
    def maps(self) -> bool:
        """Whether the data are maps of a light cone, in place of a field on the mesh."""
        return self.kind == "lensing"


_ROWS: Any = {
    key: (_Prior, about(f"prior of {row.note or key}", None, Raw(f"{{ {row.prior} }}")))
    for key, row in ((key, PARAMETERS[name]) for key, name in NAMES.items())
}


class Priors(create_model("Priors", __base__=Section, **_ROWS)):
    """The parameters that are sampled. Others are fixed, but omega_m moves with omega_b or m_nu alone."""

    @property
    def given(self) -> dict[str, PriorTable]:
        """Those that are listed, by their keys."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}

    def distributions(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Their distributions, by the names of the library: NAME_0, NAME_1, ... of those with several numbers."""
        found = dict[str, Any]()
        for name, table in ((NAMES[key], table) for key, table in self.given.items()):
            each = [f"{name}_{i}" for i in range(counts[name])] if name in counts else [name]
            found |= {each_name: table.build(i) for i, each_name in enumerate(each)}
        return found

    def distribution(self, name: str) -> Any:
        """The distribution of a parameter, by its name in the library."""
        stem, index = split_index(name)
        return self.given[KEYS[stem]].build(int(index or 0))


class Start(Section):
    """Starting positions of the chains."""

    begin: Literal["wiener", "prior", "map"] = about(
        "wiener: draws given the data in linear theory, with parameters half as far from the medians as in a draw of "
        "the prior; prior: draws; map: the largest density over the noise",
        "wiener",
    )
    map_steps: int = about("number of steps of the optimiser", 100, ge=1)


class Sampler(Section):
    """The chains."""

    method: Literal["mclmc", "hmc"] = about(
        "mclmc (one gradient a step) or hmc (a step is a trajectory that is accepted or rejected)", "mclmc"
    )
    chains: int = about("number of chains", 4, ge=1, le=1024)
    chain_devices: int | None = about(
        "devices of a chain, or of one of several groups of chains, divided by devices.pdims; default: all chains are "
        "one batch on the same devices",
        None,
        1,
        ge=1,
    )
    tuning_steps: int = about("number of tuning steps, which find the preconditioner and the step size", 1000, ge=40)
    tuning_from: File | None = about(
        "folder of an inference of the same model with other data, or a file of SavedTuning.save, for step, L and "
        "preconditioner; the chains settle in tuning_steps",
        None,
        "mock_0",
    )
    energy_variance: float = about(
        "energy error of a step of mclmc per dimension, at which its tuning aims; less where it differs along a chain",
        ENERGY_VARIANCE,
        ge=ENERGY_VARIANCES[0],
        le=ENERGY_VARIANCES[1],
    )
    steps: int = about("number of steps of each chain; may be raised later", 4000, ge=1)
    thin: int = about("number of steps from one saved draw to the next", 1, ge=1)
    chunk: int = about("draws from one write to disk to the next; what a kill can lose", 100, ge=4)


class Checks(Section):
    """Criteria of convergence."""

    r_hat: float = about("largest R-hat of a parameter", 1.01, gt=1)
    ess: float = about("smallest effective sample size of a parameter, bulk and tail", 400.0, gt=0)
    bias: float = about("largest discretisation bias of a parameter by MCLMC [standard deviations]", 0.2, gt=0)
    failed_simulations: float = about("share of the steps of a chunk that may fail; more end the run", 0.05, ge=0, le=1)


class InferenceSettings(Settings):
    """All sections of the file of an inference; noise.seed seeds all random numbers."""

    observables = ("light_cone",)
    shell_assignment: ClassVar[Assignment] = "linear"  # a continuous log density
    example: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "box": {"size": 320.0, "mesh": 32},
        "likelihood": {"sigma": 0.5},
        "priors": {
            "sigma8": {"kind": "normal", "mean": 0.8, "sd": 0.15, "low": 0.1},
            "omega_m": {"kind": "normal", "mean": 0.3, "sd": 0.05, "low": 0.06},
            "b1": {"kind": "uniform", "low": 0.0, "high": 4.0},
        },
    }

    data: Data
    model: Model
    likelihood: LikelihoodSection
    priors: Priors
    start: Start
    sampler: Sampler
    checks: Checks

    def divide(self, shapes: Sequence[Shape3], **options: Any) -> Decomposition | None:
        """The division of fields over the devices of a chain, on a mesh with an axis of chains for several groups.

        None if their number is not given. Raises ArgumentError for too few devices, or groups that can't share chains.
        """
        size, pdims = self.sampler.chain_devices, self.devices.pdims
        if size is None:
            return None
        groups = _groups(size, self.sampler.chains)
        px, py = default_decomposition(shapes, size).pdims if pdims is None else pdims
        if groups == 1:
            return Decomposition((px, py), **options)
        devices = np.array(jax.devices()[: groups * size], dtype=object).reshape(groups, px, py)
        mesh = Mesh(devices, (CHAINS, "x", "y"), axis_types=(AxisType.Auto,) * 3)
        return Decomposition(mesh=mesh, spec=PartitionSpec("x", "y"), **options)  # vmap fails with P(), of one device


def _groups(size: int, chains: int) -> int:
    """Number of groups of devices, with equally many chains each."""
    count = jax.device_count()
    even = " or ".join(str(n) for n in range(1, count + 1) if count % n == 0 and chains % (count // n) == 0)
    if size > count:
        raise ArgumentError("chain_devices", size, f"needs {size} devices, and there are {count}", f"use {even}")
    groups = count // size
    if chains % groups:
        low = chains // groups * groups
        more = f"{low} or {low + groups}" if low else f"{groups}"
        constraint = f"makes {groups} groups of {count} devices, and sampler.chains = {chains} is no multiple of that"
        raise ArgumentError("chain_devices", size, constraint, f"use {even}, or sampler.chains = {more}")
    return groups
