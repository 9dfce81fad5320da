"""What is shown of a run."""

from __future__ import annotations

import io
import os
from contextlib import suppress

import pytest
from rich.console import Console

from pmwd_dist.cli.display import Display
from pmwd_dist.run.common.folder import Event

END = Event("end", "finished after 1.0 s", {})


class Lost(io.StringIO):
    """A terminal that is gone after its first line, as that of a lost connection."""

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(5, "Input/output error")


def test_a_lost_terminal_does_not_end_the_run():
    terminal = Lost()
    with Display() as display:
        display.console = Console(file=terminal)
        display(Event("warning", "warning: first", {}))
        display(Event("warning", "warning: second", {}))
        display.show(["third"])
        display(END)
    assert terminal.getvalue() == "warning: first\n"


def test_a_pipe_that_nobody_reads_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    ended = False
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        with Display() as display:
            display(Event("warning", "warning: first", {}))
            display(END)
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
        display(Event("verdict", "table\nwrote report.html", {"reasons": reasons}))
        display(END)
    assert shown.getvalue().splitlines()[:3] == ["table", "wrote report.html", END.text]
    assert shown.getvalue().splitlines()[-1] == last
