"""A plan: a simulation or an inference that writes into a folder, as data.

Functions marked "Collective" communicate: all processes must call them, in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np

from pmwd_dist._jax.native import native_available
from pmwd_dist._memory import size
from pmwd_dist.run.settings import Settings, SimulationSetup


@dataclass(frozen=True)
class Plan(ABC):
    """A simulation or an inference on the current devices, as its settings describe it."""

    settings: Settings
    simulation: SimulationSetup  # configuration, cosmology and solver
    folder: Path  # of the results
    # Arrays of other files that the settings name, by their keys.
    data: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], kw_only=True)
    extending: ClassVar[tuple[str, ...]] = ()  # beginnings of the keys with which a finished job can be resumed

    @classmethod
    @abstractmethod
    def of(cls, settings: Any, folder: Path) -> Self:
        """The job of these settings; SettingsError if they don't fit the devices, the files or each other."""

    def of_main(self) -> Self:
        """The job with the numbers of process 0 where processes may round differently. Collective."""
        return self

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps."""

    @property
    @abstractmethod
    def files(self) -> list[str]:
        """Names of the results."""

    @property
    @abstractmethod
    def expected_memory(self) -> int:
        """Expected peak of host memory of one process [bytes]; on GPUs, of the memory of each device."""

    @abstractmethod
    def check(self) -> list[str]:
        """Warnings about memory, disk and accuracy; SettingsError if memory or disk can't suffice."""

    @abstractmethod
    def lines(self) -> list[str]:
        """Description of the job."""

    def memory_lines(self) -> list[str]:
        """Further lines on memory."""
        return []

    @property
    def device_line(self) -> str:
        """Description of the devices."""
        config, processes = self.simulation.config, jax.process_count()
        px, py = config.decomposition.pdims
        blocks = "one block" if px * py == 1 else f"{px} slabs" if py == 1 else f"{px} x {py} pencils"
        kind, count = config.decomposition.mesh.devices.flat[0].device_kind, config.decomposition.mesh.size
        groups = "" if count == px * py else f"chains in {count // (px * py)} groups, each "
        return (
            f"devices     {count} x {kind} in {processes} process{'es' * (processes > 1)}, {groups}mesh as {blocks}, "
            f"halo {config.halo}, native ops {'on' if native_available() else 'off: slower, see `pmwd-dist doctor`'}"
        )

    @property
    def power_text(self) -> str:
        """Linear power spectrum."""
        power = self.settings.cosmology.linear_power + self.simulation.power_error
        return f"linear P(k): {power}, sigma8 = {self.simulation.sigma8:.4g}"

    @property
    def memory_text(self) -> str:
        """Expected memory."""
        where = "process" if self.simulation.config.decomposition.platform == "cpu" else "device"
        return f"{size(self.expected_memory)} of memory a {where}"


def three(values: Sequence[float]) -> str:
    """Three numbers, or one if they are equal."""
    if len(set(values)) == 1:
        return f"{values[0]:g}^3" if isinstance(values[0], int) else f"{values[0]:g}"
    return " x ".join(f"{value:g}" for value in values)
