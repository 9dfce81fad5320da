"""Memory of an inference, counted in arrays: gradients of all chains, what the sampler holds, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pmwd_dist.run import resources
from pmwd_dist.run.memory import Kind
from pmwd_dist.run.planning import Division, enough_devices, expected_halo, linear_displacement
from pmwd_dist.run.resources import size
from pmwd_dist.run.settings import InferenceSettings, Simulation

# Of a process [bytes]: as that of a run, and more programs; sims/field_level.toml takes 2.5 GB in all.
RUNTIME = 2.5e9
MOST_FIELDS = 40  # draws of the noise that the verdict looks at

# Fields of the lattice in XLA's plans of a chunk for CPUs (jaxlib 0.10.2), to 16 %: 1 to 4 chains, 48^3 to 128^3, all
# kinds of gravity, methods and preconditioning. On an H100 the allocator's peak was 0.86 and 0.88 of what is counted
# (2LPT, 128^3, one chain and four), and 1.13 of it (N-body simulations, 96^3, four chains).
_LINEAR = 4.0  # a gradient of linear theory
_PRECONDITIONED = 8.0  # of each chain, from position to noise and back
_LIGHT_CONE = 48.0  # of each chain: particles before and after a step, their distances, and cotangents of these
_CHAIN = 12.0  # position, momentum and slope, each as argument and result of a chunk, and twice in its loop
_TREE = 74.0  # of each chain of NUTS: ends of its trajectory, and momenta where parts of it begin (32^3 and 48^3)
_SHARED = 7.0  # mean of the noise and its squares, as argument and result; the data; a field that is added to these


@dataclass(frozen=True)
class InferenceMemory:
    """Memory that an inference is expected to need on each device [bytes].

    Args:
      chains: gradients at a time on a device.
      gradients: of all chains together, by the plan of one.
      sampler: state of the chains, moments and data.
      shared: moments and data alone.
      verdict: draws of the noise that are kept, and a run, after the chains.
      program: of the process, where its devices share the memory of the host; else 0.
    """

    chains: int
    gradients: int
    sampler: int
    shared: int
    verdict: int
    program: int

    @property
    def peak(self) -> int:
        """While chains run, or after them."""
        return max(self.gradients + self.sampler, self.verdict)

    @property
    def parts(self) -> str:
        """What the peak is made of, for messages."""
        program = f", {size(self.program)} for the program" if self.program else ""
        if self.verdict > self.gradients + self.sampler:
            return f"{size(self.verdict)} for the kept draws of the noise in the verdict{program}"
        return (
            f"{size(self.gradients)} for a gradient of {self.chains} chain{'s' * (self.chains > 1)}, "
            f"{size(self.sampler)} for their state, moments and data{program}"
        )


def inference_memory(settings: InferenceSettings, simulation: Simulation) -> InferenceMemory:
    """Memory that an inference needs on each of the current devices."""
    config = simulation.config
    halo = expected_halo(config, linear_displacement(simulation))
    needed = resources.expected_memory(config, halo)
    return _counted(settings, simulation, config.decomposition.size, needed.run, needed.gradient)


def _groups(simulation: Simulation) -> int:
    """Number of groups of devices among which chains are divided."""
    decomposition = simulation.config.decomposition
    return decomposition.mesh.size // decomposition.size


def _counted(
    settings: InferenceSettings, simulation: Simulation, devices: int, run: int, gradient: int
) -> InferenceMemory:
    """The memory on so many devices, where a run and its gradient take so much of each."""
    sampler, linear, groups = settings.sampler, settings.model.gravity == "linear", _groups(simulation)
    chains = sampler.chains // groups
    number = _bytes_of_number()
    field = number * math.prod(simulation.config.particle_shape) / devices
    each = _LINEAR * field if linear else gradient
    if simulation.light_cone is not None:
        maps = resources.light_cone_memory(simulation.light_cone) * number / 4  # on the current devices
        each += _LIGHT_CONE * field + maps * simulation.config.decomposition.size / devices
    each += _PRECONDITIONED * field * (sampler.precondition != "none")
    state = _CHAIN + _TREE * (sampler.method == "nuts")
    kept = sampler.steps // (sampler.thin * sampler.chunk) * sampler.chains
    shared = resources.device_limit() is None
    on_host = 2 * kept * field / groups * shared
    return InferenceMemory(
        chains=chains,
        gradients=int(chains * each),
        sampler=int((state * chains + _SHARED) * field),
        shared=int(_SHARED * field),
        verdict=int(on_host + min(kept, MOST_FIELDS) * field + (_LINEAR * field if linear else run)),
        program=int(RUNTIME * shared),
    )


def _bytes_of_number() -> int:
    return np.dtype(jnp.result_type(float)).itemsize


def inference_problem(settings: InferenceSettings, simulation: Simulation) -> tuple[str | None, str | None]:
    """Reason why the inference can't fit into memory, with the key, and warning that it may not; either may be None."""
    memory, room = inference_memory(settings, simulation), resources.room()
    need = room.needed(memory.peak, simulation.config, RUNTIME)
    if need <= room.free:
        return None, None
    text = f"the inference needs about {size(need)} of memory, {memory.parts}, and {room.where} has {size(room.total)}"
    if need <= room.total:
        return None, f"{text}, {size(room.free)} of it free: it may be killed"
    groups = _groups(simulation)
    chains = _chains_that_fit(memory, room.for_arrays(simulation.config, RUNTIME)) * groups
    remedies = ["use a smaller mesh"] + [f"sampler.chains = {chains}"] * bool(chains)
    if room.several and groups == 1 and (count := _enough(settings, simulation, room.total)):
        remedies.append(f"{count} such devices")
    return f"box.mesh: {text}; {', or '.join(remedies)}", None


def _chains_that_fit(memory: InferenceMemory, there: float) -> int:
    """The largest number of chains that fit on a device; 0 if none do."""
    if memory.verdict > there:
        return 0
    each = (memory.gradients + memory.sampler - memory.shared) / memory.chains
    return max(0, min(memory.chains - 1, int((there - memory.shared) / each)))


def _enough(settings: InferenceSettings, simulation: Simulation, memory: float) -> int | None:
    """Number of devices with so much memory that would do, None if it is not known."""
    config, displacement = simulation.config, linear_displacement(simulation)
    kind: Kind = "gpu" if config.decomposition.platform == "gpu" else "cpu"

    def peak(division: Division) -> float:
        devices, single = math.prod(division.pdims), _bytes_of_number() / 4  # which plans are of
        run, gradient = int(single * division.peak), int(single * division.bytes["gradient"])
        return _counted(settings, simulation, devices, run, gradient).peak

    return enough_devices(config, displacement, kind, memory, peak)
