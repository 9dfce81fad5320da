"""Run by `test_programs.py`: steps reversed to the bit and from the host, gradients against those of a CPU, graphs.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/whole_runs_on_gpu.py [cells along a side, 64]

On a GPU a run must launch CUDA graphs, as XLA's profiler sees them. Without a GPU this tries the program itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.ops import cic
from pmwd_dist.pm.particles import exact
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.time_steps import step_times

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "pm"))
from test_adjoint import check_restored, there_and_back

jax.config.update("jax_enable_x64", True)
CPU, GPU = jax.devices("cpu")[0], jax.devices()[0]
SIGMA8 = 0.8159


def start(n: int, dtype: Any, steps: int) -> tuple[pmd.Particles, Any, pmd.Config]:
    """Particles, growth table and config of a run on the GPU."""
    config = pmd.Config(2.0 * n, n, steps=steps, decomposition=pmd.Decomposition((1, 1), [GPU]))
    cosmo = jax_cosmo.Planck15()
    noise = pmd.white_noise(jax.random.key(0), config, dtype)
    return pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config), pmd.growth_table(cosmo), config


def check_steps_undone(n: int, dtype: Any, steps: int = 100) -> None:
    """Forward and back restores every bit of particles that are on their grids."""
    particles, table, config = start(n, dtype, steps)
    outcome, before, _ = jax.jit(lambda x: there_and_back(x, table, config, pmd.BullFrog()))(particles)
    check_restored(particles, outcome, before, steps)


def check_steps_from_the_host(n: int, dtype: Any) -> None:
    """One step a call, as `pmwd-dist run` takes them, gives the bits of `nbody`."""
    particles, table, config = start(n, dtype, 10)
    table = jax.tree.map(lambda x: x.astype(dtype), table)
    expected = pmd.nbody(particles, table, config).raise_if_failed().particles
    schedule = host.make_schedule(table, step_times(table, config).astype(dtype), config, pmd.BullFrog().coefficients)
    moved = host.half_drift(exact(particles, config), successful(dtype), schedule, 0, config)
    for done in range(10):
        moved = host.advance(moved, schedule, done, config)
    got = host.with_units(host.undo_half_drift(moved, config), schedule, 10)
    for name in ("disp", "vel"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=f"{name}, {dtype.__name__}")


def gradients(device: Any, noise: np.ndarray, dtype: Any) -> tuple[np.ndarray, ...]:
    """Loss of a default simulation, and its gradient by the noise, by sigma8 and by Omega_c."""
    n = len(noise)
    config = pmd.Config(2.0 * n, n, decomposition=pmd.Decomposition((1, 1), [device]))

    def loss(noise: Any, sigma8: Any, omega_c: Any) -> Any:
        cosmo = jax_cosmo.Planck15(sigma8=sigma8, Omega_c=omega_c)
        modes = pmd.linear_modes(noise, cosmo, config)
        solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config)
        return jnp.mean(pmd.density(solution.particles, config) ** 2)

    at = jax.device_put((noise.astype(dtype), np.asarray(SIGMA8, dtype), np.asarray(0.2589, dtype)), device)
    program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    (value, by), again = program(*at), jax.tree.leaves(program(*at))
    assert by[0].dtype == dtype
    for first, second in zip((value, *by), again, strict=True):
        np.testing.assert_array_equal(first, second, err_msg=f"two calls, {device}, {dtype.__name__}")
    return tuple(np.asarray(x, float) for x in (value, *by))


def check_gradients(n: int) -> list[str]:
    """Double precision to 1e-12 of a CPU's; single precision to 1e-2, usually 1e-4."""
    noise = np.random.default_rng(0).standard_normal((n, n, n))
    expected, lines = gradients(CPU, noise, np.float64), []
    for dtype, bound in ((np.float64, 1e-12), (np.float32, 1e-2)):
        got = gradients(GPU, noise, dtype)
        errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(got, expected, strict=True)]
        text = ", ".join(f"{e:.1e}" for e in errors)
        lines.append(f"{dtype.__name__}: loss, gradient by noise, sigma8, Omega_c off by {text}")
        assert max(errors) < bound, lines[-1]
    return lines


def launches_graphs(n: int) -> bool:
    """Whether a run of ten steps launches CUDA graphs: XLA's recordings of several kernels, ours among them."""
    particles, table, config = start(n, np.float32, 10)
    run = jax.jit(lambda particles: pmd.nbody(particles, table, config).particles)
    jax.block_until_ready(run(particles))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run(particles))
        traces = list(Path(folder).rglob("*.xplane.pb"))
        assert traces, "the profiler wrote nothing"
        return any(b"cuGraphLaunch" in trace.read_bytes() for trace in traces)


def main() -> None:
    on_gpu = GPU.platform == "gpu"
    assert not on_gpu or cic.cuda_unavailable_reason() is None, cic.cuda_unavailable_reason()
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    check_steps_undone(n, np.float32)
    check_steps_undone(n // 2, np.float64)
    check_steps_from_the_host(n, np.float32)
    check_steps_from_the_host(n // 2, np.float64)
    for line in check_gradients(n // 2):
        print(line)
    assert GPU.platform == "cpu" or launches_graphs(n), "a run launches its kernels one by one, not as CUDA graphs"
    print(f"whole runs on {GPU.device_kind} are fine", flush=True)


if __name__ == "__main__":
    main()
