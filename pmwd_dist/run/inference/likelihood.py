"""The likelihood that settings describe, and warnings about data in other units than its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pmwd_dist import infer
from pmwd_dist.run.settings import InferenceSettings


def make_likelihood(settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
    """The likelihood of these settings, a forward model and the arrays of files, by key."""
    section, given, mask = settings.likelihood, settings.priors.given, data.get("data.mask")
    match section.kind:
        case "gaussian":
            sigma = "sigma" if "sigma" in given else data.get("likelihood.sigma", section.sigma)
            return infer.Gaussian(sigma, mask=mask, k_max=section.k_max, small_scale_noise=section.small_scale_noise)
        case "poisson":
            nbar = "nbar" if "nbar" in given else section.nbar
            return infer.Poisson(nbar, mask=mask, selection=data.get("data.selection"))
        case "lensing":
            density = section.density or ()
            number = density[0] if len(density) == 1 else density
            return infer.ShapeNoise(forward, number, ellipticity=section.ellipticity, mask=mask)


def unusual_data(settings: InferenceSettings, data: np.ndarray, selection: np.ndarray | None) -> str | None:
    """Warning about data where there are any, and their selection, in other units than the model."""
    section, mean, largest = settings.likelihood, float(data.mean()), float(np.abs(data).max())
    if section.kind == "gaussian" and not 0.5 < mean < 2:
        return f"the mean is {mean:.3g}; densities are in units of the mean, 1 + delta"
    if section.kind == "lensing" and largest > 1:
        return f"values reach {largest:.3g}; a convergence is far below 1"
    expected = (section.nbar or mean) * (1.0 if selection is None else float(selection.mean()))
    if section.kind == "poisson" and section.nbar is not None and not 0.5 < mean / expected < 2:
        return f"the mean is {mean:.3g} galaxies in a cell, and likelihood.nbar expects {expected:.3g}"
    return None
