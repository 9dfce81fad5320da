"""Types, coercions and descriptions of the sections of the TOML file, and durations."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from pmwd_dist.config import BOX_SIDES

SMALLEST, LARGEST = 1e-30, 1e12  # of numbers without a bound of their own
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)\s*(days?|d|hours?|hr?s?|minutes?|mins?|m|seconds?|secs?|s)\s*"


def _three(value: object) -> object:
    values = tuple(value) if isinstance(value, list | tuple) else (value,) * 3
    if len(values) != 3:
        raise ValueError("must be one number or three")
    return values


def one_or_several(value: object) -> object:
    """A tuple of one or several values."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ValueError("must hold one value or more; leave it out for the default")
    return values


def absolute(value: str, info: ValidationInfo) -> str:
    """An absolute path of one that is relative to the folder of the TOML file, the context of the validation."""
    of_model = value == "mock" and info.field_name == "file"  # of [data]
    return value if info.context is None or of_model else str((info.context / value).absolute())


def ascending(pairs: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """One pair or more, whose first numbers ascend."""
    if not pairs or any(low >= high for (low, _), (high, _) in pairwise(pairs)):
        raise ValueError("must be pairs whose first numbers ascend")
    return pairs


File = Annotated[str, AfterValidator(absolute)]
Distance = Annotated[float, Field(ge=0, le=1e6)]
Side = Annotated[float, Field(ge=BOX_SIDES[0], le=BOX_SIDES[1])]
Count = Annotated[int, Field(ge=4, le=1 << 20)]
Three = BeforeValidator(_three)
Listed = Field(strict=False)  # a tuple, which is a list in TOML
Sides = Annotated[tuple[Side, Side, Side], Three]
Counts = Annotated[tuple[Count, Count, Count], Three]
Share = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[tuple[float, float], Listed]
Pairs = Annotated[tuple[Pair, ...], Listed]
Parts = Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], Listed]


def about(text: str, default: Any = ..., example: Any = None, **bounds: Any) -> Any:
    """A key with its description, its default, and an example for error messages."""
    return Field(default, description=text, examples=[default if example is None else example], **bounds)


class Section(BaseModel):
    """A section of the file: strict types, no NaN, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)

    @field_validator("*")
    @classmethod
    def _in_single_precision(cls, value: Any) -> Any:
        """The value; ValueError for numbers whose square or cube single precision can't hold."""
        if isinstance(value, float) and value and not SMALLEST <= abs(value) <= LARGEST:
            raise ValueError(f"must be 0, or of a size from {SMALLEST:g} to {LARGEST:g}")
        return value


Place = Annotated[tuple[Distance, Distance, Distance], Three]
OBSERVER: Any = about(
    "place of the observer of the light cone in the box [Mpc/h]; default: the centre", None, [0.0, 0.0, 0.0]
)


def duration(text: str) -> float:
    """Seconds of a duration, such as "90 s", "3h55m" or "1 day 2 hours", or those of Slurm, "24:00:00", "2-12:00:00".

    Raises ValueError if the text is no duration, or one of zero.
    """
    if slurm := re.fullmatch(r"\s*(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)\s*", text):
        text = "{}d{}h{}m{}s".format(*(part or 0 for part in slurm.groups()))
    if not re.fullmatch(rf"\s*(?:{_PART})+", text, re.IGNORECASE):
        raise ValueError('must be a duration, such as "10 min", "3h55m" or "24:00:00"')
    seconds = sum(float(number) * _UNITS[unit[0].lower()] for number, unit in re.findall(_PART, text, re.IGNORECASE))
    if seconds == 0:
        raise ValueError("must be longer than zero")
    return seconds


def duration_text(seconds: float) -> str:
    """A duration in the shortest form that `duration` reads, to a second where it is longer than that."""
    rest, parts = max(1, round(seconds)), list[str]()
    for unit, length in _UNITS.items():
        count, rest = divmod(rest, int(length))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
