"""What `test_transforms_on_gpus.py` runs, in one process or under mpirun: operations and derivatives against one GPU.

python tests/gpu/transform_processes.py
mpirun -n 4 python tests/gpu/transform_processes.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import distributed

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_transforms import NAMES, TRANSFORMS, operations, weights

DERIVATIVES = ("grad", "jvp", "hessian-vector product", "vmap")  # a Jacobian takes long to compile there


def say(line: str) -> None:
    if distributed.is_main():
        print(line, flush=True)


def layouts() -> list[pmd.Decomposition]:
    """Slabs and pencils served by XLA and, in one process, slabs and a single GPU that serve themselves."""
    count = jax.device_count()
    found = [pmd.Decomposition((count // py, py), backend="xla") for py in (1, 2, count) if count % py == 0]
    if jax.process_count() == 1:
        found += [pmd.Decomposition((n, 1), jax.devices()[:n], backend="peer") for n in (count, 1)]
    return found


def transformed(layout: pmd.Decomposition, name: str, x: jax.Array) -> dict[str, Any]:
    function = operations(layout)[name]
    return jax.jit(lambda x: {"value": function(x)} | {d: TRANSFORMS[d](function)(x) for d in DERIVATIVES})(x)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    distributed.initialize()
    say(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {jax.process_count()} processes")
    here = pmd.Decomposition((1, 1), devices=jax.local_devices()[:1], backend="xla")
    count = 0
    for name in NAMES:
        expected = jax.device_get(transformed(here, name, jax.device_put(weights(0), jax.local_devices()[0])))
        for layout in layouts():
            field = weights(0)
            x = jax.make_array_from_callback(field.shape, layout.sharding, lambda at: field[at])  # noqa: B023
            for what, value in transformed(layout, name, x).items():
                atol = 1e-11 * np.abs(expected[what]).max()
                for shard in value.addressable_shards:
                    message = f"{what} of {name}, {layout}"
                    np.testing.assert_allclose(shard.data, expected[what][shard.index], 0, atol, err_msg=message)
                count += 1
        say(f"{name}: fine")
    distributed.barrier()
    say(f"{count} comparisons with one GPU are fine")


if __name__ == "__main__":
    main()
