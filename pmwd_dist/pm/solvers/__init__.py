"""Time integrators: drift-kick-drift solvers, and the right-hand side for every diffrax solver."""

from typing import TYPE_CHECKING

from pmwd_dist._jax.lazy import lazy_names
from pmwd_dist.pm.solvers.bullfrog import bullfrog
from pmwd_dist.pm.solvers.coefficients import Coefficients as Coefficients
from pmwd_dist.pm.solvers.coefficients import Formula as Formula
from pmwd_dist.pm.solvers.fastpm import fastpm
from pmwd_dist.pm.solvers.leapfrog import leapfrog

if TYPE_CHECKING:
    from pmwd_dist.pm.solvers.diffrax_solvers import SOLVERS as SOLVERS
    from pmwd_dist.pm.solvers.diffrax_solvers import BullFrog as BullFrog
    from pmwd_dist.pm.solvers.diffrax_solvers import FastPM as FastPM
    from pmwd_dist.pm.solvers.diffrax_solvers import LeapFrog as LeapFrog
    from pmwd_dist.pm.solvers.diffrax_solvers import ParticleMesh as ParticleMesh
    from pmwd_dist.pm.solvers.diffrax_solvers import SplitSolver as SplitSolver
else:
    __getattr__ = lazy_names(__name__)[0]  # diffrax is slow to import, and `pmwd-dist run` needs none of it

FORMULAS: dict[str, Formula] = {"bullfrog": bullfrog, "fastpm": fastpm, "leapfrog": leapfrog}
