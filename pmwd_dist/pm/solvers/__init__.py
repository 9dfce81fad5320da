"""Time integrators: drift-kick-drift solvers for diffrax, and the right-hand side for every other diffrax solver."""

from pmwd_dist.pm.solvers.base import Coefficients as Coefficients
from pmwd_dist.pm.solvers.base import ParticleMesh as ParticleMesh
from pmwd_dist.pm.solvers.base import SplitSolver as SplitSolver
from pmwd_dist.pm.solvers.bullfrog import BullFrog as BullFrog
from pmwd_dist.pm.solvers.fastpm import FastPM as FastPM
from pmwd_dist.pm.solvers.leapfrog import LeapFrog as LeapFrog

SOLVERS: dict[str, type[SplitSolver]] = {"bullfrog": BullFrog, "fastpm": FastPM, "leapfrog": LeapFrog}
