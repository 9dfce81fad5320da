"""The likelihood that settings describe, and warnings about data in other units than its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pmwd_dist import infer
from pmwd_dist.infer.likelihoods import data_warning, shown
from pmwd_dist.run.settings import InferenceSettings


def make_likelihood(settings: InferenceSettings, forward: Any, data: Mapping[str, np.ndarray]) -> infer.Likelihood:
    """The likelihood of these settings, a forward model and the arrays of files, by key."""
    section = settings.likelihood
    templates = {f"template_{i}": x for i, x in enumerate(data.get("data.templates", ()))}
    common: dict[str, Any] = {"mask": data.get("data.mask"), "templates": templates}

    def number(name: str) -> Any:
        """A number of the settings, or the name of a parameter with a prior."""
        return name if name in settings.priors.given else getattr(section, name)

    match section.kind:
        case "gaussian":
            options: Any = {"k_max": section.k_max, "small_scale_noise": section.small_scale_noise}
            sigma = data.get("likelihood.sigma", number("sigma"))
            return infer.Gaussian(sigma, slope=number("slope"), noise_k2=number("noise_k2"), **options, **common)
        case "poisson":
            options = {"selection": data.get("data.selection"), "bins": data.get("data.bins")}
            return infer.Poisson(number("nbar"), dispersion=number("dispersion"), **options, **common)
        case "lensing":
            density, counts = section.density, data.get("data.counts")
            each = density[0] if density is not None and len(density) == 1 else density
            options = {"ellipticity": section.ellipticity, "mask": common["mask"], "counts": counts}
            return infer.ShapeNoise(forward, each, **options)


def unusual_data(
    settings: InferenceSettings, data: np.ndarray, files: Mapping[str, np.ndarray], mask: Any
) -> str | None:
    """Warning about data that are constant, or in other units than the model."""
    section, selection = settings.likelihood, files.get("data.selection")
    if warning := data_warning(data, mask, density=section.kind == "gaussian"):
        return f"the data {warning}"
    has_data = shown(mask, data.shape)
    data, selection = data[has_data], None if selection is None else selection[has_data]
    mean, largest = float(data.mean()), float(np.abs(data).max())
    if section.kind == "gaussian" and not 0.5 < mean < 2:
        return f"the mean is {mean:.3g}; densities are in units of the mean, 1 + delta"
    if section.kind == "lensing" and largest > 1:
        return f"values reach {largest:.3g}; a {section.quantity} is below 1, noise included"
    expected = (section.nbar or mean) * (1.0 if selection is None else float(selection.mean()))
    if section.kind == "poisson" and section.nbar is not None and not 0.5 < mean / expected < 2:
        return f"the mean is {mean:.3g} galaxies in a cell, and likelihood.nbar expects {expected:.3g}"
    return None
