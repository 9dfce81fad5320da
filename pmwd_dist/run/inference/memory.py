"""Memory of an inference: XLA's plan of the gradients, and counted fields of sampler and verdict."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist import infer
from pmwd_dist._memory import size
from pmwd_dist.config import Config
from pmwd_dist.infer.chain.chain import on_devices
from pmwd_dist.infer.tuning.loop import begin
from pmwd_dist.run.common import resources
from pmwd_dist.run.settings import InferenceSettings

RUNTIME = 2.5e9  # programs of a process, which has more than a simulation [bytes]
_CODE = 700  # to compile all programs, for each letter of the gradient as text: more for light cones [bytes]
MOST_FIELDS = 40  # draws of the noise that the verdict looks at

# Fields of the lattice.
_LEAST = 4  # of each chain: position, momentum, slope, and the gradient
_CHAIN = 12  # of each chain: position, momentum and slope, as argument and result of a chunk, and twice in its loop
_SHARED = 7  # mean of the noise and its squares, as argument and result; the data; a field that is added to these


class InferenceMemory(NamedTuple):
    """Memory that an inference is expected to need on each device [bytes]."""

    gradients: int  # of all chains together
    sampler: int  # state of the chains, moments and data
    verdict: int  # draws of the noise that are kept, and a simulation, after the chains
    programs: int  # of a process, most of it while they are compiled

    @property
    def peak(self) -> int:
        """The larger of the memory while chains run, and after them."""
        return max(self.gradients + self.sampler, self.verdict)

    @property
    def parts(self) -> str:
        """Parts of the peak, for messages."""
        chains = f"{size(self.gradients)} for gradients and {size(self.sampler)} for states of all chains"
        return f"{chains}, then {size(self.verdict)} for the draws of the verdict"


def inference_memory(settings: InferenceSettings, model: infer.Model, axis: str | None) -> InferenceMemory:
    """Memory that an inference needs on each of the current devices; its gradients are compiled."""
    sampler, decomposition = settings.sampler, model.config.decomposition
    field, chains = _field(model.config), sampler.chains // _groups(model.config)
    key, *_ = jax.random.split(jax.random.key(0), 3)
    program: Any = begin  # by which the chains begin later
    compiled = program.lower(key, *arguments_like(model, sampler.chains, axis), axis).compile().compiled
    gradients, code = resources.planned(compiled), len(compiled.as_text())
    kept = sampler.steps // (sampler.thin * sampler.chunk) * sampler.chains
    on_host = 2 * kept * decomposition.size / decomposition.mesh.size * (resources.device_limit() is None)
    verdict = int((on_host + min(kept, MOST_FIELDS)) * field + gradients / chains)
    states = int((_CHAIN * chains + _SHARED) * field)
    return InferenceMemory(gradients, states, verdict, int(max(RUNTIME, _CODE * code)))


def arguments_like(model: infer.Model, chains: int, axis: str | None) -> tuple[Any, Any]:
    """Positions and a posterior of the types of the later ones."""
    config, dtype = model.config, np.dtype(jnp.result_type(float))
    nothing = np.zeros((), dtype)
    with warnings.catch_warnings(action="ignore"):  # constant data
        data = np.broadcast_to(nothing, model.forward.layout[0])
        posterior = model.condition(data)
    numbers = {name: np.broadcast_to(nothing, chains) for name in model.priors}
    positions = {"noise": np.broadcast_to(nothing, (chains, *config.particle_shape)), "parameters": numbers}
    return on_devices(positions, config, axis), posterior


def _groups(config: Config) -> int:
    """Number of groups of devices among which chains are divided."""
    return config.decomposition.mesh.size // config.decomposition.size


def _field(config: Config) -> float:
    """Bytes of a field of the lattice on each device."""
    return np.dtype(jnp.result_type(float)).itemsize * math.prod(config.particle_shape) / config.decomposition.size


def too_large(settings: InferenceSettings, config: Config) -> str | None:
    """Reason why the state of the chains alone can't fit into memory, found before any array is made."""
    states = _LEAST * settings.sampler.chains // _groups(config) * _field(config)
    return memory_problem(states, RUNTIME, "", config)[0]


def memory_problem(arrays: float, programs: float, parts: str, config: Config) -> tuple[str | None, str | None]:
    """Reason why the inference can't fit into memory, with the key, and warning that it may not; either may be None."""
    room = resources.room()
    need = room.needed(arrays, config, programs)
    return room.problem(need, f"the inference needs about {size(need)} of memory{parts},", [], "fewer sampler.chains")
