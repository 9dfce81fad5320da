"""Positions as sites of a NumPyro model (Phan et al. 2019, 1912.11554)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees

_PREFIX = "position/"


def numpyro_sites(
    logdensity: Callable[[Any], Array], parameters: Callable[[Any], Mapping[str, ArrayLike]], shapes: Mapping[str, Any]
) -> None:
    """Sample a position with standard normal sites and a factor, such that it has this log density.

    Values of `parameters` become deterministic sites. `shapes` are the shapes of the noise, "noise", and of the
    parameters.

    Raises:
      ImportError: numpyro is not installed.
    """
    import numpyro
    from numpyro.distributions import Normal

    def site(name: str) -> Any:
        return numpyro.sample(_PREFIX + name, Normal(0, 1).expand(shapes[name]).to_event(len(shapes[name])))

    position = {"noise": site("noise"), "parameters": {name: site(name) for name in shapes if name != "noise"}}
    numpyro.factor("posterior", logdensity(position) + 0.5 * trees.dot(position, position))
    for name, value in parameters(position).items():
        numpyro.deterministic(name, value)


def numpyro_position(sites: Mapping[str, Any]) -> dict[str, Any]:
    """The position, or a batch of positions, from samples of the sites."""
    position = {name.removeprefix(_PREFIX): x for name, x in sites.items() if name.startswith(_PREFIX)}
    return {"noise": position.pop("noise"), "parameters": position}
