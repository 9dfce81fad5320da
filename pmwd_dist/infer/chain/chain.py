"""Draws of a posterior, and the state of the chains that draw them."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pmwd_dist.config import Config
from pmwd_dist.infer.chain.diagnostics import energy_errors, step_bias, summary
from pmwd_dist.infer.precondition import Adaptation
from pmwd_dist.infer.samplers.mclmc import IntegratorState
from pmwd_dist.infer.samplers.methods import Tuning
from pmwd_dist.io.arrays import Arrays, check_shapes
from pmwd_dist.parallel.distributed import to_devices, to_host


class Chain(eqx.Module):
    """Draws of a posterior.

    Args:
      parameters: parameters by name, shape (chains, draws).
      logdensity: log density, shape (chains, draws); of "mclmc" to second order in the step.
      density_shift: shift of the sampled log density by finite steps, shape (chains, draws).
      energy_change: energy error of each step, 0 where it failed, shape (chains, steps).
      acceptance_rate: acceptance probability of each step, 1 without a Metropolis step.
      gradients: number of gradients of all chains after tuning, with those of discarded draws.
      failures: number of rejected steps in which a simulation failed.
      noise_mean, noise_sd: mean and standard deviation of the white noise over all draws and chains, in each cell.
      noise: white noise of one draw a chunk, shape (chunks, chains, nx, ny, nz); None unless it was kept.
      projections: projection of the white noise by wavenumber [h/Mpc], shape (chains, draws) (`infer.bands`).
      powers: power of the white noise by wavenumber [h/Mpc], shape (chains, draws).
    """

    parameters: dict[str, np.ndarray]
    logdensity: np.ndarray
    density_shift: np.ndarray
    energy_change: np.ndarray
    acceptance_rate: np.ndarray
    gradients: int
    failures: int
    noise_mean: np.ndarray
    noise_sd: np.ndarray
    noise: np.ndarray | None
    projections: dict[float, np.ndarray] = eqx.field(default_factory=dict)
    powers: dict[float, np.ndarray] = eqx.field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, standard deviation, R-hat and effective sample sizes of the parameters and of the log density."""
        return summary(self.parameters | {"logdensity": self.logdensity})

    def scales(self) -> dict[str, dict[str, float]]:
        """The same table for the projection and the power of the white noise in each band of wavenumbers.

        R-hat and effective sizes of a projection are typical for the modes of the band, including their phases. The
        mean power of a posterior is near 1.
        """
        kinds = (("projection", self.projections), ("power", self.powers))
        return summary({f"{kind} at k = {k:g}": x for kind, table in kinds for k, x in table.items()})

    def energy_errors(self) -> dict[str, dict[str, float]]:
        """`infer.energy_errors` of each chain, "chain 0" and so on, and of "all", which can hide an unstable chain."""
        dimensions = self.noise_mean.size + len(self.parameters)
        rows = {f"chain {i}": energy_errors(x[None], dimensions) for i, x in enumerate(self.energy_change)}
        return rows | {"all": energy_errors(self.energy_change, dimensions)}

    def bias(self) -> dict[str, tuple[float, float]]:
        """Discretisation bias of the mean of each parameter, in standard deviations, and its error (`step_bias`)."""
        return {name: step_bias(x, self.density_shift) for name, x in self.parameters.items()}


class Progress(NamedTuple):
    """Progress of a run, after tuning, after each chunk, and where chains start over.

    Args:
      chunks: number of chunks on disk, 0 after tuning and where chains start over.
      step_size, L: parameters that the chains share.
      draws: draws of the last chunk, by name, shape (chains, draws) or (chains, steps); empty without chunks.
      restarts: number of times that the chains have started over.
    """

    chunks: int
    step_size: float
    L: float
    draws: Arrays
    restarts: int = 0


class Moments(NamedTuple):
    """Running mean of the white noise, and sum of squares around it."""

    draws: Array
    mean: Array
    square: Array

    def add(self, x: Array) -> Moments:
        """The moments with one more draw (Welford 1962)."""
        draws = self.draws + 1
        away = x - self.mean
        mean = self.mean + away / draws.astype(x.dtype)
        return Moments(draws, mean, self.square + away * (x - mean))


class Run(NamedTuple):
    """State of all chains, with their common values and the slopes of `diagnostics.bias_slopes` by parameter."""

    states: IntegratorState
    tuning: Tuning
    moments: Moments
    adaptation: Adaptation
    correction: dict[str, Array]


class Restarts(NamedTuple):
    """Discarded draws of chains that started over.

    Args:
      times: number of times that the chains started over.
      gradients: number of gradients of the discarded draws.
      final: whether draws were returned, after which chains do not start over.
    """

    times: int = 0
    gradients: int = 0
    final: bool = False

    def discarding(self, chunks: list[Arrays]) -> Restarts:
        """The record with more discarded chunks."""
        return self._replace(gradients=self.gradients + sum(int(np.sum(chunk["gradients"])) for chunk in chunks))


def named(tree: Any) -> Arrays:
    """Leaves of a pytree, by the names of their paths such as "moments/mean". Collective."""
    return {_name(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(to_host(tree))}


def restored(stored: Arrays, like: Any) -> Any:
    """A pytree from arrays by name, with the structure of another one.

    Its arrays of JAX have the shapes, types and shardings of the other ones. NumPy arrays may have any shape.
    """

    def leaf(path: Any, x: Any) -> Any:
        array = stored[_name(path)]
        if isinstance(x, jax.Array):
            check_shapes(stored, {_name(path): x.shape})
            return placed(array, x)
        return array if isinstance(x, np.ndarray) else type(x)(array)

    return jax.tree.map_with_path(leaf, like)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def on_devices(positions: Any, config: Config, axis: str | None) -> Any:
    """Positions of chains, divided over devices as steps return them."""
    mesh, spec = config.decomposition.mesh, config.decomposition.spec
    fields, numbers = (NamedSharding(mesh, PartitionSpec(axis, *axes)) for axes in (spec, ()))
    return jax.tree.map(lambda x: to_devices(x, fields if np.ndim(x) > 1 else numbers), positions)


def placed(tree: Any, like: Any) -> Any:
    """Arrays with the types and shardings of another pytree."""
    return jax.tree.map(lambda x, y: to_devices(x.astype(y.dtype), y.sharding), tree, like)
