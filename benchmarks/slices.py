"""Slices of chains: files of a size that may be copied, from which chains go on, for machines that keep nothing.

The noise is kept in half precision, 2 bytes a cell and chain: this changes the log density by less than 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmwd_dist import infer
from pmwd_dist.infer.chain.chain import Restarts, named, on_devices, restored
from pmwd_dist.infer.chain.folder import ChainFolder, identity_of
from pmwd_dist.infer.tuning.loop import begin
from pmwd_dist.io.arrays import ArrayFile, write_arrays

_POSITION = "states/position/"
_KEPT = ("tuning/", "adaptation/", "correction/", _POSITION)


def end_slice(chain: str | Path, folder: Path, draws: dict[str, Any]) -> None:
    """Write draws.npz, state.npz, and noise_0.npy and so on of each chain."""
    folder.mkdir(parents=True, exist_ok=True)
    with ArrayFile(Path(chain) / "state.npz") as file:
        arrays, about = {name: file.read(name) for name in file.names if name.startswith(_KEPT)}, file.about
    for i, noise in enumerate(arrays.pop(f"{_POSITION}noise")):
        np.save(folder / f"noise_{i}.npy", noise.astype(np.float16))
    halves = {name: x.astype(np.float16) for name, x in arrays.items() if x.ndim == 3}  # the mean of the noise
    write_arrays(folder / "state.npz", arrays | halves, about)
    np.savez_compressed(folder / "draws.npz", **draws)


def begin_slice(folder: Path, chain: str | Path, posterior: infer.Posterior, key: Any) -> None:
    """Write the state of chains without draws, with which `infer.sample` with this key goes on."""
    with ArrayFile(folder / "state.npz") as file:
        arrays, identity = file.arrays(), file.about["identity"]
    parameters = {name: arrays[f"{_POSITION}parameters/{name}"] for name in posterior.model.priors}
    noise = np.stack([np.load(file) for file in sorted(folder.glob("noise_*.npy"))]).astype(np.float32)
    positions = on_devices({"noise": noise, "parameters": parameters}, posterior.model.config, None)
    adaptation = restored(arrays, {"adaptation": posterior.preconditioner.adaptation})["adaptation"]
    run = begin(key, positions, posterior.adapted(adaptation), None)
    run = run._replace(**restored(arrays, {"tuning": run.tuning, "correction": run.correction}))
    state = named(run._asdict() | {"chunks": 0, "restarts": Restarts(final=True)})
    ChainFolder(chain, identity | identity_of({"key": jax.random.key_data(key)})).begin_again(state)


def together(earlier: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Draws of two slices, (chains, draws), and sums of their gradients."""
    joined = {name: np.concatenate([x, new[name]], axis=1) for name, x in earlier.items() if np.ndim(x) == 2}
    return new | joined | {"gradients": new["gradients"] + earlier.get("gradients", 0)}


def directions(draws: dict[str, Any]) -> dict[str, Any]:
    """S8, and the wide and the narrow principal direction of (ln sigma8, ln Omega_m)."""
    if not {"sigma8", "Omega_m"} <= draws.keys():
        return {}
    logs = np.log([draws["sigma8"], draws["Omega_m"]])
    axes = np.linalg.eigh(np.cov(logs.reshape(2, -1)))[1].T[::-1]
    names = [f"{a:+.2f} ln sigma8 {b:+.2f} ln Omega_m" for a, b in axes]
    rows = dict(zip(names, np.tensordot(axes, logs, 1), strict=True))
    return {"S8": draws["sigma8"] * np.sqrt(draws["Omega_m"] / 0.3)} | rows
