"""Settings of an inference: the sections of its TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from pmwd_dist.observe.shells import Assignment
from pmwd_dist.parallel.decomposition import Decomposition, Shape3
from pmwd_dist.run.settings import inference_rules
from pmwd_dist.run.settings.chain_groups import chain_decomposition
from pmwd_dist.run.settings.inference_sections import Checks, Data, Likelihood, Model, Priors, Sampler, Start
from pmwd_dist.run.settings.observables import LightCone, Observe
from pmwd_dist.run.settings.simulation_sections import OPTIONAL, SECTIONS, Sections, Settings

OWN: Sections = {
    "data": Data,
    "model": Model,
    "likelihood": Likelihood,
    "priors": Priors,
    "start": Start,
    "sampler": Sampler,
    "checks": Checks,
}


class InferenceSettings(Settings):
    """All sections of the file of an inference; noise.seed seeds all random numbers."""

    sections: ClassVar[Sections] = {
        **{name: model for name, model in SECTIONS.items() if name not in ("output", *OPTIONAL)},
        **OWN,
        "observe.light_cone": LightCone,
    }
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

    observe: Observe = Field(default_factory=Observe)
    data: Data
    model: Model
    likelihood: Likelihood
    priors: Priors
    start: Start
    sampler: Sampler
    checks: Checks

    @classmethod
    def find_problems(cls, sections: Mapping[str, Any]) -> list[str]:
        """Problems that involve several sections; None stands for invalid ones."""
        return inference_rules.find_problems(sections)

    @classmethod
    def absolute(cls, sections: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The sections with the paths of the data and their noise absolute."""
        data: Data = sections["data"]
        changes = {
            key: str((folder / value).absolute())
            for key in ("file", "mask", "selection")
            if (value := getattr(data, key)) not in (None, "mock")
        }
        changed: dict[str, Any] = {"data": data.model_copy(update=changes)}
        likelihood: Likelihood = sections["likelihood"]
        if isinstance(likelihood.sigma, str):
            sigma = str((folder / likelihood.sigma).absolute())
            changed["likelihood"] = likelihood.model_copy(update={"sigma": sigma})
        return sections | changed

    def divide(self, shapes: Sequence[Shape3], **options: Any) -> Decomposition | None:
        """The division of fields over the devices of a chain, if their number is given."""
        return None if self.sampler.chain_devices is None else chain_decomposition(self, shapes, **options)
