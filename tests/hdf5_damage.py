"""What may lie in the place of an array of an HDF5 file, none of which can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

Make = Callable[[Any, str], None]  # in a group, with a name


def data(*arguments: Any, **options: Any) -> Make:
    return lambda group, name: group.create_dataset(name, *arguments, **options)


def link(to: Any) -> Make:
    return lambda group, name: group.__setitem__(name, to)


def objects(shape: tuple[int, ...]) -> dict[str, Make]:
    def virtual(group: Any, name: str) -> None:
        layout = h5py.VirtualLayout(shape, "f4")
        layout[:] = h5py.VirtualSource("/dev/zero", "data", shape)
        group.create_virtual_dataset(name, layout)

    return {
        "scalar": data(data=1.0),
        "null": data(data=h5py.Empty("f4")),
        "compound": data(data=np.zeros(shape[:1], [("x", "f4"), ("y", "f4"), ("z", "f4")])),
        "text": data(data=[["a", "b", "c"]] * shape[0]),
        "references": data(shape, h5py.ref_dtype),
        "empty": data((0, 3), "f4"),
        "complex": data(data=np.zeros(shape, "c8")),
        "no values": data(shape, "f4"),
        "no values, chunked": data(shape, "f4", chunks=True),
        "no values, huge": data((10**12, 3), "f4", chunks=(2**20, 3)),
        "no values, huge, contiguous": data((10**12, 3), "f4"),
        "group": lambda group, name: group.create_group(name),
        "committed datatype": link(np.dtype("f8")),
        "dangling link": link(h5py.SoftLink("/nowhere")),
        "looping link": lambda group, name: group.__setitem__(name, h5py.SoftLink(f"{group.name}/{name}")),
        "external link": link(h5py.ExternalLink("/dev/zero", "/data")),
        "virtual": virtual,
        "external values": data(shape, "f4", external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]),
    }
