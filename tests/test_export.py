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
for name in ("simulate", "slope"):
    program = jax.export.deserialize((folder / name).read_bytes())
    np.save(folder / f"{name}.npy", program.call(np.load(folder / "noise.npy")))
"""

config = pmd.Config(32.0, 8, steps=2, decomposition=(1, 1))


def simulate(noise: jax.Array) -> jax.Array:
    table = pmd.growth_table(jax_cosmo.Planck15())
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
    return pmd.density(pmd.nbody(particles, table, config).particles, config)


def slope(noise: jax.Array) -> jax.Array:
    return jax.grad(lambda x: jnp.mean(simulate(x) ** 2))(noise)


@pytest.mark.skipif(not pmd.native_available(), reason="the native ops are not installed")
def test_names_of_exported_custom_calls_are_stable():
    found = native.native_targets()
    assert NAMES <= found <= NAMES | OPTIONAL


def test_exported_programs_give_the_same_bits_in_another_process(tmp_path: Path):
    noise = pmd.white_noise(jax.random.key(0), config, jnp.float32)
    calls = {function.__name__: jax.jit(function) for function in (simulate, slope)}
    for name, call in calls.items():
        exported = export.export(call, disabled_checks=pmd.export_safety_checks())(noise)
        (tmp_path / name).write_bytes(exported.serialize())
    np.save(tmp_path / "noise.npy", noise)
    subprocess.run([sys.executable, "-W", "error", "-c", CALL, str(tmp_path)], check=True, timeout=120)
    for name, call in calls.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), call(noise))


def test_programs_of_several_devices_are_exported():
    spread = pmd.Config(32.0, 8, steps=2, decomposition=(2, 2))

    @jax.jit
    def draw(key: jax.Array) -> jax.Array:
        table = pmd.growth_table(jax_cosmo.Planck15())
        particles = pmd.lpt(pmd.linear_modes(pmd.white_noise(key, spread), table, spread), table, spread)
        return pmd.density(pmd.nbody(particles, table, spread).particles, spread)

    key = jax.device_put(jax.random.key(0), jax.NamedSharding(spread.decomposition.mesh, jax.P()))
    exported = export.export(draw, disabled_checks=pmd.export_safety_checks())(key)
    again = export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(key), draw(key))
