"""The program `pmwd-dist`: importing the library takes seconds, in which it must already be possible to stop it."""

import os
import signal
import time
from types import FrameType
from typing import NoReturn

_BEGAN = time.perf_counter()


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End at once, without a traceback: nothing has begun."""
    del frame
    os.write(2, b"pmwd-dist: interrupted\n" if number == signal.SIGINT else b"pmwd-dist: terminated\n")
    os._exit(128 + number)


def main() -> NoReturn:
    """Run `pmwd-dist`; until a run listens to signals itself, Ctrl-C and SIGTERM end it in one line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    from pmwd_dist.cli import main as run

    run(began=_BEGAN)


if __name__ == "__main__":
    main()
