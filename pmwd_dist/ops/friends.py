"""Friends of friends on the host: the groups of points in a periodic box, their means and cores."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax import native, program

_FEW = 10  # points, or this part of a group, in the last sphere around its core
_SHRINKING = 0.9  # ratio of the radii of two spheres


def group_labels(points: np.ndarray, sides: Sequence[float], length: float) -> np.ndarray:
    """Label of each point, the least index in its group; points at a distance of at most `length` belong to one group.

    Distances are between the nearest images, in double precision. Without the native op SciPy finds the pairs, at
    some 35 bytes each. On a GPU jztree, where it is installed, finds the groups of a cube, in single precision.

    Args:
      points: coordinates from 0 to below the sides of the box, shape (points, 3).
      sides: sides of the box, more than twice the length.
      length: linking length, in the unit of the points.

    Raises:
      ValueError: on CPUs, a point is not finite or not in the box, or the box has too many cells of the length.
    """
    if len(set(sides)) == 1 and jax.default_backend() == "gpu" and importlib.util.find_spec("jztree_cuda"):
        return np.asarray(_least_indices(np.asarray(points, np.float32), float(sides[0]), length))
    native_op = native.function("friends_of_friends")
    if native_op is None:
        return _by_tree(points, sides, length)
    return np.frombuffer(native_op(np.ascontiguousarray(points), tuple(sides), length), np.int32)


@partial(program.jit, static_argnums=(1, 2))
def _least_indices(x: jax.Array, side: float, length: float) -> jax.Array:
    from jztree.fof import fof_labels  # type: ignore[import-not-found]

    x = jnp.where(x >= side, 0, x)  # by rounding
    _, first = fof_labels(x, length, side, output_order="input")  # in an order of jztree's own
    number = jnp.arange(len(x), dtype=jnp.int32)
    return jnp.full_like(number, len(x)).at[first].min(number)[first]


def _by_tree(points: np.ndarray, sides: Sequence[float], length: float) -> np.ndarray:
    from scipy.spatial import KDTree

    pairs = KDTree(points, boxsize=np.asarray(sides, float)).query_pairs(length, output_type="ndarray").T
    return components(len(points), pairs)


def components(count: int, pairs: np.ndarray) -> np.ndarray:
    """Least number of the component of each of `count` numbers, joined by pairs, shape (2, pairs)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(pairs.shape[1], bool), tuple(pairs)), (count, count))
    _, component = connected_components(graph, directed=False)
    _, first = np.unique(component, return_index=True)
    return first[component].astype(np.int32)


def group_moments(points: np.ndarray, velocities: np.ndarray, starts: np.ndarray, sides: Sequence[float]) -> np.ndarray:
    """Centre, mean velocity and core of groups; see `pmwd_dist.observe.friends_of_friends`.

    Centre and core are those from the first point of the group on, of the images nearest to it.

    Args:
      points: coordinates of the points of groups, each group in a row, shape (points, 3).
      velocities: their velocities in single precision, shape (points, 3).
      starts: first point of each group, shape (groups,).
      sides: sides of the box.

    Returns:
      The three vectors of each group, shape (groups, 3, 3).
    """
    if not len(points):
        return np.zeros((0, 3, 3))
    native_op, sides = native.function("group_moments"), tuple(map(float, sides))
    if native_op is not None:
        arrays = (np.ascontiguousarray(x) for x in (points, velocities, starts))
        return np.frombuffer(native_op(*arrays, sides)).reshape(-1, 3, 3)
    number = np.diff(starts, append=len(points))
    x = points - np.repeat(points[starts].astype(float), number, axis=0)
    x -= sides * np.rint(x / sides)
    centre, u = (np.add.reduceat(y, starts, dtype=float) / number[:, None] for y in (x, velocities))
    return np.stack([centre, u, _cores(x, number, centre)], axis=1)


def _cores(x: np.ndarray, number: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Centres of shrinking spheres, from the centres of mass on, of groups with numbers of points at x."""
    centre, who = centre.copy(), np.arange(len(number))
    few = np.maximum(number / _FEW, np.minimum(number, _FEW))
    squared = np.maximum.reduceat(_squares(x, centre, number), np.cumsum(number) - number)
    smallest = 1e-24 * squared  # points may coincide
    while len(x):  # a sphere has points of the one before
        inside = _squares(x, centre[who], number) <= np.repeat(squared, number)
        count = np.add.reduceat(inside, np.cumsum(number) - number, dtype=np.int64)
        more = (count >= few) & (squared > smallest)
        x = np.compress(inside & np.repeat(more, number), x, axis=0)
        who, few, smallest, number = who[more], few[more], smallest[more], count[more]
        squared = squared[more] * _SHRINKING**2
        if len(x):
            centre[who] = np.add.reduceat(x, np.cumsum(number) - number) / number[:, None]
    return centre


def _squares(x: np.ndarray, centre: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Squared distances of points from the centres of their groups."""
    d = x - np.repeat(centre, number, axis=0)
    return np.einsum("ij,ij->i", d, d)
