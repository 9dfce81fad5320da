"""What is shown of a run."""

from __future__ import annotations

import io

from rich.console import Console

from pmwd_dist.cli.display import Display
from pmwd_dist.run.events import Ended, Warned


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
