"""Run by `test_programs.py`: the painted mesh has the same bits on a CPU, one GPU, and two as slabs and pencils.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/paint_on_gpus.py
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import pmwd_dist as pmd

jax.config.update("jax_enable_x64", True)
CPU, GPUS = jax.devices("cpu")[0], jax.devices("cuda")[:2]
LAYOUTS: dict[str, dict[str, Any]] = {
    "a CPU": {"pdims": (1, 1), "devices": [CPU]},
    "one GPU": {"pdims": (1, 1), "devices": GPUS[:1]},
    "slabs": {"pdims": (2, 1), "devices": GPUS},
    "slabs by XLA": {"pdims": (2, 1), "devices": GPUS, "backend": "xla"},
    "pencils": {"pdims": (1, 2), "devices": GPUS},
}


def painted(layout: dict[str, Any], halo: int, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Meshes of particles alike, with weights, and as they move; of two simulations; with an infinite weight."""
    config = pmd.Config((40.0, 64.0, 24.0), (40, 64, 24), decomposition=pmd.Decomposition(**layout), halo=halo)

    def run(disp: Any, weight: Any, ddisp: Any) -> Any:
        one = lambda x: pmd.cic_paint(x, config)  # noqa: E731
        moved = jax.jvp(lambda x, w: pmd.cic_paint(x, config, w), (disp, weight), (ddisp, weight))
        both = jax.vmap(one)(jax.numpy.stack([disp, disp + ddisp / 8]))
        return one(disp), *moved, *both, pmd.cic_paint(disp, config, weight.at[3, 3, 3].set(np.inf))

    arrays = {name: jax.device_put(value, config.decomposition.sharding) for name, value in values.items()}
    return [np.asarray(mesh) for mesh in jax.jit(run)(**arrays)]


def main() -> None:
    assert len(GPUS) == 2, GPUS
    rng, lattice = np.random.default_rng(0), (40, 64, 24)
    wide = 10.0 ** rng.uniform(-6, 6, lattice) * rng.normal(size=lattice)
    disp, ddisp = rng.normal(size=(2, *lattice, 3)).clip(-3, 3)
    values = {"disp": disp, "weight": wide, "ddisp": ddisp}
    for dtype, halo in ((np.float32, 4), (np.float32, 24), (np.float64, 4)):
        cast = {name: value.astype(dtype) for name, value in values.items()}
        expected = painted(LAYOUTS["one GPU"], halo, cast)
        assert all(np.isfinite(mesh).all() for mesh in expected[:-1])
        assert np.isnan(expected[-1]).all()
        for name, layout in LAYOUTS.items():
            for number, (mesh, own) in enumerate(zip(painted(layout, halo, cast), expected, strict=True)):
                np.testing.assert_array_equal(mesh, own, f"{name}, {dtype.__name__}, halo {halo}, mesh {number}")
    print(f"the bits of paints on {GPUS[0].device_kind} are fine", flush=True)


if __name__ == "__main__":
    main()
