"""Cases in processes of their own, with limits of time and memory: what may hang or swell can't take the rest along."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_REPORT_BYTES = 4096


def outcome(case: Callable[[], str], *, seconds: int, memory: int, kill_after: float | None = None) -> str:
    """What a function returns in a child process, or how it fails: "hang", "memory", "killed by 9", or its traceback.

    Args:
      case: called in a fork of this process, which may have no other threads.
      seconds: of wall time.
      memory: bytes beyond those of this process that the child may map.
      kill_after: seconds after which the child gets SIGKILL.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, _report(case, seconds, memory).encode()[:_REPORT_BYTES])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        if kill_after is not None and not select.select([pipe], [], [], kill_after)[0]:
            os.kill(child, signal.SIGKILL)
        report = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hang" if number == signal.SIGALRM else f"killed by {number}"
    return report


def _report(case: Callable[[], str], seconds: int, memory: int) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    limit = _mapped() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        return case()
    except MemoryError:
        return "memory"
    except BaseException:  # noqa: BLE001 (the parent reports it)
        return traceback.format_exc(limit=-4)


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


if sys.platform != "linux":
    raise ImportError("the limits of memory need Linux's /proc")
