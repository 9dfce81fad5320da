"""Native implementations of the ops that move particles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.core import ShapedArray

from pmwd_dist._jax.ops import Target
from pmwd_dist.ops.cic.geometry import VALUE, Geometry, attributes
from pmwd_dist.ops.kernels import native_targets


def step_targets(
    name: str, in_place: Mapping[int, int], cuda_scratch: Callable[..., ShapedArray] | None = None
) -> dict[str, Target]:
    """`native_targets` of an op with a geometry and the spacing of the displacements."""
    return native_targets(name, _attributes, in_place, cuda_scratch)


def _attributes(*, geometry: Geometry, resolution: float) -> dict[str, Any]:
    return attributes(geometry, (VALUE,)) | {"resolution": np.array([resolution], np.float64)}
