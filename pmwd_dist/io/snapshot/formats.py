"""The formats of snapshots, by name."""

from __future__ import annotations

from typing import Literal

from pmwd_dist.io.snapshot.base import SnapshotFormat
from pmwd_dist.io.snapshot.gadget import Gadget
from pmwd_dist.io.snapshot.swift import Swift

Format = Literal["gadget", "swift"]

FORMATS: dict[Format, SnapshotFormat] = {"gadget": Gadget(), "swift": Swift()}
