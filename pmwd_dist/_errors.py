"""Errors about arguments, with their parts as fields, so that callers can report other names for the arguments."""

from __future__ import annotations

from reprlib import Repr
from typing import Any

_REPR = Repr()  # at most six values of a list
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


class ArgumentError(ValueError):
    """An argument out of its range: `mesh_shape[0]=100 is not divisible by 8; use 96 or 104`.

    Args:
      argument: name of the argument.
      value: value that was passed.
      constraint: condition that the value violates, a phrase that follows the value.
      remedy: advice on the value to pass instead, an imperative; may be empty.
      axis: index of the entry, for an argument with several.
      show_value: whether the message shows the value, the first six of a list; False for arrays.
    """

    def __init__(
        self,
        argument: str,
        value: Any,
        constraint: str,
        remedy: str = "",
        *,
        axis: int | None = None,
        show_value: bool = True,
    ):
        self.argument, self.value, self.axis = argument, value, axis
        self.constraint, self.remedy = constraint, remedy
        index = "" if axis is None else f"[{axis}]"
        super().__init__(f"{argument}{index}" + (f"={_REPR.repr(value)}" if show_value else "") + f" {self.reason}")

    @property
    def reason(self) -> str:
        """Constraint and remedy, without the argument and its value."""
        return self.constraint + (f"; {self.remedy}" if self.remedy else "")
