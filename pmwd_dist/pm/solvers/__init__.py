"""Coefficients of the drift-kick-drift solvers by name; `diffrax_solvers`, slow to import, has them as classes."""

from pmwd_dist.pm.solvers.bullfrog import bullfrog
from pmwd_dist.pm.solvers.coefficients import Coefficients as Coefficients
from pmwd_dist.pm.solvers.coefficients import Formula as Formula
from pmwd_dist.pm.solvers.fastpm import fastpm
from pmwd_dist.pm.solvers.leapfrog import leapfrog

FORMULAS: dict[str, Formula] = {"bullfrog": bullfrog, "fastpm": fastpm, "leapfrog": leapfrog}
