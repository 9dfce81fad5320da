"""What must hold before a run starts: its folder is its own, and so is the checkpoint that it continues from."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist.io import checkpoint
from pmwd_dist.io.arrays import ArrayFileError, reading
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.distributed import SharedError, raise_on_all_processes
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.fingerprint import Identity, differences, identity
from pmwd_dist.run.common.folder import CONFIG, finished
from pmwd_dist.run.common.lock import folder_lock
from pmwd_dist.run.simulation.plan import Plan


class StartError(ValueError):
    """A run that can't start or resume as asked; its results and checkpoints are as they were."""


@contextmanager
def start_errors() -> Generator[None]:
    """Raise errors of the body, on whichever process, as StartError on every process. Collective at its end."""
    try:
        with raise_on_all_processes():
            yield
    except (ValueError, SharedError) as error:
        raise StartError(str(error)) from error


@contextmanager
def hold_folder(plan: Plan, *, resume: bool = False) -> Generator[None]:
    """Keep other runs out of the folder of a plan, which was prepared for this very run. Collective.

    Raises:
      StartError: another process uses the folder, it is that of another run, or the run to resume is finished.
    """
    with ExitStack() as stack:
        with start_errors():
            if distributed.is_main():
                kept = manifest.identity(plan.folder)
                stack.enter_context(folder_lock(plan.folder))
                _check_identity(plan, kept, plan.folder, "this folder's run")
                if resume and finished(plan.folder):  # perhaps by another process, until a moment ago
                    raise ValueError(f"{plan.folder}: the run is finished; nothing is left to do")
        yield


def find_checkpoint(plan: Plan) -> tuple[Path, dict[str, Any]] | None:
    """The last checkpoint of a plan's folder and its description, None if there is none. Collective.

    Raises:
      StartError: it is damaged, or of another simulation than that of the plan.
    """
    with start_errors():
        path = checkpoint.latest(plan.folder)
        content = None if path is None else checkpoint.meta(path)
        if path is not None and content is not None:
            with reading(path, checkpoint.REMEDY):
                _check_identity(plan, content["identity"], path, "the checkpoint")
                _check_steps(plan, content, path)
    return None if path is None or content is None else (path, content)


def description(plan: Plan, step: int) -> dict[str, Any]:
    """What a checkpoint says about its run: its identity, its steps, and the outputs up to this one."""
    outputs = [[i, z] for i, z in sorted(plan.outputs.items()) if i <= step]
    return {"identity": identity(plan), "times": list(plan.times), "outputs": outputs}


def _check_identity(plan: Plan, kept: Identity, where: Path, holder: str) -> None:
    if lines := differences(kept, identity(plan), holder):
        raise ArrayFileError("\n".join([f"{where}: made by other settings than those of {CONFIG}", *lines]))


def _check_steps(plan: Plan, content: dict[str, Any], path: Path) -> None:
    """Raise unless the steps and outputs up to the checkpoint are those of the plan."""
    step = content["step"]
    done = [z for i, z in content["outputs"] if i < step]
    planned = [z for i, z in sorted(plan.outputs.items()) if i < step]
    before, times = content["times"][: step + 1], plan.times[: step + 1]
    # Other devices round the growth function otherwise.
    same = len(before) == len(times) and np.allclose(before, times, rtol=1e-5)
    if same and len(done) == len(planned) and np.allclose(done, planned):
        return
    raise ArrayFileError(
        f"{path}: output.redshifts would change the {step} steps that are done, to z = {1 / before[-1] - 1:.4g}, with "
        f"outputs at z = {', '.join(f'{z:.4g}' for z in done) or 'none'}; "
        "set it back, or start a new run in another folder"
    )
