"""The particles of a snapshot as the chunks of its arrays, computed on the devices.

A chunk has rows of an array as the file holds them, and their checksum by HDF5's filter fletcher32.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Vector3
from pmwd_dist.parallel.decomposition import Shape3
from pmwd_dist.pm.particles import Particles

_ROWS = 1 << 17  # usual number of particles of a chunk
_MOST_ROWS = 1 << 20
_AHEAD = 2  # chunks on their way to the host

Chunk = dict[str, np.ndarray]  # words of 32 bits by the name of the array, the last one the checksum


class Layout(NamedTuple):
    """Names and types of the arrays, particles of a chunk, sides of the box [Mpc/h], and shape of the lattice."""

    types: tuple[tuple[str, str], ...]
    rows: int
    box: Vector3
    lattice: Shape3


def chunk_rows(block: Shape3) -> int:
    """Number of particles of a chunk: a divisor of the number of particles of a device."""
    count = math.prod(block)
    divisors = np.arange(1, min(count, _MOST_ROWS) + 1)
    divisors = divisors[count % divisors == 0]
    return int(divisors[np.argmin(np.abs(np.log(divisors / _ROWS)))])


def chunks(particles: Particles, layout: Layout, scales: Any) -> Iterator[Chunk]:
    """The chunks of the particles of this process, in the order of the file; a few of them exist at a time.

    `scales` are length and momentum of a Mpc/h, and the mass of a particle, in the units of the file.
    """
    waiting = deque[dict[str, Array]]()
    for disp, vel in zip(particles.disp.addressable_shards, particles.vel.addressable_shards, strict=True):
        first, gpu = np.asarray([s.start or 0 for s in disp.index[:3]]), disp.device.platform == "gpu"
        # A GPU copies into pinned memory by itself, and NumPy uses that memory without a copy.
        host = SingleDeviceSharding(disp.device, memory_kind="pinned_host") if gpu else None
        for start in range(0, math.prod(disp.data.shape[:3]), layout.rows) if disp.replica_id == 0 else ():
            with jax.enable_x64(True):  # for positions and IDs
                chunk = _chunk(disp.data, vel.data, np.int64(start), first, scales, layout)
            waiting.append(jax.device_put(chunk, host))
            if len(waiting) > _AHEAD:
                yield jax.tree.map(np.asarray, waiting.popleft())
    yield from (jax.tree.map(np.asarray, chunk) for chunk in waiting)


@partial(jit, static_argnames="layout")
def _chunk(disp: Array, vel: Array, start: Array, first: Array, scales: Any, layout: Layout) -> dict[str, Array]:
    """Rows from `start` of the particles of a device, whose block of the lattice begins at the site `first`."""
    _, ly, lz = (np.int32(n) for n in disp.shape[:3])
    plane = start // (ly * lz)
    row = (start - plane * (ly * lz)).astype(np.int32) + jax.lax.iota(np.int32, layout.rows)
    line = row // lz
    sites = [(plane + first[0]).astype(np.int32) + line // ly, first[1].astype(np.int32) + line % ly]
    sites.append(first[2].astype(np.int32) + row % lz)
    disp, vel = (jax.lax.dynamic_slice_in_dim(x.reshape(-1, 3), start, layout.rows) for x in (disp, vel))
    types = {name: np.dtype(code) for name, code in layout.types}
    length, momentum, mass = scales
    i, j, k = (x.astype(types["ParticleIDs"]) for x in sites)
    values = {
        "Coordinates": _positions(disp, sites, length, types["Coordinates"], layout),
        "Velocities": vel * momentum.astype(vel.dtype),
        "ParticleIDs": (i * layout.lattice[1] + j) * layout.lattice[2] + k,
        "Masses": jnp.full(layout.rows, mass),
    }
    in_file = {name: values[name].astype(dtype) for name, dtype in types.items()}
    words = {name: jax.lax.bitcast_convert_type(x, np.uint32).reshape(-1) for name, x in in_file.items()}
    return {name: jnp.append(x, _fletcher32(x)) for name, x in words.items()}


def _positions(disp: Array, sites: Sequence[Array], length: Array, dtype: np.dtype, layout: Layout) -> Array:
    """Positions in the periodic box; they are rounded once, to the type of the file."""
    columns = list[Array]()
    for axis, (box, n) in enumerate(zip(layout.box, layout.lattice, strict=True)):
        x = sites[axis] * (box / n) + disp[:, axis].astype(np.float64)
        x = ((x - box * jnp.floor(x / box)) * length).astype(dtype)
        # Zero for positions that round up to the side of the box, and displacements too large to be resolved.
        columns.append(jnp.where((x >= 0) & (x < (box * length).astype(dtype)), x, jnp.zeros_like(x)))
    return jnp.stack(columns, -1)


def _fletcher32(words: Array) -> Array:
    """Checksum of the bytes of a chunk as HDF5 stores it.

    Of big-endian numbers w_i of 16 bits: sum w_i, and sum (n - i) w_i in the upper half, both modulo 2^16 - 1. A sum is
    zero only if all numbers are. Modulo 2^16 - 1, the bytes of a number are swapped by a factor of 256.
    """
    low, high = words & np.uint32(0xFFFF), words >> np.uint32(16)
    both = (low + high).astype(np.uint64)
    left = np.uint64(2 * words.size) - np.uint64(2) * jax.lax.iota(np.uint64, words.size)
    base = np.uint64(0xFFFF)
    first, second = (
        jnp.where(total == 0, total, (total % base * np.uint64(256) + base - np.uint64(1)) % base + np.uint64(1))
        for total in (both.sum(), (left * both - high.astype(np.uint64)).sum())
    )
    return (second << np.uint64(16) | first).astype(np.uint32)
