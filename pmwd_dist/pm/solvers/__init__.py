"""The drift-kick-drift solvers, in one table; `diffrax_solvers`, slow to import, has them as classes."""

from typing import Literal, NamedTuple

from pmwd_dist.pm.solvers.bullfrog import bullfrog
from pmwd_dist.pm.solvers.coefficients import Coefficients as Coefficients
from pmwd_dist.pm.solvers.coefficients import Formula as Formula
from pmwd_dist.pm.solvers.fastpm import fastpm
from pmwd_dist.pm.solvers.leapfrog import leapfrog

SolverName = Literal["bullfrog", "fastpm", "leapfrog"]


class Integrator(NamedTuple):
    """A drift-kick-drift solver.

    Args:
      formula: coefficients of a step.
      exact_growth: whether long waves have linear growth at any number of steps.
      errors: table of its errors in `accuracy.toml`, without the error of linear growth; None: not measured.
    """

    formula: Formula
    exact_growth: bool
    errors: str | None


INTEGRATORS: dict[str, Integrator] = {
    "bullfrog": Integrator(bullfrog, exact_growth=True, errors="bullfrog"),
    "fastpm": Integrator(fastpm, exact_growth=True, errors="fastpm"),
    "leapfrog": Integrator(leapfrog, exact_growth=False, errors="fastpm"),
}
FORMULAS: dict[str, Formula] = {name: integrator.formula for name, integrator in INTEGRATORS.items()}
