"""Posterior predictions, with and without noise, compared with the data and the truth of a mock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from pmwd_dist import infer
from pmwd_dist._jax.program import filter_jit, jit
from pmwd_dist.infer.likelihoods import shown
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.observe.angular_power import AngularPower, angular_power
from pmwd_dist.observe.lensing import kaiser_squires
from pmwd_dist.observe.power import CrossPower, cross_power
from pmwd_dist.parallel.distributed import to_devices, to_host
from pmwd_dist.run.inference.memory import MOST_FIELDS

# Curves of the samples, a reference curve or None, and its name, by label of the axis.
Panels = dict[str, tuple[np.ndarray, np.ndarray | None, str]]
Images = list[tuple[str, np.ndarray]]  # titles and planes


@dataclass(frozen=True)
class Comparison:
    """Samples compared with data and truth."""

    k: np.ndarray  # wavenumbers of the panels [h/Mpc]
    panels: Panels
    images: Images  # planes of data on the mesh, or maps of a flat sky
    ell: np.ndarray  # multipoles of the angular spectra
    angular: Panels  # of angular spectra of maps
    fit: dict[str, infer.Check]  # by name of the statistic
    prior: dict[str, infer.Check]


def some_draws(chain: infer.Chain) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """White noise and parameters of some draws whose noise is on disk, equally many of each chain."""
    assert chain.noise is not None
    chunks, chains = chain.noise.shape[:2]
    length = chain.logdensity.shape[1] // chunks
    count = min(chunks, max(1, MOST_FIELDS // chains))
    picked = [(i, j) for i in np.unique(np.linspace(chunks - 1, 0, count).round().astype(int)) for j in range(chains)]
    noise = np.stack([chain.noise[i, j] for i, j in picked])
    return noise, {n: np.array([x[j, (i + 1) * length - 1] for i, j in picked]) for n, x in chain.parameters.items()}


def compare(posterior: infer.Posterior, chain: infer.Chain, data: Arrays, key: Array) -> Comparison:
    """Compare predictions of some draws with the data, and their initial modes with the truth.

    Each draw predicts data by the forward model and a draw from the likelihood. Their spectra, noise and mask included,
    compare with the spectrum of the data. Correlations use predictions without noise. Maps have angular spectra.
    """
    noise, numbers = some_draws(chain)
    config, plane, truth = posterior.model.config, observed_plane(posterior), None
    if "noise" in data and config.mesh_shape == config.particle_shape:  # else it is not known on the mesh
        truth = to_devices(data["noise"], config.decomposition.sharding)
    sharding = NamedSharding(config.decomposition.mesh, PartitionSpec(None, *config.decomposition.spec))
    fields, given = to_devices(noise, sharding), jax.tree.map(jnp.asarray, numbers)
    draws = jax.random.split(key, len(noise)), fields, given
    phases, of_data = to_host(_predicted(posterior.model, posterior.data, truth, draws, plane))
    k, panels, images = np.zeros(0), Panels(), Images()
    ell, angular = np.zeros(0), Panels()
    if posterior.data.shape != config.mesh_shape:
        means, maps = of_data
        images = _maps(posterior, data, means)
        ell, angular = _angular(posterior, data["data"], maps)
    else:
        of_means, of_draws, means, planes = of_data
        some = of_draws.modes[0] > 0
        k, power = of_draws.k[0, some], of_draws.field_power[:, some]
        panels[r"predicted $P(k)$  [(Mpc/$h)^3$]"] = power, np.mean(of_draws.reference_power[:, some], axis=0), "data"
        panels[r"$r(k)$ of samples and data"] = np.asarray(of_means.correlation)[:, some], None, ""
        observed, mean, one = data["data"][:, :, plane], np.mean(means, axis=0), planes[0]
        images = [("data", observed), ("mean prediction", mean), ("data drawn from one sample", one)]
        images = [(title, np.where(observed_cells(posterior)[:, :, plane], x, np.nan)) for title, x in images]
    if phases is not None:
        some = phases.modes[0] > 0
        k = phases.k[0, some]
        panels[r"$r(k)$ of initial phases"] = np.asarray(phases.correlation)[:, some], None, ""
        panels[r"$T(k)$ of initial modes"] = np.asarray(phases.transfer)[:, some], np.ones(int(some.sum())), "truth"
    checks = infer.check_fit(posterior, fields, given, jax.random.fold_in(key, 1))
    prior = infer.check_prior(posterior, jax.random.fold_in(key, 2))
    return Comparison(k, panels, images, ell, angular, checks, prior)


@filter_jit
def _predicted(model: infer.Model, observed: Array, truth: Array | None, draws: Any, plane: int) -> Any:
    """Cross spectra of each draw with the truth, if it is known, and with the data; or predicted maps."""
    config = model.config
    likelihood: Any = model.likelihood  # with a contrast, if the data are on the mesh

    def with_data(x: Array, numbers: Any) -> CrossPower:
        contrast, other = (1 + likelihood.contrast(y, numbers) for y in (x, observed))
        return cross_power(contrast, other, config, deconvolve=False)

    def one(drawn: tuple[Array, Array, Any]) -> Any:
        key, noise, numbers = drawn
        field, _ = model.predict(noise, numbers)
        phases = cross_power(noise, truth, config, deconvolve=False) if truth is not None else None
        data = likelihood.draw(key, field, numbers, config)
        if observed.shape != config.mesh_shape:
            return phases, (field, data)
        mean = likelihood.mean(field, numbers)
        return phases, (with_data(mean, numbers), with_data(data, numbers), mean[:, :, plane], data[:, :, plane])

    return jax.lax.map(one, draws)


def _angular(posterior: infer.Posterior, observed: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, Panels]:
    """Multipoles, and C_l of the data and their predictions for each map, 0 behind the mask."""
    forward: Any = posterior.model.forward
    panels, ell, has_data = Panels(), np.zeros(0), observed_cells(posterior)
    for i, name in enumerate(_names_of_sources(forward)):
        maps = np.where(has_data[i], np.concatenate([observed[None, i], drawn[:, i]]), 0)
        for modes, values in _components(forward, maps).items():
            found = jax.device_get(_angular_powers(jnp.asarray(values), getattr(forward, "field", None)))
            some = found.modes[0] > 0
            ell, curves = found.ell[0, some], found.power[:, some]
            panels[f"predicted $C_\\ell$, {name}{modes}"] = curves[1:], curves[0], "data"
    return ell, panels


def _names_of_sources(forward: Any) -> list[str]:
    """Redshift or number of the source of each map."""
    sources = getattr(forward, "sources", ())
    return [f"bin {i}" if isinstance(z, tuple) else f"$z = {float(z):g}$" for i, z in enumerate(sources, 1)]


def _components(forward: Any, maps: np.ndarray) -> dict[str, np.ndarray]:
    """Maps of the convergence, or of the E and B modes of the shear, of shape (maps, ...)."""
    if not isinstance(forward, infer.Shear):
        return {"": maps}
    modes = np.asarray(jax.lax.map(kaiser_squires, jnp.asarray(maps)))
    return {", E modes": modes[:, 0], ", B modes": modes[:, 1]}


@partial(jit, static_argnames="side")
def _angular_powers(maps: Array, side: float | None) -> AngularPower:
    return jax.vmap(partial(angular_power, side=side))(maps)


def observed_cells(posterior: infer.Posterior) -> np.ndarray:
    """Mask of the cells or pixels that have data."""
    return shown(to_host(posterior.model.likelihood.mask), posterior.data.shape)


def observed_plane(posterior: infer.Posterior) -> int:
    """Index of the plane across the last axis in which most cells have data; 0 for maps."""
    return int(np.argmax(observed_cells(posterior).sum(axis=(0, 1))))


def _maps(posterior: infer.Posterior, data: Arrays, predicted: Any) -> Images:
    """Maps of a flat sky for each source: the data and the mean prediction, where there are data.

    Shear is shown by its E modes.
    """
    images: Images = []
    forward: Any = posterior.model.forward
    if getattr(forward, "field", None) is None:
        return images
    has_data = observed_cells(posterior)
    both = (np.where(has_data, x, 0) for x in (data["data"], np.mean(predicted, axis=0)))
    planes = [next(iter(_components(forward, x).values())) for x in both]
    masks: Any = has_data.all(axis=1) if isinstance(forward, infer.Shear) else has_data
    for observed, mean, mask, name in zip(*planes, masks, _names_of_sources(forward), strict=True):
        images += [(f"data, {name}", np.where(mask, observed, np.nan))]
        images += [("mean prediction", np.where(mask, mean, np.nan))]
    return images
