"""The formats of snapshots, by name."""

from __future__ import annotations

from typing import Literal

from pmwd_dist.io.snapshot.base import File, SnapshotFormat
from pmwd_dist.io.snapshot.gadget import Gadget
from pmwd_dist.io.snapshot.swift import Swift

Format = Literal["gadget", "swift"]

FORMATS: dict[Format, SnapshotFormat] = {"gadget": Gadget(), "swift": Swift()}


def find_format(file: File) -> SnapshotFormat:
    """The format of an open file; the first one where none fits."""
    return next((kind for kind in FORMATS.values() if kind.matches(file)), FORMATS["gadget"])
