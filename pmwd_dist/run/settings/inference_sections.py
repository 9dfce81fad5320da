"""The sections of the TOML file of an inference: data, model, likelihood, priors, start, sampler and checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, ValidationError, create_model

from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.sampled_parameters import NAMES, PARAMETERS
from pmwd_dist.infer import priors
from pmwd_dist.infer.constants import ENERGY_VARIANCE
from pmwd_dist.infer.priors import Prior
from pmwd_dist.run.settings import likelihoods
from pmwd_dist.run.settings.section import File, Section, about
from pmwd_dist.run.settings.writing import Raw, toml_value

_KINDS: dict[str, tuple[Any, set[str], set[str]]] = {
    "normal": (priors.Normal, {"mean", "sd"}, {"low", "high"}),
    "uniform": (priors.Uniform, {"low", "high"}, set()),
    "lognormal": (priors.LogNormal, {"median", "sd"}, set()),
}


class PriorTable(Section):
    """The prior of a parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["normal", "uniform", "lognormal"]
    mean: float | None = None
    median: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None

    def build(self) -> Prior:
        """The prior.

        Raises:
          ValueError: keys that this kind lacks or has not, or values out of range.
        """
        make, needed, allowed = _KINDS[self.kind]
        given = {name: value for name, value in self.model_dump(exclude={"kind"}).items() if value is not None}
        if not needed <= given.keys() <= needed | allowed:
            takes = " and ".join(sorted(needed)) + (
                f", and may have {' and '.join(sorted(allowed))}" if allowed else ""
            )
            raise ValueError(f'of kind "{self.kind}" needs {takes}')
        return make(**given)


def _prior(value: object) -> object:
    if value is None or isinstance(value, PriorTable):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a table with a kind")  # noqa: TRY004
    try:
        table = PriorTable.model_validate(value)
        table.build()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(
            f"has a wrong {'.'.join(map(str, first['loc'])) or 'value'}: {first['msg'].lower()}"
        ) from error
    except ArgumentError as error:
        raise ValueError(f"has {error.argument} = {toml_value(error.value)}, which {error.reason}") from error
    return table


_Prior = Annotated[PriorTable | None, BeforeValidator(_prior)]


class Data(Section):
    """The observations."""

    file: File = about(
        'an .npy file, "file.h5:/dataset", "store.zarr:/array" or "array.zarr": density in units of the mean, counts, '
        'or convergence, of shape (sources, rays, rays); "mock": drawn from the model',
        "mock",
    )
    mask: File | None = about("file with 1 where there are data, and 0 elsewhere", None, "survey.h5:/mask")
    selection: File | None = about(
        "file with the fraction of the galaxies that is observed; of Poisson counts", None, "survey.h5:/selection"
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
    smoothing: float | None = about("radius of the filter of the lagrangian density [Mpc/h]", None, 4.0, gt=0, le=1e5)
    line_of_sight: Literal["x", "y", "z", "none"] = about("axis of the redshift distortions, or none", "z")


class _Kind(Section):
    kind: Literal["gaussian", "poisson", "lensing"] = about(
        "gaussian (densities), poisson (counts) or lensing (convergence of the sources of [observe.light_cone])",
        "gaussian",
    )


class LikelihoodSection(likelihoods.Lensing.Keys, likelihoods.Poisson.Keys, likelihoods.Gaussian.Keys, _Kind):
    """The noise of the data."""

    @property
    def rules(self) -> likelihoods.Kind:
        """Rules of the kind."""
        return likelihoods.KINDS[self.kind]


_ROWS: Any = {
    key: (_Prior, about(f"prior of {row.note or key}", None, Raw(f"{{ {row.prior} }}")))
    for key, row in ((key, PARAMETERS[name]) for key, name in NAMES.items())
}


class Priors(create_model("Priors", __base__=Section, **_ROWS)):
    """The parameters that are sampled; those that are not listed are fixed."""

    @property
    def given(self) -> dict[str, PriorTable]:
        """Those that are listed, by their keys."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}

    @property
    def distributions(self) -> dict[str, Any]:
        """Their distributions, by the names of the library."""
        return {NAMES[name]: table.build() for name, table in self.given.items()}


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
    energy_variance: float = about(
        "energy error of a step of mclmc per dimension, at which its tuning aims; less where it differs along a chain",
        ENERGY_VARIANCE,
        gt=0,
        le=2e-3,
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
