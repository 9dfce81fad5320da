"""Steps that end in failed simulations: they are undone, and counted, and too many of them end a run."""

from __future__ import annotations

import numpy as np

from pmwd_dist.io.arrays import Arrays
from pmwd_dist.pm.status import SimulationError


class TuningFailures:
    """Failed steps of a tuning, in all and in the stage that is under way: a block with one is undone as a whole."""

    def __init__(self):
        self._all = self._stage = self._failed = self._steps = 0

    def add(self, stage: int, fine: np.ndarray) -> None:
        """Count the steps of a block of a stage, of which those that are fine did not fail."""
        if stage != self._stage:
            self._stage, self._failed, self._steps = stage, 0, 0
        failed = int(np.sum(~np.asarray(fine, bool)))
        self._all, self._failed, self._steps = self._all + failed, self._failed + failed, self._steps + np.size(fine)

    def check(self, most: float) -> None:
        """Raise SimulationError where a larger share of the steps of the last stage failed."""
        check_share(self._failed / max(self._steps, 1), most, f"the last stage of the tuning, and {self._all} in all,")

    def pack(self) -> Arrays:
        """The counts, by name, for a file."""
        return {"failures": np.array([self._all, self._stage, self._failed, self._steps])}

    def unpack(self, arrays: Arrays) -> None:
        """Go on from what was packed, if anything was."""
        if "failures" in arrays:
            self._all, self._stage, self._failed, self._steps = (int(x) for x in arrays["failures"])


def check_share(failed: float, most: float, where: str) -> None:
    """Raise SimulationError where a larger share of steps failed than may."""
    if failed > most:
        raise SimulationError(
            f"{failed:.1%} of the steps of {where} failed, more than {most:.1%}; "
            "tune for longer, or look at the priors, the halo and the steps of the simulation"
        )
