"""The folder of a chain, chunk by chunk: each file is complete or absent.

A chunk names its run, its number and the digest of the previous chunk. The state names the run and the last chunk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.chain.chain import Chain, Moments
from pmwd_dist.io.arrays import ArrayFile, Arrays, fingerprint, reading, write_arrays
from pmwd_dist.parallel.distributed import is_main, on_main, raise_on_all_processes, to_host


def load_chain(path: str | Path) -> Chain:
    """The chain of a folder, with all complete draws.

    Raises:
      ValueError: the folder holds no chain.
      ArrayFileError: a file is missing or damaged.

    Examples:
      >>> chain = infer.load_chain("runs/field")
    """
    if not any((Path(path) / name).exists() for name in chain_files(1)):
        raise ArgumentError("path", str(path), "holds no chain", "name the folder that `sample` had as output")
    return ChainFolder(path).load()


def chain_files(chunks: int) -> list[str]:
    """File names of a chain of `chunks` chunks."""
    return ["state.npz", *(f"chunk_{i:05d}.npz" for i in range(chunks))]


class ChainFolder:
    """The folder of a chain, which process 0 writes and every process reads.

    Methods that read raise ArrayFileError where a file is missing or damaged.

    Args:
      path: path of the folder, which is made if absent.
      identity: description of the model and options, by name; default: the identity of the chain in the folder.

    Raises:
      ValueError: the folder has a chain of another model; the differences are named.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, str] | None = None):
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentError("output", str(path), "is a file", "name a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self._last = ""  # digest of the last chunk
        stored: dict[str, str] = {}
        if (identity is None or is_main()) and self.has_files():  # NFS keeps names that others found absent
            with ArrayFile(self._state) as file, file.reading():
                stored = dict(file.about["identity"])
        asked = stored if identity is None else identity
        self.identity = dict(stored or asked)  # both may differ in the halo
        self.run = fingerprint(self.identity)
        for name in sorted({*stored, *asked}) if stored else ():
            old, new = without_halo(str(stored.get(name))), without_halo(str(asked.get(name)))
            if old != new:
                old, new = around_difference(old, new)
                constraint = f"has a chain with {name}={old}, not {new}"
                raise ArgumentError("output", str(path), constraint, "use another folder, or the same model")

    @property
    def _state(self) -> Path:
        return self.path / "state.npz"

    def has_files(self) -> bool:
        """Whether the folder has a chain, or its tuning."""
        return self._state.exists() or self._chunk(0).exists()

    def reading_state(self) -> AbstractContextManager[None]:
        """Turn errors of the body, which reads a state, into ArrayFileError."""
        return reading(self._state)

    def write(self, index: int, chunk: Arrays, state: Arrays) -> None:
        """Add a chunk, and then the state after it, so that a state never precedes its chunks. Collective."""
        with raise_on_all_processes():
            if is_main():
                write_arrays(self._chunk(index), chunk, {"run": self.run, "chunk": index, "after": self._last})
                with ArrayFile(self._chunk(index)) as file:
                    self._last = file.digest
        self.write_state(state)

    def write_state(self, state: Arrays) -> None:
        """Replace the state alone. Collective."""
        on_main(write_arrays, self._state, state, {"identity": self.identity, "last": self._last})

    def begin_again(self, state: Arrays) -> None:
        """Replace the state by one without chunks, and remove the chunks. Collective."""
        self._last = ""
        self.write_state(state)
        with raise_on_all_processes():
            if is_main():
                for path in self.path.glob("chunk_*.npz"):
                    path.unlink()

    def read(self, *, noise: bool = True) -> tuple[Arrays, list[Arrays]]:
        """The last state on disk, empty without one, and the chunks up to it, with or without their noise."""
        if not self.has_files():
            return {}, []
        chunks, self._last = list[Arrays](), ""
        with ArrayFile(self._state) as file:
            state = file.arrays()
            with file.reading():
                count = int(state.get("chunks", 0))
            for index in range(count):
                with ArrayFile(self._chunk(index)) as chunk:
                    chunk.expect({"run": self.run, "chunk": index, "after": self._last})
                    arrays, self._last = chunk.arrays(), chunk.digest
                chunks.append({name: x for name, x in arrays.items() if noise or name != "noise"})
            file.expect({"last": self._last})
        return state, chunks

    def load(self) -> Chain:
        """All draws up to the state."""
        state, chunks = self.read()
        if not chunks:
            raise ArgumentError("output", str(self.path), "has no draws yet", "sample first")
        with self.reading_state():
            moments = {name: state[f"moments/{name}"] for name in Moments._fields}
            discarded = int(state["restarts/gradients"])
        return chain_of(chunks, moments, discarded)

    def _chunk(self, index: int) -> Path:
        return self.path / f"chunk_{index:05d}.npz"


def chain_of(chunks: list[Arrays], moments: Arrays, discarded: int = 0) -> Chain:
    """The chain of these chunks and moments of the noise, after `discarded` gradients of other draws."""
    joined = {name: np.concatenate([c[name] for c in chunks], axis=1) for name in chunks[0] if name != "noise"}
    parameters, projections, powers = (_named(joined, prefix) for prefix in ("parameter/", "projection/", "power/"))
    return Chain(
        parameters=parameters,
        logdensity=joined["logdensity"],
        density_shift=joined["density_shift"],
        energy_change=joined["energy_change"],
        acceptance_rate=joined["acceptance_rate"],
        gradients=int(np.sum(joined["gradients"])) + discarded,
        failures=int(np.sum(~joined["nonans"].astype(bool))),
        noise_mean=moments["mean"],
        noise_sd=np.sqrt(moments["square"] / max(float(moments["draws"]) - 1, 1)),
        noise=np.stack([c["noise"] for c in chunks]) if "noise" in chunks[0] else None,
        projections={float(k): x for k, x in projections.items()},
        powers={float(k): x for k, x in powers.items()},
    )


def _named(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names have a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def identity_of(parts: Mapping[str, Any]) -> dict[str, str]:
    """A description of each part that is the same in another process and on other devices. Collective.

    Decompositions are left out, and fields with the metadata "derived": they follow from the others up to rounding.
    """
    return {name: _describe(part) for name, part in parts.items()}


def _describe(part: Any) -> str:
    if isinstance(part, jax.Array | np.ndarray):
        values = np.asarray(to_host(part))
        if values.ndim == 0:
            return repr(values.item())
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
        return f"{values.dtype.name}{list(values.shape)}:{digest}"
    if is_dataclass(part) and not isinstance(part, type):
        names = [f.name for f in fields(part) if f.name != "decomposition" and not f.metadata.get("derived")]
        inside = ", ".join(f"{name}={_describe(getattr(part, name, None))}" for name in names)
        return f"{type(part).__name__}({inside})"
    if isinstance(part, list | tuple):
        return "[" + ", ".join(map(_describe, part)) + "]"
    if isinstance(part, Mapping):
        return "{" + ", ".join(f"{k}: {_describe(v)}" for k, v in part.items()) + "}"
    return getattr(part, "__qualname__", None) or repr(part)


def without_halo(description: str) -> str:
    """A description without the halo of a config, which changes no result."""
    return re.sub(r"(lpt_order=\d+, )halo=('auto'|\d+), ", r"\1", description)


def around_difference(one: str, other: str) -> tuple[str, ...]:
    """Two descriptions, cut to 60 characters on each side of their first difference."""
    same = next(i for i, (a, b) in enumerate(zip(one + "\0", other + "\0", strict=False)) if a != b)
    begin = max(0, same - 60)
    return tuple(f"{'...' if begin else ''}{text[begin : same + 60]}" for text in (one, other))
