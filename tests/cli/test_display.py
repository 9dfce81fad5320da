"""What is shown of a run."""

from __future__ import annotations

import io
import os
from contextlib import suppress

import pytest
from rich.console import Console

from pmwd_dist.cli.display import Display
from pmwd_dist.run.common.events import Ended, Judged, Warned


class Lost(io.StringIO):
    """A terminal that is gone after its first line, as that of a lost connection."""

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(5, "Input/output error")


def test_a_lost_terminal_does_not_end_the_run():
    terminal = Lost()
    with Display() as display:
        display.console = Console(file=terminal)
        display(Warned("first"))
        display(Warned("second"))
        display.show(["third"])
        display(Ended("finished", 1.0, 1))
    assert terminal.getvalue() == "warning: first\n"


def test_a_pipe_that_nobody_reads_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    ended = False
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        with Display() as display:
            display(Warned("first"))
            display(Ended("finished", 1.0, 1))
        monkeypatch.undo()
        ended = True
    assert ended


@pytest.mark.parametrize(
    ("reasons", "last"),
    [((), "chains pass all checks"), (("one", "another"), "not converged: another")],
)
def test_the_verdict_comes_last(reasons: tuple[str, ...], last: str):
    with Display() as display:
        display.console = Console(file=(shown := io.StringIO()))
        display(Judged(("table",), reasons, ("report.html",)))
        display(Ended("finished", 1.0, 1))
    assert shown.getvalue().splitlines()[:3] == ["table", "wrote report.html", "finished after 1.0 s, at most 1 B"]
    assert shown.getvalue().splitlines()[-1] == last
