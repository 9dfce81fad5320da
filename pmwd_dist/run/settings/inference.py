"""Settings of an inference: the sections of its TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from pmwd_dist._errors import ArgumentError
from pmwd_dist.observe.shells import Assignment
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, default_decomposition
from pmwd_dist.run.settings.inference_sections import Checks, Data, LikelihoodSection, Model, Priors, Sampler, Start
from pmwd_dist.run.settings.simulation import Settings

CHAINS = "chains"  # axis of the device mesh over which groups of chains are divided


class InferenceSettings(Settings):
    """All sections of the file of an inference; noise.seed seeds all random numbers."""

    observables = ("light_cone",)
    shell_assignment: ClassVar[Assignment] = "linear"  # a continuous log density
    example: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "box": {"size": 320.0, "mesh": 32},
        "likelihood": {"sigma": 0.5},
        "priors": {
            "sigma8": {"kind": "normal", "mean": 0.8, "sd": 0.15, "low": 0.1},
            "omega_m": {"kind": "normal", "mean": 0.3, "sd": 0.05, "low": 0.06},
            "b1": {"kind": "uniform", "low": 0.0, "high": 4.0},
        },
    }

    data: Data
    model: Model
    likelihood: LikelihoodSection
    priors: Priors
    start: Start
    sampler: Sampler
    checks: Checks

    def divide(self, shapes: Sequence[Shape3], **options: Any) -> Decomposition | None:
        """The division of fields over the devices of a chain, if their number is given."""
        return None if self.sampler.chain_devices is None else _chain_decomposition(self, shapes, **options)


def _chain_decomposition(settings: InferenceSettings, shapes: Sequence[Shape3], **options: Any) -> Decomposition:
    """The division of a field over the devices of a chain, on a mesh that has an axis of chains for several groups.

    Raises:
      ArgumentError: too few devices, or groups that can't share the chains.
    """
    size, pdims = settings.sampler.chain_devices, settings.devices.pdims
    assert size is not None
    groups = _groups(size, settings.sampler.chains)
    px, py = default_decomposition(shapes, size).pdims if pdims is None else pdims
    if groups == 1:
        return Decomposition((px, py), **options)
    _check_batch(settings, groups)
    devices = np.array(jax.devices()[: groups * size], dtype=object).reshape(groups, px, py)
    mesh = Mesh(devices, (CHAINS, "x", "y"), axis_types=(AxisType.Auto,) * 3)
    return Decomposition(mesh=mesh, spec=PartitionSpec("x", "y"), **options)  # vmap fails with P(), of one device


def _groups(size: int, chains: int) -> int:
    """Number of groups of devices, with equally many chains each."""
    count = jax.device_count()
    even = " or ".join(str(n) for n in range(1, count + 1) if count % n == 0 and chains % (count // n) == 0)
    if size > count:
        there = "there is one" if count == 1 else f"there are {count}"
        raise ArgumentError("chain_devices", size, f"needs {size} devices, and {there}", f"use {even}")
    groups = count // size
    if chains % groups:
        low = chains // groups * groups
        more = f"{low} or {low + groups}" if low else f"{groups}"
        constraint = f"makes {groups} groups of {count} devices, and sampler.chains = {chains} is no multiple of that"
        raise ArgumentError("chain_devices", size, constraint, f"use {even}, or sampler.chains = {more}")
    return groups


def _check_batch(settings: InferenceSettings, groups: int) -> None:
    """Raise ArgumentError for loops on blocks, which vmap with an axis of the mesh can't batch (JAX 0.10)."""
    size = settings.sampler.chain_devices
    if settings.likelihood.rules.maps:
        constraint = f"makes {groups} groups, and light cones can't be a batch over groups"
        raise ArgumentError("chain_devices", size, constraint, "leave it out, and use devices.pdims = [1, 1]")
    if settings.model.gravity != "linear" and settings.time.lpt_order == 3:
        constraint = f"makes {groups} groups, and initial conditions of third order can't be a batch over groups"
        raise ArgumentError("chain_devices", size, constraint, "use time.lpt_order = 2, or leave it out")
