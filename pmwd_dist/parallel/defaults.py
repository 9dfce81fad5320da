"""Names of communication backends, and defaults that a program or its environment may change."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

from pmwd_dist._errors import ArgumentError

BackendName = Literal["auto", "xla", "peer", "cudecomp"]
TransposeComm = Literal["mpi_p2p", "mpi_p2p_pl", "mpi_a2a", "nccl", "nccl_pl", "nvshmem", "nvshmem_pl", "nvshmem_sm"]
HaloComm = Literal["mpi", "mpi_blocking", "nccl", "nvshmem", "nvshmem_blocking"]

_CHOICES: dict[str, tuple[Any, str]] = {
    "backend": (BackendName, "auto"),
    "transpose_comm_backend": (TransposeComm, "nccl"),
    "halo_comm_backend": (HaloComm, "nccl"),
}
_set: dict[str, str] = {}


def update(name: str, value: str) -> None:
    """Change a default for the decompositions that are made from now on.

    A `Decomposition` has a fixed backend and is part of the key of every compiled function, so that a change does not
    affect functions that are compiled already. Without a call, the defaults are the environment variables PMWD_BACKEND,
    PMWD_TRANSPOSE_COMM_BACKEND and PMWD_HALO_COMM_BACKEND, else "auto", and "nccl" for cuDecomp.

    Args:
      name: "backend", "transpose_comm_backend" or "halo_comm_backend".
      value: value as for `Decomposition`, in letters of either case.

    Raises:
      ValueError: the name or the value is unknown.
    """
    if name not in _CHOICES:
        raise ArgumentError("name", name, "is not known", f"use one of {', '.join(_CHOICES)}")
    _set[name] = checked(value.lower(), name)


def default(name: str) -> str:
    """The current default; ValueError if the environment has an unknown value."""
    if name in _set:
        return _set[name]
    variable = f"PMWD_{name.upper()}"
    value = os.environ.get(variable)
    return _CHOICES[name][1] if not value else checked(value.lower(), name, variable)


def checked(value: str, name: str, argument: str | None = None) -> str:
    """The value; ValueError if it is no choice for the name."""
    choices = get_args(_CHOICES[name][0])
    if value not in choices:
        raise ArgumentError(argument or name, value, "is not known", f"use one of {', '.join(choices)}")
    return value
