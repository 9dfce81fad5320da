"""The report of a run: one HTML file, made from the other files of its folder."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pmwd_dist._files import read_bytes, read_text
from pmwd_dist._memory import size
from pmwd_dist.io.arrays import reading
from pmwd_dist.report.chains import CAPTIONS
from pmwd_dist.report.page import Caption, write_page
from pmwd_dist.report.style import markup
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.folder import CONFIG, LOG, REPORT, RUN, alterations
from pmwd_dist.run.outputs.registry import KINDS

_TABLES = ("summary.csv", "prior.csv", "fit.csv")


class _Profile(BaseModel, allow_inf_nan=False):
    seconds: dict[str, float] = {}


class _Run(BaseModel, allow_inf_nan=False):
    """Values of run.json that the page shows."""

    status: str = ""
    steps: int = 0
    reasons: list[str] = []
    error: str = ""
    warnings: list[str] = []
    lines: list[str] = []
    settings: dict[str, dict[str, Any]] = {}
    versions: dict[str, str | None] = {}
    started: str = "unknown"
    ended: str = "not yet"
    machine: str = "unknown"
    peak_memory: float | None = None
    profile: _Profile = _Profile()


class _Event(BaseModel, allow_inf_nan=False):
    """Values of a line of the log that the page shows."""

    event: str
    message: str = ""
    of_figures: bool = False  # or the report: drawn or written since, perhaps
    step: int = 0
    steps: int = 0
    share: float = 0


def write_report(folder: Path) -> Path:
    """Write the report of a run, finished or not, and return its path; ValueError if the folder is no run's."""
    names, precision = manifest.files(folder), manifest.identity(folder).get("precision")
    manifest.claim(folder, [REPORT])
    run, events = _run(folder), _events(folder)
    inference = "sampler" in run.settings
    verdict, advice = _verdict(folder, run, events, inference)
    warned = [text.removeprefix("warning: ") for text in run.warnings]
    complete = all(_there(folder / name) for name in names if name.endswith(".png"))
    lasting = [event for event in events if event.event == "warning" and not (complete and event.of_figures)]
    warned += [event.message for event in lasting] + alterations(folder)
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items() if number)
    write_page(
        folder / REPORT,
        [image for image in _images(folder, names) if _there(image[0])],
        title=f"{'Inference' if inference else 'Simulation'} {folder.resolve().name}",
        verdict=verdict,
        advice=[*advice, *(f"Warning: {text}" for text in dict.fromkeys(warned))],
        good=run.status == "finished" and not run.reasons,
        numbers={name: _table(folder / name) for name in _TABLES if _there(folder / name)},
        run=[
            *(tuple(map(str.strip, (line[:12], line[12:]))) for line in run.lines),
            ("cosmological parameters", ", ".join(f"{n} = {x}" for n, x in run.settings.get("cosmology", {}).items())),
        ],
        timing=[(name, f"{seconds:.1f} s") for name, seconds in run.profile.seconds.items()],
        provenance=[
            ("started", run.started),
            ("ended", run.ended),
            ("number of starts", sum(event.event == "start" for event in events)),
            ("machine", run.machine),
            ("precision", precision),
            ("peak memory", "unknown" if run.peak_memory is None else size(run.peak_memory)),
            ("versions", versions),
        ],
        config=read_text(folder / CONFIG, own=True),
    )
    return folder / REPORT


def _images(folder: Path, names: list[str]) -> list[tuple[Path, str, Caption]]:
    """Figures among the files of a run, with words for their redshifts and captions, in the order of the page."""
    kinds = [(kind.at, kind.caption) for kind in sorted(KINDS, key=lambda kind: kind.rank) if kind.caption]
    kinds += [({name: ""}.get, caption) for name, caption in CAPTIONS.items()]
    figures = [name for name in names if name.endswith(".png")]
    return [(folder / name, at, caption) for of, caption in kinds for name in figures if (at := of(name)) is not None]


def _there(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _run(folder: Path) -> _Run:
    """Content of run.json; nothing if it is damaged or was not written."""
    try:
        return _Run.model_validate_json(read_bytes(folder / RUN, own=True))
    except (FileNotFoundError, ValueError):
        return _Run()


def _events(folder: Path) -> list[_Event]:
    """Events of the log, without lines that a kill left unfinished."""
    events = list[_Event]()
    for line in read_bytes(folder / LOG, own=True).splitlines() if _there(folder / LOG) else ():
        with suppress(ValueError):
            events.append(_Event.model_validate_json(line))
    return events


def _verdict(folder: Path, run: _Run, events: list[_Event], inference: bool) -> tuple[str, list[str]]:
    """A sentence on the state of a run, and what to do."""
    status, done = run.status, f"{run.steps} steps"
    if status == "finished" and inference:
        if run.reasons:
            return "Not converged: don't use these numbers yet.", run.reasons
        return "The chains pass all checks.", ["Compare the figures with their captions, then use the draws."]
    if status == "finished":
        count = sum(event.event == "output" for event in events)
        outputs = f"{count} output{'s' * (count != 1)}"
        return f"The run is finished: {done}, {outputs}.", ["Compare the figures with their captions."]
    done = _progress(events)
    resume = f"Go on with: pmwd-dist resume {folder}"
    if status == "failed":
        return f"The run failed {done}.", [*filter(None, [run.error]), resume]
    return f"The run {'was interrupted' if status == 'interrupted' else 'has not ended'} {done}.", [resume]


def _progress(events: list[_Event]) -> str:
    """How far a run came that has not finished."""
    for event in reversed(events):
        if event.event in ("step", "chunk"):
            return f"after step {event.step} of {event.steps}"
        if event.event == "tuning":
            return f"{event.share:.0%} through its tuning"
    return "before its first step"


def _table(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Heads, and names and cells of the rows, of a CSV file."""
    with reading(path):
        heads, *rows = csv.reader(read_text(path, own=True).splitlines())
        return heads, [
            (markup(name), ["" if x == "nan" else f"{float(x):.4g}" for x in cells]) for name, *cells in rows
        ]
