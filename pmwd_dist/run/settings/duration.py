"""Durations as people write them: "10 min", "3h55m"."""

from __future__ import annotations

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)\s*(days?|d|hours?|hr?s?|minutes?|mins?|m|seconds?|secs?|s)\s*"


def duration(text: str) -> float:
    """Seconds of a duration, such as "90 s", "10 min", "3h55m" or "1 day 2 hours".

    Raises:
      ValueError: the text is no duration, or one of zero.
    """
    if not re.fullmatch(rf"\s*(?:{_PART})+", text, re.IGNORECASE):
        raise ValueError('must be a duration, such as "10 min" or "3h55m"')
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
