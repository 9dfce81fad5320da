"""Friends of friends on the host: the groups of points in a periodic box."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax import native, program


def group_labels(points: np.ndarray, sides: Sequence[float], length: float) -> np.ndarray:
    """Label of each point, the least index in its group; points at a distance of at most `length` belong to one group.

    Distances are those of the nearest images, in double precision. Without the native op SciPy finds the pairs, at
    some 35 bytes each. On a GPU jztree, where it is installed, finds the groups of a cube, in single precision.

    Args:
      points: coordinates from 0 to below the sides of the box, shape (points, 3).
      sides: sides of the box, more than twice the length.
      length: linking length, in the unit of the points.

    Raises:
      ValueError: on CPUs, a point is not finite or not in the box, or the box has too many cells of the length.
    """
    if len(set(sides)) == 1 and jax.default_backend() == "gpu" and importlib.util.find_spec("jztree_cuda"):
        return _on_gpu(points, float(sides[0]), length)
    native_op = native.friends_of_friends()
    if native_op is None:
        return _by_tree(points, sides, length)
    return np.frombuffer(native_op(np.ascontiguousarray(points), tuple(sides), length), np.int32)


def _on_gpu(points: np.ndarray, side: float, length: float) -> np.ndarray:
    x = np.asarray(points, np.float32)
    return np.asarray(_least_indices(np.where(x >= np.float32(side), 0, x), side, length))


@partial(program.jit, static_argnums=(1, 2))
def _least_indices(x: jax.Array, side: float, length: float) -> jax.Array:
    from jztree.fof import fof_labels  # type: ignore[import-not-found]

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
