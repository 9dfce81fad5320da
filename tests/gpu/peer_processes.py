"""What `test_peer_processes.py` runs in processes of one GPU each, as `srun` starts them.

python tests/gpu/peer_processes.py simulation    values and gradient of a simulation against one GPU
python tests/gpu/peer_processes.py killed        transforms until the last process is killed
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist.parallel import distributed

SHAPE = (64, 48, 40)


def simulated(decomposition: pmd.Decomposition, noise: Any) -> Any:
    """Density at the end, and the gradient of its variance."""
    box = tuple(2.0 * n for n in SHAPE)
    config = pmd.Config(box, SHAPE, a_start=0.1, steps=4, halo=20, lpt_order=2, decomposition=decomposition)
    cosmo = jax_cosmo.Planck15()

    def loss(noise: Any) -> Any:
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        solution = pmd.nbody(particles, cosmo, config)
        density = pmd.density(solution.particles, config)
        return jnp.mean(density**2), (density, solution.status)

    (_, (density, status)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(noise)
    assert not status.message(), status.message()
    return density, gradient


def compare() -> None:
    field = np.random.default_rng(0).standard_normal(SHAPE)
    alone = pmd.Decomposition((1, 1), jax.local_devices()[:1], backend="xla")
    expected = jax.device_get(simulated(alone, jax.device_put(field, jax.local_devices()[0])))
    decomposition = pmd.Decomposition((jax.device_count(), 1))
    assert decomposition.backend.name == "peer", decomposition
    noise = jax.make_array_from_callback(SHAPE, decomposition.sharding, lambda at: field[at])
    for what, got, whole in zip(("density", "gradient"), simulated(decomposition, noise), expected, strict=True):
        for shard in got.addressable_shards:
            np.testing.assert_allclose(shard.data, whole[shard.index], 0, 1e-11 * np.abs(whole).max(), err_msg=what)
    distributed.barrier()
    print("the simulation is fine", flush=True)


def until_killed() -> None:
    decomposition, shape = pmd.Decomposition((jax.device_count(), 1), backend="peer"), (256, 256, 256)

    @jax.jit
    def work(x: Any) -> Any:
        return jax.lax.fori_loop(
            0, 50, lambda _, x: pmd.pirfft3d(pmd.prfft3d(x, decomposition), shape, decomposition), x
        )

    x = jax.block_until_ready(work(jax.jit(lambda: jnp.ones(shape), out_shardings=decomposition.sharding)()))
    print("the first transforms are done", flush=True)
    if jax.process_index() == jax.process_count() - 1:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        x = jax.block_until_ready(work(x))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.modules["mpi4py"] = None  # type: ignore[assignment] # as where it is missing
    distributed.initialize()
    if sys.argv[1] == "simulation":
        compare()
    else:
        try:
            until_killed()
        except (ValueError, RuntimeError) as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)  # JAX would wait for the process that was killed
