"""Who moves data between devices: names, and defaults that a program or its environment may change."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

Backend = Literal["auto", "xla", "peer", "cudecomp"]
TransposeComm = Literal["mpi_p2p", "mpi_p2p_pl", "mpi_a2a", "nccl", "nccl_pl", "nvshmem", "nvshmem_pl", "nvshmem_sm"]
HaloComm = Literal["mpi", "mpi_blocking", "nccl", "nvshmem", "nvshmem_blocking"]

_CHOICES: dict[str, tuple[Any, str]] = {
    "backend": (Backend, "auto"),
    "transpose_comm_backend": (TransposeComm, "nccl"),
    "halo_comm_backend": (HaloComm, "nccl"),
}
_set: dict[str, str] = {}


def update(name: str, value: str) -> None:
    """Change a default for the decompositions that are made from now on.

    A `Decomposition` keeps what it was made with and is part of the key of every compiled function, so a change never
    meets a function that was compiled before it. Without a call, the environment decides: PMWD_BACKEND,
    PMWD_TRANSPOSE_COMM_BACKEND, PMWD_HALO_COMM_BACKEND; without it "auto", and "nccl" for cuDecomp.

    Args:
      name: "backend", "transpose_comm_backend" or "halo_comm_backend".
      value: as for `Decomposition`, in letters of either case.

    Raises:
      ValueError: an unknown name or value.
    """
    if name not in _CHOICES:
        raise ValueError(f"name={name!r} is not known; use one of {', '.join(_CHOICES)}")
    _set[name] = checked(value.lower(), name)


def default(name: str) -> str:
    """The default in force.

    Raises:
      ValueError: the environment has an unknown value.
    """
    if name in _set:
        return _set[name]
    variable = f"PMWD_{name.upper()}"
    value = os.environ.get(variable)
    return _CHOICES[name][1] if not value else checked(value.lower(), name, variable)


def checked(value: str, name: str, argument: str | None = None) -> str:
    """The value, if it is one of those that a name may have.

    Raises:
      ValueError: it isn't.
    """
    choices = get_args(_CHOICES[name][0])
    if value not in choices:
        raise ValueError(f"{argument or name}={value!r} is not known; use one of {', '.join(choices)}")
    return value


def chosen(backend: str, transpose_comm: str | None, halo_comm: str | None) -> tuple[str, str | None, str | None]:
    """What moves data, with the defaults in force filled in; the last two are cuDecomp's.

    Raises:
      ValueError: an unknown value, or cuDecomp's with another backend.
    """
    asked = checked(backend, "backend")
    if backend == "auto":
        backend = default("backend")
    if transpose_comm is not None:
        checked(transpose_comm, "transpose_comm_backend", "transpose_comm")
    if halo_comm is not None:
        checked(halo_comm, "halo_comm_backend", "halo_comm")
    if backend != "cudecomp":
        if asked not in ("auto", "cudecomp") and (transpose_comm or halo_comm):
            raise ValueError(f"transpose_comm={transpose_comm!r} and halo_comm={halo_comm!r} are of backend='cudecomp'")
        return backend, None, None
    transpose_comm = transpose_comm or default("transpose_comm_backend")
    return backend, transpose_comm, halo_comm or default("halo_comm_backend")
