"""Chains for GetDist (Lewis 2019, 1910.13970), which draws the contours that cosmologists are used to."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.chain.chain import Chain


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
