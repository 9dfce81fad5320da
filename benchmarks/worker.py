"""One code, one case, one size, in a process of its own: `python -m benchmarks.worker CODE CASE N FOLDER`.

It prints one JSON object when it is compiled and warm, and one more for each line that it reads: the times of a
round. CASE `inputs` writes the initial particles of a code to FOLDER instead, and what the machine is; `inputs-final`
also those at the end.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from benchmarks import codes, measure, problem


def main(name: str, case: str, n: int, folder: Path) -> None:
    """Run as the module says."""
    if case in {"inputs", "inputs-final"}:
        _write_inputs(name, n, folder, final=case == "inputs-final")
        return
    code = codes.load(name, n)
    function, example, file = _case(code, name, case, n)
    stored = _load(folder / file, example)

    def load() -> tuple[Any, ...]:
        return tuple(map(jnp.array, stored))

    cost, call, out = measure.warm_up(function, example, load, donated=case == "forward")
    _save_observable(folder / f"{case}-{name}-{n}.npy", code, case, out)
    del out
    _say(dataclasses.asdict(cost) | {"peak_bytes": cost.peak_bytes or cost.planned_bytes})
    for _ in sys.stdin:
        _say({"seconds": measure.round_of(call, cost.first_s)})


def _case(code: Any, name: str, case: str, n: int) -> tuple[Callable[..., Any], Any, str]:
    """The function to time, its arguments as shapes, and the file that holds them."""
    noise = jax.ShapeDtypeStruct((n, n, n), jnp.float32)
    if case == "forward":
        leaves, structure = _shape_of(code.initial, noise)
        file = f"initial-{_family(name)}-{n}.npz"
        return (lambda *leaves: code.evolve(jax.tree.unflatten(structure, leaves))), leaves, file
    if case == "gradient":

        def loss(noise: Any) -> Any:
            return jnp.mean(code.density(code.evolve(code.initial(noise))) ** 2)

        return jax.value_and_grad(loss), (noise,), f"noise-{n}.npz"
    disp = jax.ShapeDtypeStruct((n, n, n, 3), jnp.float32)
    return (lambda disp: getattr(code, case)(code.place(disp))), (disp,), f"final-{n}.npz"


def _shape_of(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """Shapes of the leaves of a result, and its tree, which may be of a class that can't hold shapes."""
    structures: list[Any] = []

    def leaves(*arguments: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(function(*arguments))
        structures.append(structure)
        return leaves

    return tuple(jax.eval_shape(leaves, *arguments)), structures[0]


def _family(name: str) -> str:
    """Codes that start from the same file."""
    return "ours" if name.startswith("ours") else name


def _load(file: Path, example: Any) -> tuple[np.ndarray, ...]:
    with np.load(file) as stored:
        return tuple(np.asarray(stored[f"arr_{i}"], leaf.dtype) for i, leaf in enumerate(example))


def _save_observable(file: Path, code: Any, case: str, out: Any) -> None:
    """Save the field by which results of codes are compared: density, gradient, mesh or force."""
    field = jax.jit(code.density)(out) if case == "forward" else out[1] if case == "gradient" else out
    np.save(file, np.asarray(field, np.float32))


def _write_inputs(name: str, n: int, folder: Path, *, final: bool) -> None:
    native = pmd.native_available()
    code = codes.load("ours-jax" if name == "ours" and not native else name, n)
    noise = problem.noise(n)
    state = jax.jit(code.initial)(noise)
    np.savez(folder / f"initial-{_family(name)}-{n}.npz", *jax.tree.leaves(jax.device_get(state)))
    if name == "ours":
        np.savez(folder / f"noise-{n}.npz", np.asarray(noise))
        if final:
            np.savez(folder / f"final-{n}.npz", np.asarray(jax.jit(code.evolve)(state).disp))
        _say(measure.machine("jaxpm", "pmpp", "jaxdecomp"))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
