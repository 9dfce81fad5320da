"""Measurements of decompositions on disk: one file of JSON lines in the user's cache folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pmwd_dist._files import atomic_write, cache_folder, read_text

Key = dict[str, Any]
Record = dict[str, Any]


def path() -> Path:
    """The file autotune.jsonl in the user's cache folder."""
    return cache_folder() / "autotune.jsonl"


def machine(devices: Sequence[Any]) -> Key:
    """Properties of the machine and the software that times depend on."""
    try:
        own = version("pmwd-dist")
    except PackageNotFoundError:
        own = "0"
    on_host = {"cores": os.cpu_count()} if devices[0].platform == "cpu" else {}
    return on_host | {
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "count": len(devices),
        "processes": len({d.process_index for d in devices}),
        "driver": devices[0].client.platform_version,
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "pmwd_dist": own,
    }


def load() -> list[Record]:
    """All records of the file; none if it can't be read."""
    try:
        records = [json.loads(line) for line in read_text(path()).splitlines()]
        return [record for record in records if isinstance(record["key"], dict)]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # the last where there is no home
        return []


def find(key: Key) -> Record | None:
    """The record of a key."""
    return next((record for record in reversed(load()) if record["key"] == key), None)


def find_shape(shape: Sequence[int], devices: Sequence[Any]) -> Record | None:
    """The latest record of a real field of this shape on these devices, whatever the other settings."""
    wanted = machine(devices) | {"shape": list(shape)}
    for record in reversed(load()):
        if wanted.items() <= record["key"].items():
            return record
    return None


def store(record: Record) -> None:
    """Write a record, in place of an older one of the same key."""
    records = [old for old in load() if old["key"] != record["key"]] + [record]
    path().parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path()) as aside:
        aside.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
