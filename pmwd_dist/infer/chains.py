"""Chains on disk, chunk by chunk: each file is complete or absent, and a chain of another model is not continued."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import h5py
import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write
from pmwd_dist.config import Config
from pmwd_dist.infer.diagnostics import summary

Arrays = dict[str, np.ndarray]


class Chain(eqx.Module):
    """Draws of a posterior.

    Args:
      parameters: by name, shape (chains, draws).
      logdensity: shape (chains, draws).
      energy_change: error of the energy of each step, 0 where it failed, shape (chains, steps).
      acceptance_rate: probability with which each step was accepted, 1 without a Metropolis step.
      gradients: that all chains evaluated after tuning.
      failures: steps that ended in a failed simulation, and were undone.
      noise_mean, noise_sd: mean and standard deviation of the white noise over all draws and chains, in each cell.
      noise: white noise of one draw a chunk, shape (chunks, chains, nx, ny, nz); None unless it was kept.
    """

    parameters: dict[str, np.ndarray]
    logdensity: np.ndarray
    energy_change: np.ndarray
    acceptance_rate: np.ndarray
    gradients: int
    failures: int
    noise_mean: np.ndarray
    noise_sd: np.ndarray
    noise: np.ndarray | None

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, standard deviation, R-hat and effective sample sizes of the parameters and of the log density."""
        return summary(self.parameters | {"logdensity": self.logdensity})


def load_chain(path: str | Path) -> Chain:
    """The chain of a folder, all draws that are complete.

    Raises:
      ValueError: there is none.
    """
    described = Path(path) / "chain.json"
    if not described.is_file():
        raise ArgumentError("path", str(path), "holds no chain", "name the folder that `sample` had as output")
    return ChainFolder(path, json.loads(described.read_text(encoding="utf-8"))).load()


def chain_files(chunks: int) -> list[str]:
    """Names of the files of a chain of so many chunks."""
    return ["chain.json", "state.h5", *(f"chunk_{i:05d}.h5" for i in range(chunks))]


class ChainFolder:
    """The folder of a chain.

    Args:
      path: of the folder, which is made if it is not there.
      identity: what the chain depends on, by name.

    Raises:
      ValueError: the folder has a chain of another model; the differences are named.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, str]):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        described = self.path / "chain.json"
        if not described.exists():
            with atomic_write(described) as aside:
                aside.write_text(json.dumps(dict(identity), indent=1), encoding="utf-8")
            return
        there = json.loads(described.read_text(encoding="utf-8"))
        for name in sorted({*there, *identity}):
            if there.get(name) != identity.get(name):
                old, new = _around_difference(str(there.get(name)), str(identity.get(name)))
                constraint = f"has a chain with {name}={old}, not {new}"
                raise ArgumentError("output", str(path), constraint, "use another folder, or the same model")

    def state(self) -> Arrays | None:
        """What was written last by `write`, or None."""
        path = self.path / "state.h5"
        return read_arrays(path) if path.exists() else None

    def write(self, index: int, chunk: Arrays, state: Arrays) -> None:
        """Add a chunk, and then the state after it: a state is only ever of chunks that are there."""
        write_arrays(self._chunk(index), chunk)
        write_arrays(self.path / "state.h5", state)

    def write_state(self, state: Arrays) -> None:
        """Replace the state alone."""
        write_arrays(self.path / "state.h5", state)

    def load(self) -> Chain:
        """All draws up to the state.

        Raises:
          ValueError: nothing was sampled yet.
        """
        state = self.state()
        if state is None or int(state.get("chunks", 0)) == 0:
            raise ArgumentError("output", str(self.path), "has no draws yet", "sample first")
        chunks = [read_arrays(self._chunk(i)) for i in range(int(state["chunks"]))]
        joined = {name: np.concatenate([c[name] for c in chunks], axis=1) for name in chunks[0] if name != "noise"}
        names = [name for name in joined if name.startswith("parameter/")]
        return Chain(
            parameters={name.removeprefix("parameter/"): joined[name] for name in names},
            logdensity=joined["logdensity"],
            energy_change=joined["energy_change"],
            acceptance_rate=joined["acceptance_rate"],
            gradients=int(np.sum(joined["gradients"])),
            failures=int(np.sum(~joined["nonans"].astype(bool))),
            noise_mean=state["moments/mean"],
            noise_sd=np.sqrt(state["moments/square"] / max(float(state["moments/draws"]) - 1, 1)),
            noise=np.stack([c["noise"] for c in chunks]) if "noise" in chunks[0] else None,
        )

    def _chunk(self, index: int) -> Path:
        return self.path / f"chunk_{index:05d}.h5"


def identity_of(parts: Mapping[str, Any]) -> dict[str, str]:
    """A description of each part that is the same in another process, and on other devices.

    Fields of dataclasses whose metadata say "derived" follow from the others, on each device to rounding.
    """
    return {name: _describe(part) for name, part in parts.items()}


def _describe(part: Any) -> str:
    if isinstance(part, Config):
        kept = [f"{f.name}={getattr(part, f.name)!r}" for f in fields(part) if f.name != "decomposition"]
        return ", ".join(kept)
    if isinstance(part, jax.Array | np.ndarray):
        values = np.ascontiguousarray(jax.device_get(part))
        if values.ndim == 0:
            return repr(values.item())
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
        return f"{values.dtype.name}{list(values.shape)}:{digest}"
    if is_dataclass(part) and not isinstance(part, type):
        given = [f.name for f in fields(part) if not f.metadata.get("derived")]
        inside = ", ".join(f"{name}={_describe(getattr(part, name, None))}" for name in given)
        return f"{type(part).__name__}({inside})"
    if isinstance(part, list | tuple):
        return "[" + ", ".join(map(_describe, part)) + "]"
    if isinstance(part, Mapping):
        return "{" + ", ".join(f"{k}: {_describe(v)}" for k, v in part.items()) + "}"
    return getattr(part, "__qualname__", None) or repr(part)


def _around_difference(one: str, other: str, width: int = 60) -> tuple[str, str]:
    """Two descriptions, of long ones only what surrounds their first difference."""
    if max(len(one), len(other)) <= 3 * width:
        return one, other
    same = next(i for i, (a, b) in enumerate(zip(one + "\0", other + "\0", strict=False)) if a != b)
    begin = max(0, same - width)
    return tuple(  # type: ignore[return-value]
        f"{'...' if begin else ''}{text[begin : same + width]}{'...' if len(text) > same + width else ''}"
        for text in (one, other)
    )


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays by name as HDF5, with checksums; the file is complete or absent.

    Raises:
      OSError: the file can't be written.
    """
    with atomic_write(path) as aside, h5py.File(aside, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, fletcher32=np.ndim(values) > 0 and np.size(values) > 0)


def read_arrays(path: Path) -> Arrays:
    """Read the arrays of such a file.

    Raises:
      OSError: the file can't be read, or is damaged.
    """
    arrays: Arrays = {}
    with h5py.File(path, "r") as file:

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                arrays[name] = np.asarray(item[()])

        file.visititems(visit)
    return arrays
