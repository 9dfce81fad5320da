"""The program `pmwd-dist`: importing JAX takes seconds, in which it must already be possible to stop it."""

import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

_BEGAN = time.perf_counter()


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End at once, without a traceback: nothing has begun."""
    del frame
    os.write(2, b"pmwd-dist: interrupted\n" if number == signal.SIGINT else b"pmwd-dist: terminated\n")
    os._exit(128 + number)


def _open_streams() -> None:
    """Open the standard streams that are closed, whose numbers the next files would take, and allow any text.

    Like Python's own, they keep their numbers where another stream replaces them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    closed = sys.stdout is None  # pyright: ignore[reportUnnecessaryComparison]
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if closed:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr.write("pmwd-dist: warning: standard output is closed, and what it would show is lost\n")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def main() -> NoReturn:
    """Run `pmwd-dist`; until a run listens to signals itself, Ctrl-C and SIGTERM end it in one line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    _open_streams()
    os.environ.pop("MPLBACKEND", None)  # of windows: all figures are files
    try:
        from pmwd_dist.cli import main as run
        from pmwd_dist.parallel.distributed import launched_size
    except ValueError as error:
        if "--traceback" in sys.argv:
            raise
        sys.stderr.write(f"pmwd-dist: JAX does not start: {error}\n")  # it has read its variables
        sys.exit(2)

    try:
        run(began=_BEGAN)
    except SystemExit as end:
        sys.stderr.flush()
        if launched_size() == 1:  # Python would clear up for a second, and wait for threads that compile
            os._exit(int(end.code or 0))
        raise


if __name__ == "__main__":
    main()
