"""The discretisation bias of parameters by unadjusted MCLMC, and coordinates in which it vanishes to first order.

Steps of length h, in roots of the d dimensions, sample the density

    q(z, u) = p(z, u) exp(-h^2 |grad_z log p|^2 / 24)

of fields z and parameters u to second order in h (`isokinetic.langevin_step`). With S(u) = E[|grad_z log p|^2 | u], the
sum of the curvatures at given parameters, the marginal density of u gains the factor exp(-h^2 S(u) / 24), so that its
mean moves by -h^2 Cov(u, S) / 24 to first order. The sum over many modes is a bias even if the energy error of each
mode is small. Draws have s = -h^2 (S - d) / 24 as `density_shift`.

S depends on the coordinates. In z = z' exp(sum_i e_i (u_i - c_i)) with the constants e and c it becomes

    S'(u) = S(u) exp(2 sum_i e_i (u_i - c_i)),

which does not depend on u to first order for e_i = -(dS / du_i) / (2 S). The volume of the change belongs to the
density, so that the posterior is the same for any e. A regression of s on the parameters along chains gives dS / du,

    dS / du_i = -24 b_i / h^2,    S = d - 24 E[s] / h^2.

The stretch is a part of the adapted preconditioner (`Adaptation.stretch`), and fixed while draws are kept. The common
stretch is our own; the second-order density is by Hairer, Lubich & Wanner 2006, IX, for Verlet's integrator.
"""

from __future__ import annotations

import equinox as eqx
import numpy as np

from pmwd_dist.infer.preconditioner_adaptation import Adaptation


def balanced(
    adaptation: Adaptation, numbers: np.ndarray, density_shift: np.ndarray, step_size: float, dimensions: int
) -> Adaptation:
    """The adaptation with a common stretch that keeps the sum of the curvatures constant to first order.

    Args:
      adaptation: adaptation of the chains that have drawn.
      numbers: parameters in linear theory's scales, (chains, draws, p).
      density_shift: shift of the log density of each draw, (chains, draws).
      step_size: step size of the draws.
      dimensions: number of dimensions d.
    """
    # About the mean of each chain, since chains may not be mixed.
    away = (numbers - numbers.mean(axis=1, keepdims=True)).reshape(-1, numbers.shape[-1])
    shift = np.asarray(density_shift, float)
    along = np.linalg.lstsq(away, (shift - shift.mean(axis=1, keepdims=True)).ravel(), rcond=1e-6)[0]
    per_shift = -24 * dimensions / step_size**2
    stretch = -0.5 * per_shift * along / (dimensions + per_shift * shift.mean())
    new = np.asarray(adaptation.stretch) + stretch[:, None]
    return eqx.tree_at(lambda a: a.stretch, adaptation, new.astype(adaptation.stretch.dtype))
