"""Kinds of likelihoods: one class has the keys of a kind, its rules, the likelihood that it makes and its warnings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field

from pmwd_dist.run.settings.section import File, Section, about, one_or_several

if TYPE_CHECKING:
    from pmwd_dist import infer
    from pmwd_dist.run.settings.inference import InferenceSettings


class Kind(ABC):
    """A kind of likelihood. Abstract.

    Attributes:
      noise: key of [likelihood] with the amount of noise.
      sampled: whether the amount of noise may have a prior instead.
      maps: whether the data are maps of a light cone, in place of a field on the mesh.
    """

    noise: ClassVar[str]
    sampled: ClassVar[bool] = True
    maps: ClassVar[bool] = False

    def key_problems(self, settings: InferenceSettings, *, chosen: bool) -> Iterator[str]:
        """Problems of the noise and of data: keys that are missing, or of a kind that is not chosen."""
        name, likelihood = self.noise, settings.likelihood
        fixed, free = getattr(likelihood, name) is not None, name in settings.priors.given
        if self.sampled and chosen and fixed == free:
            missing = f"missing; add for example `{name} = 0.5` to [likelihood], or a prior"
            yield f"likelihood.{name}: {'is fixed, and has a prior; leave one of them out' if fixed else missing}"
        for section, given in (("likelihood", fixed), ("priors", free)):
            if self.sampled and given and not chosen:
                yield f"{section}.{name}: a {likelihood.kind} likelihood has none; leave it out"

    def option_problems(self, settings: InferenceSettings, *, chosen: bool) -> Iterator[str]:
        """Problems of the other keys."""
        del settings, chosen
        yield from ()

    @abstractmethod
    def make(self, settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
        """The likelihood of these settings, a forward model and the arrays of files, by key."""

    @abstractmethod
    def unusual(self, settings: InferenceSettings, data: np.ndarray, selection: np.ndarray | None) -> str | None:
        """Warning about data where there are any, and their selection, in other units than the model."""


def _positive_or_file(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError('must be a number greater than 0, or name a file, as "noise.h5:/sigma"')
    return float(value)


class Gaussian(Kind):
    """Densities with Gaussian noise."""

    noise = "sigma"

    class Keys(Section):
        """Keys of this kind."""

        sigma: Annotated[float | File | None, BeforeValidator(_positive_or_file)] = about(
            "gaussian standard deviation in a cell, a number or a file with one for each, unless it has a prior",
            None,
            0.5,
        )
        k_max: float | None = about(
            "largest wavenumber that is compared, of a gaussian [h/Mpc]; default: all", None, 0.3, gt=0
        )

    def option_problems(self, settings: InferenceSettings, *, chosen: bool) -> Iterator[str]:
        """Problems of k_max."""
        if settings.likelihood.k_max is None:
            return
        if not chosen:
            yield 'likelihood.k_max: is of a gaussian; leave it out, or use likelihood.kind = "gaussian"'
        if settings.data.mask is not None:
            yield "likelihood.k_max: can't be used with data.mask, which couples modes; leave one of them out"
        if isinstance(settings.likelihood.sigma, str):
            yield "likelihood.k_max: can't be used with a file of likelihood.sigma, which couples modes; use one"

    def make(self, settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
        """Gaussian noise in each cell."""
        from pmwd_dist import infer  # slow to import, and not needed to read settings

        del forward
        free, sigma = "sigma" in settings.priors.given, data.get("likelihood.sigma", settings.likelihood.sigma)
        return infer.Gaussian("sigma" if free else sigma, mask=data.get("data.mask"), k_max=settings.likelihood.k_max)

    def unusual(self, settings: InferenceSettings, data: np.ndarray, selection: np.ndarray | None) -> str | None:
        """Warning about a mean far from 1."""
        del settings, selection
        mean = float(data.mean())
        return None if 0.5 < mean < 2 else f"the mean is {mean:.3g}; densities are in units of the mean, 1 + delta"


class Poisson(Kind):
    """Counts of galaxies."""

    noise = "nbar"

    class Keys(Section):
        """Keys of this kind."""

        nbar: float | None = about(
            "mean number of galaxies in a cell, of poisson, unless it has a prior", None, 2.0, gt=0
        )

    def key_problems(self, settings: InferenceSettings, *, chosen: bool) -> Iterator[str]:
        """Problems of nbar and of the selection."""
        yield from super().key_problems(settings, chosen=chosen)
        if settings.data.selection is not None and not chosen:
            yield 'data.selection: is of counts; use likelihood.kind = "poisson", or data.mask'

    def make(self, settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
        """Counts in each cell."""
        from pmwd_dist import infer  # slow to import, and not needed to read settings

        del forward
        nbar = "nbar" if "nbar" in settings.priors.given else settings.likelihood.nbar
        return infer.Poisson(nbar, mask=data.get("data.mask"), selection=data.get("data.selection"))

    def unusual(self, settings: InferenceSettings, data: np.ndarray, selection: np.ndarray | None) -> str | None:
        """Warning about a mean far from nbar."""
        if settings.likelihood.nbar is None:
            return None
        mean, expected = float(data.mean()), settings.likelihood.nbar
        if selection is not None:
            expected *= float(selection.mean())
        if 0.5 < mean / expected < 2:
            return None
        return f"the mean is {mean:.3g} galaxies in a cell, and likelihood.nbar expects {expected:.3g}"


class Lensing(Kind):
    """Maps of the convergence of sources behind a light cone, with shape noise."""

    noise, sampled, maps = "density", False, True

    class Keys(Section):
        """Keys of this kind."""

        density: Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(one_or_several)] | None = about(
            "lensed galaxies in a square arcminute, of lensing; one number, or one for each source", None, 10.0
        )
        ellipticity: float = about("standard deviation of a component of their ellipticity", 0.26, gt=0)

    def option_problems(self, settings: InferenceSettings, *, chosen: bool) -> Iterator[str]:
        """Problems of lensing and light cones."""
        likelihood, model, cone = settings.likelihood, settings.model, settings.observe.light_cone
        if not chosen:
            if cone is not None:
                yield 'observe.light_cone: is of likelihood.kind = "lensing"; leave it out'
            if likelihood.density is not None:
                yield 'likelihood.density: is of lensed galaxies; use likelihood.kind = "lensing", or leave it out'
            return
        if likelihood.density is None:
            yield "likelihood.density: missing; add for example `density = 10.0` to [likelihood]"
        if cone is None:
            yield 'likelihood.kind = "lensing": needs a section [observe.light_cone], with sources'
        if model.gravity != "nbody":
            yield f'model.gravity = "{model.gravity}": a light cone is filled during a run; use "nbody"'
        if model.bias != "none" or model.line_of_sight != "none":
            yield 'model.bias: light is bent by all matter; use bias = "none" and line_of_sight = "none"'

    def make(self, settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
        """Shape noise of each map."""
        from pmwd_dist import infer  # slow to import, and not needed to read settings

        density, ellipticity = settings.likelihood.density, settings.likelihood.ellipticity
        assert density is not None
        number = density[0] if len(density) == 1 else density
        return infer.ShapeNoise(forward, number, ellipticity=ellipticity, mask=data.get("data.mask"))

    def unusual(self, settings: InferenceSettings, data: np.ndarray, selection: np.ndarray | None) -> str | None:
        """Warning about a convergence beyond 1."""
        del settings, selection
        largest = float(np.abs(data).max())
        return f"values reach {largest:.3g}; a convergence is far below 1" if largest > 1 else None


KINDS: dict[str, Kind] = {"gaussian": Gaussian(), "poisson": Poisson(), "lensing": Lensing()}
