"""Communication backends, and the choice of one by name."""

from __future__ import annotations

from collections.abc import Mapping

from pmwd_dist._errors import ArgumentError
from pmwd_dist.parallel.backends.base import Backend as Backend
from pmwd_dist.parallel.backends.cudecomp import CuDecomp
from pmwd_dist.parallel.backends.peer import Peer
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.defaults import checked, default
from pmwd_dist.parallel.division import Division

BACKENDS: tuple[type[Backend], ...] = (Peer, XLA, CuDecomp)  # "auto" is the first that is available


def choose(name: str, options: Mapping[str, str | None], division: Division) -> Backend:
    """The backend of a name for a division, with its options; for "auto", the current default.

    Raises:
      ValueError: the name or an option is unknown, or the backend is not available for these devices.
    """
    asked = checked(name, "backend")
    name = default("backend") if asked == "auto" else asked
    if name == "auto":
        kinds = (kind for kind in BACKENDS if not kind.needs_opening)
        return next(kind() for kind in kinds if kind().unavailable_reason(division) is None)
    kind = next(kind for kind in BACKENDS if kind.name == name)
    given = {option: value for option, value in options.items() if value is not None}
    foreign = [option for option in given if option not in kind.option_names]
    if foreign and asked != "auto":
        raise ArgumentError(foreign[0], given[foreign[0]], f"is not an option of backend={name!r}", "leave it out")
    backend = kind.create({option: value for option, value in given.items() if option in kind.option_names})
    reason = None if kind.needs_opening else backend.unavailable_reason(division)
    if reason is not None:
        raise ArgumentError("backend", name, reason, "use backend='xla'")
    return backend
