"""The tuning of chains, for other data of the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.chain.folder import around_difference, chain_files, identity_of, without_halo
from pmwd_dist.io.arrays import ArrayFile, Arrays, write_arrays
from pmwd_dist.parallel.distributed import on_main

_STATE = chain_files(0)[0]
_REMEDY = "tune chains again"
_PARTS = ("tuning/", "adaptation/")  # of the state of a chain


class SavedTuning(NamedTuple):
    """Parameters of the sampler and preconditioner of tuned chains, from `load_tuning`.

    Args:
      identity: description of the model and the sampler, by name; functions are described by their names.
      arrays: step size, L and the adaptation of the preconditioner, by their names in the state of a chain.
    """

    identity: dict[str, str]
    arrays: Arrays

    @property
    def step_size(self) -> float:
        """Size of an integration step."""
        return float(self.arrays["tuning/step_size"])

    @property
    def L(self) -> float:
        """Decoherence length of MCLMC, or mean length of the trajectories of HMC."""
        return float(self.arrays["tuning/L"])

    def save(self, path: str | Path) -> None:
        """Write a file, which `load_tuning` reads; of several processes, process 0 writes it. Collective.

        Raises:
          OSError, SharedError: the file can't be written.

        Examples:
          >>> infer.load_tuning("runs/mock_0").save("tuning.npz")
        """
        on_main(write_arrays, Path(path), self.arrays, {"identity": self.identity})

    def check(self, identity: dict[str, str]) -> None:
        """Raise ArgumentError unless this is the tuning of a model and a sampler of these descriptions."""
        for name, own in identity.items():
            old, new = without_halo(str(self.identity.get(name))), without_halo(own)
            if old != new:
                old, new = around_difference(old, new)
                constraint = f"is of chains with {name}={old}, not {new}"
                remedy = "leave it out: this posterior needs a tuning of its own"
                raise ArgumentError("tuning", "", constraint, remedy, show_value=False)


def load_tuning(path: str | Path) -> SavedTuning:
    """The tuning of the chains of a folder, or of a file of `SavedTuning.save`.

    Raises:
      ValueError: a folder or file without a tuned chain.
      ArrayFileError: the file is damaged.

    Examples:
      >>> tuning = infer.load_tuning("runs/mock_0")
      >>> infer.sample(posterior, starts, key=key, steps=4000, output="runs/mock_1", tuning=tuning, tuning_steps=400)
    """
    file = Path(path) / _STATE if Path(path).is_dir() else Path(path)
    if not file.exists():
        remedy = "name the folder that `sample` had as output, or a file of `save`"
        raise ArgumentError("path", str(path), "holds no tuning", remedy)
    with ArrayFile(file, _REMEDY) as state:
        if not any(name.startswith(_PARTS[0]) for name in state.names):
            raise ArgumentError("path", str(path), "has chains whose tuning has not ended", "sample there first")
        arrays = {name: state.read(name) for name in state.names if name.startswith(_PARTS)}
        with state.reading():
            return SavedTuning({str(key): str(x) for key, x in state.about["identity"].items()}, arrays)


def parts_of(model: Any, weight: Any) -> dict[str, Any]:
    """Arrays and functions that identify a posterior up to its data."""
    parts = {"config": model.config, "model": model.forward, "priors": model.items, "likelihood": model.likelihood}
    return parts | {"weight": weight}


def kind_of(model: Any, method: str, energy_variance: float, weight: Any = 1.0) -> dict[str, str]:
    """Description of a posterior and a sampler, which those share that can have the same tuning. Collective."""
    return identity_of(parts_of(model, weight) | {"method": method, "energy_variance": energy_variance})
