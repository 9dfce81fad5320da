"""Simulations and their gradients as programs of jax.export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest
from jax import export

import pmwd_dist as pmd
from pmwd_dist._jax import native

NAMES = {
    "jaxdecomp_ops_" + name
    for name in (
        *("cic_paint", "cic_paint_sums", "cic_read", "cic_read_sum", "force_transpose"),
        *("gradient", "gradient_at", "gradient_transpose", "rfft", "irfft"),
        *("kick_drift", "undo_drift", "undo_kick", "undo_drift_and_kick"),
    )
}
OPTIONAL = {  # parts of the native library that a build can leave out
    "jaxdecomp_ops_" + name
    for name in ("cudecomp_halo", "cudecomp_transpose", "peer_filtered", "peer_pad", "peer_swap", "peer_transform")
}
CALL = """
import sys
from pathlib import Path
import jax, numpy as np, pmwd_dist as pmd
folder = Path(sys.argv[1])
pmd.export_safety_checks()
program = jax.export.deserialize((folder / "program").read_bytes())
np.savez(folder / "results.npz", *program.call(np.load(folder / "noise.npy")))
"""

config = pmd.Config(32.0, 8, steps=2, lpt_order=1, decomposition=(1, 1))


def simulate(noise: jax.Array) -> jax.Array:
    table = pmd.growth_table(jax_cosmo.Planck15())
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
    return pmd.density(pmd.nbody(particles, table, config).particles, config)


@jax.jit
def with_slope(noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        density = simulate(noise)
        return jnp.mean(density**2), density

    return jax.grad(loss, has_aux=True)(noise)


@pytest.mark.skipif(not pmd.native_available(), reason="the native ops are not installed")
def test_names_of_exported_custom_calls_are_stable():
    found = native.native_targets()
    assert NAMES <= found <= NAMES | OPTIONAL


def test_an_exported_program_gives_the_same_bits_in_another_process(tmp_path: Path):
    noise = pmd.white_noise(jax.random.key(0), config, jnp.float32)
    exported = export.export(with_slope, disabled_checks=pmd.export_safety_checks())(noise)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.save(tmp_path / "noise.npy", noise)
    subprocess.run([sys.executable, "-W", "error", "-c", CALL, str(tmp_path)], check=True, timeout=120)
    with np.load(tmp_path / "results.npz") as found:
        for array, expected in zip(found.values(), with_slope(noise), strict=True):
            np.testing.assert_array_equal(array, expected)


@pytest.mark.slow
def test_programs_of_several_devices_are_exported():
    spread = pmd.Config(32.0, 8, steps=2, lpt_order=1, decomposition=(2, 2))

    @jax.jit
    def draw(key: jax.Array) -> jax.Array:
        table = pmd.growth_table(jax_cosmo.Planck15())
        particles = pmd.lpt(pmd.linear_modes(pmd.white_noise(key, spread), table, spread), table, spread)
        return pmd.density(pmd.nbody(particles, table, spread).particles, spread)

    key = jax.device_put(jax.random.key(0), jax.NamedSharding(spread.decomposition.mesh, jax.P()))
    exported = export.export(draw, disabled_checks=pmd.export_safety_checks())(key)
    again = export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(key), draw(key))
