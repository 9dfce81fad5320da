"""Errors of gradients by number of steps, ours beside the peers', and memory: `python -m benchmarks.gradient_error`.

The gradient of mean((1 + delta)^2) at a = 1 by the white noise, of n^3 particles, compared along random directions with
central differences of the same code in float64, and as a whole with the gradient in float64. Each code and precision
runs in a process of its own; `--noises 6` compares the gradients of as many noises, `--steps 10` takes so many steps.
Memory is XLA's plan of the compiled gradient of ours.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from benchmarks import codes, problem

NAMES, STEPS, MEMORY_STEPS = ("ours", "jaxpm", "pmpp"), (2, 5, 10, 20, 40), (10, 100, 1000)
_DIRECTIONS, _STEP = 4, 1e-5


def make(name: str, n: int, steps: int) -> Any:
    """A code that takes so many steps."""
    problem.STEPS = steps
    problem.config.cache_clear()
    return codes.load(name, n)


def inputs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise that is a float32 number everywhere, and directions."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, n, n)).astype(np.float32)
    return noise, rng.normal(size=(_DIRECTIONS, n, n, n)).astype(np.float32)


def measure(name: str, n: int, steps: int, noises: int, folder: Path, dtype: Any) -> None:
    """Write the gradients, and of a single noise in float64 differences too."""
    noise, directions = (jnp.asarray(x, dtype) for x in inputs(n))
    code = make(name, n, steps)

    def loss(noise: Any) -> Any:
        return jnp.mean(code.density(code.evolve(code.initial(noise))) ** 2)

    gradient = jax.jit(jax.grad(loss))
    out = {"gradients": np.stack([gradient(jnp.asarray(inputs(n, seed)[0], dtype)) for seed in range(noises)])}
    if dtype == jnp.float64 and noises == 1:
        value = jax.jit(loss)
        ends = [[float(value(noise + sign * _STEP * d)) for sign in (1, -1)] for d in directions]
        out["difference"] = np.array([(a - b) / (2 * _STEP) for a, b in ends])
    np.savez(folder / f"{name}-{np.dtype(dtype).name}-{steps}.npz", allow_pickle=False, **out)


def table(n: int, all_steps: Sequence[int], folder: Path) -> None:
    """Print the errors of all codes."""
    directions = inputs(n)[1].astype(float)
    print(f"{n}^3 particles; relative errors: float32 along {_DIRECTIONS} directions against differences in float64,")
    print("of the whole gradient against float64, of float64 along the directions against differences;")
    print("or, of several noises, of the whole gradient: median, largest")
    for name in NAMES:
        for steps in all_steps:
            try:
                single, double = (np.load(folder / f"{name}-{dtype}-{steps}.npz") for dtype in ("float32", "float64"))
            except FileNotFoundError:
                continue
            pairs = list(zip(single["gradients"].astype(float), double["gradients"], strict=True))
            wholes = [float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in pairs]
            if len(wholes) > 1:
                print(f"{name:6} {steps:4} steps  {np.median(wholes):.1e}  {max(wholes):.1e}", flush=True)
                continue
            ((g32, g64),), difference = pairs, double["difference"]
            along32, along64 = ((g * directions).sum((1, 2, 3)) for g in (g32, g64))
            scale = np.sqrt(np.mean(difference**2))
            errors = [np.sqrt(np.mean((x - difference) ** 2)) / scale for x in (along32, along64)]
            print(f"{name:6} {steps:4} steps  {errors[0]:.1e}  {wholes[0]:.1e}  {errors[1]:.1e}", flush=True)


def memory(n: int) -> None:
    """Print XLA's plan of memory of our gradient."""
    for steps in MEMORY_STEPS:
        code = make("ours", n, steps)

        def loss(noise: Any, code: Any = code) -> Any:
            return jnp.mean(code.density(code.evolve(code.initial(noise))) ** 2)

        compiled = jax.jit(jax.grad(loss)).lower(jax.ShapeDtypeStruct((n, n, n), jnp.float32)).compile()
        plan: Any = compiled.memory_analysis()
        total = plan.temp_size_in_bytes + plan.argument_size_in_bytes + plan.output_size_in_bytes
        print(f"ours {steps:5} steps: {total / n**3:.1f} bytes a particle", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--codes", default=",".join(NAMES))
    parser.add_argument("--noises", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--memory", type=int, metavar="N", help="only the memory, of N^3 particles")
    parser.add_argument("--worker", metavar="CODE", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        memory(options.memory)
        return
    if options.worker:
        dtype = {"0": jnp.float32, "1": jnp.float64}[os.environ["JAX_ENABLE_X64"]]
        if options.worker == "pmpp" and dtype == jnp.float64:
            peer: Any = importlib.import_module("benchmarks.codes.pmpp")  # its growth is in float64 in any case
            peer.Configuration = functools.partial(peer.Configuration, float_dtype=dtype)
        for steps in options.steps:
            measure(options.worker, options.n, steps, options.noises, options.folder, dtype)
            print(json.dumps({"code": options.worker, "steps": steps}), flush=True)
        return
    with tempfile.TemporaryDirectory() as name:
        for code in options.codes.split(","):
            for double in ("0", "1"):
                arguments = ["--worker", code, "--n", str(options.n), "--folder", name]
                arguments += ["--noises", str(options.noises), "--steps", *map(str, options.steps)]
                path = os.pathsep.join([str(Path(pmd.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
                environment = os.environ | {"JAX_ENABLE_X64": double, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.gradient_error", *arguments], env=environment, check=False
                )
        table(options.n, options.steps, Path(name))


if __name__ == "__main__":
    main()
