"""JAX's persistent compilation cache in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from pmwd_dist._checks import check_callable
from pmwd_dist._files import cache_folder, message
from pmwd_dist._jax.program import settle_cache

MAX_BYTES = 1 << 30
_ENTRY = "*-cache"
_ABOUT = "persistent compilation cache"  # words in every warning of JAX about the cache


def enable_compilation_cache(warn: Callable[[str], None] | None = None) -> None:
    """Cache compiled programs in the user's cache folder, from which later processes load them.

    JAX's own variables come first: JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=0
    switches the cache off, and JAX_COMPILATION_CACHE_MAX_SIZE bounds it [bytes].

    With several CPU devices, in one process or several, the cache is switched off, JAX's own too: programs that are
    read from it can hang. The function starts JAX's devices: call it after `distributed.initialize`, and before JAX
    compiles a program.

    Args:
      warn: function that is called once, with the reason, if the cache can't be used, or others may write into a folder
        of JAX_COMPILATION_CACHE_DIR; default: a RuntimeWarning.
    """
    warn = partial(warnings.warn, category=RuntimeWarning, stacklevel=2) if warn is None else warn
    check_callable(warn, "warn", "print; JAX_COMPILATION_CACHE_DIR names the folder")
    config: Any = jax.config
    if not settle_cache():
        return
    if (chosen := config.jax_compilation_cache_dir) is not None:
        if "://" not in chosen and (found := _open_to_others(Path(chosen))) is not None:
            warn(f"JAX_COMPILATION_CACHE_DIR={chosen}: others may write into {found}, and its programs are executed")
        return
    folder = default_folder()
    try:
        _prepare(folder)
        bound = config.jax_compilation_cache_max_size
        _prune(folder, MAX_BYTES if bound < 0 else bound)
    except OSError as error:
        warn(f"compiled programs are not kept: {message(error)}; JAX_ENABLE_COMPILATION_CACHE=0 ends this warning")
        return
    config.update("jax_compilation_cache_dir", str(folder))
    # JAX's own bound needs a lock for each entry, which a killed process leaves locked.
    config.update("jax_compilation_cache_max_size", -1)
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a run has dozens of small programs
    reset_cache()  # JAX looks at its settings once, when it compiles its first program
    _report_once(folder, warn)


def default_folder() -> Path:
    """Folder of the programs for processors with the features of this one: programs may crash on others."""
    features = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(features.encode()).hexdigest()[:8]
    return cache_folder() / "programs" / f"{platform.machine()}-{digest}"


def report() -> str:
    """Folder, number and size of the cached programs, as text."""
    config: Any = jax.config
    folder = config.jax_compilation_cache_dir
    if not config.jax_enable_compilation_cache or folder is None:
        return "off"
    entries = _entries(Path(folder))
    return f"{folder}: {len(entries)} programs, {sum(size for _, size, _ in entries) / 1e6:.1f} MB"


def _prepare(folder: Path) -> None:
    """Make the folder, for this user alone; OSError if others may write into it: programs in it are executed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (found := _open_to_others(folder)) is not None:
        raise PermissionError(1, "others may write into this folder, of which programs are executed", str(found))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "this folder can't be written", str(folder))


def _open_to_others(folder: Path) -> Path | None:
    """The folder if others may write into it, or the first folder above in which anybody may rename folders."""
    with suppress(OSError):  # not there, or not to be seen
        status = folder.stat()
        if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
            return folder
    for parent in (*folder.absolute().parents, *folder.resolve().parents):
        with suppress(OSError):
            if parent.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                return parent
    return None


def _prune(folder: Path, bound: int) -> None:
    """Remove the oldest programs until the rest has fewer bytes than the bound."""
    entries = sorted(_entries(folder))
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total <= bound:
            break
        path.unlink(missing_ok=True)
        total -= size


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """Time of writing, size [bytes] and path of each program."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob(_ENTRY):
        with suppress(FileNotFoundError):  # another process has removed it
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    return found


def _report_once(folder: Path, warn: Callable[[str], None]) -> None:
    """Report the first warning of JAX about the cache, and drop further ones."""
    others, reported = warnings.showwarning, list[str]()

    def show(text: Warning | str, *where: Any, **more: Any) -> None:
        if _ABOUT not in str(text):
            others(text, *where, **more)
            return
        if "reading" in str(text):
            _prune(folder, 0)  # a process that is killed while it writes an entry leaves half of it
        if not reported:
            reported.append(str(text).rpartition(": ")[2])
            warn(f"{folder}: {reported[0]}; programs are compiled anew")

    warnings.showwarning = show
