"""Time integrators: drift-kick-drift solvers for diffrax, and the right-hand side for every other diffrax solver."""

from pmwd_dist.pm.solvers._term import ParticleMesh as ParticleMesh
from pmwd_dist.pm.solvers.base import Coefficients as Coefficients
from pmwd_dist.pm.solvers.base import SolverState as SolverState
from pmwd_dist.pm.solvers.base import SplitSolver as SplitSolver
from pmwd_dist.pm.solvers.base import Step as Step
from pmwd_dist.pm.solvers.base import advance as advance
from pmwd_dist.pm.solvers.base import drifted as drifted
from pmwd_dist.pm.solvers.base import ended as ended
from pmwd_dist.pm.solvers.base import first_drift as first_drift
from pmwd_dist.pm.solvers.base import first_drifts as first_drifts
from pmwd_dist.pm.solvers.base import kick_and_drifts as kick_and_drifts
from pmwd_dist.pm.solvers.base import on_grid as on_grid
from pmwd_dist.pm.solvers.bullfrog import BullFrog as BullFrog
from pmwd_dist.pm.solvers.fastpm import FastPM as FastPM
from pmwd_dist.pm.solvers.leapfrog import LeapFrog as LeapFrog

SOLVERS: dict[str, type[SplitSolver]] = {"bullfrog": BullFrog, "fastpm": FastPM, "leapfrog": LeapFrog}
