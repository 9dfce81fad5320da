"""Groups of GPUs of one host that write into each other's memory."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pmwd_dist._jax import native
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.division import Names, device_groups


def unavailable_reason(devices: Sequence[Any], shards: int) -> str | None:
    """Reason why GPUs can't write into each other's memory, in groups of `shards`, or None. Collective."""
    process, processes = jax.process_index(), tuple(sorted({device.process_index for device in devices}))
    own = tuple(sorted(device.local_hardware_id for device in devices if device.process_index == process))
    if not own:
        return f"needs GPUs of this process, {process}, too, not only of {processes}"
    if len(processes) == 1 or shards == 1:
        reason = native.peer_unavailable_reason(own)
    elif len(processes) < len(devices):
        return f"needs one process for all {len(devices)} GPUs or one for each, not {len(processes)}"
    elif (key := distributed.host_key()) is None:
        return "needs processes of one host that pmwd_dist.distributed.initialize() has joined"
    else:
        reason = native.processes_unavailable_reason(key, processes, process, own[0])
    return None if reason is None else f"cannot be used: {reason}"


def group_attributes(mesh: Mesh | None, names: Names, shards: int) -> dict[str, Any] | None:
    """Attributes of the native ops; None where the ops can't run.

    These are groups of GPUs, or of their processes where there are several, each in the order of its blocks.
    """
    if mesh is None or unavailable_reason(list(mesh.devices.flat), shards) is not None:
        return None
    several = len({device.process_index for device in mesh.devices.flat}) > 1
    number = attrgetter("process_index" if several else "local_hardware_id")
    groups = [[number(device) for device in row] for row in device_groups(mesh, names)]
    return {"processes" if several else "rows": np.array(groups).ravel(), "parts": np.array([shards])}
