"""Expected error of P(k) at z = 0 of a configuration, from the measured tables of accuracy.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.cosmology.parameters import parameters
from pmwd_dist.cosmology.radiation import N_EFF
from pmwd_dist.pm.solvers import INTEGRATORS, Formula
from pmwd_dist.pm.time_steps import step_times
from pmwd_dist.run.settings import SimulationSetup

_CONVERGED = 5.0  # error of P(k) of a model that is converged [per cent]
# Spacing [Mpc/h] over a_start of lattices whose forces are wrong, with one and with two cells a particle.
_COLD = 330.0, 1650.0


def expected_error(simulation: SimulationSetup, times: Sequence[float]) -> tuple[float, float] | None:
    """Error of P(k) at z = 0 [per cent] up to 1/4 and to 1/2 of the particles' Nyquist frequency.

    None where nothing was measured: meshes coarser than the particles, corrections from elsewhere. Beyond the ends of
    the tables it is the error there.
    """
    config, correction, steps = simulation.config, simulation.potential_factor, len(times) - 1
    integrator = INTEGRATORS[simulation.solver]
    if _cells(config) < 1 or integrator.errors is None or (correction is not None and correction.error is None):
        return None
    error = _measured(config, integrator.errors, steps)
    if not integrator.exact_growth:
        error = error + abs(growth_change(simulation, times))
    if correction is not None:
        a, order = correction.start or (0.1, 3)
        trained = _measured(replace(config, a_start=a, lpt_order=order), "bullfrog", steps)
        error = np.asarray(correction.error) + np.maximum(error - trained, 0)
    return float(error[0]), float(error[1])


def _measured(config: Config, solver: str, steps: int) -> np.ndarray:
    """Sum of the errors of P(k) of a mesh, its force, a start and the table of a solver."""
    fine = _cells(config) >= 2
    error = _at("two_cells" if fine else "one_cell", "starts", config.a_start, config)
    if config.lpt_order < 3:
        error = error + _at(f"lpt{config.lpt_order}", "starts", config.a_start, config)
    error = error + _at(solver, "steps", steps, config)
    for option in ("spectral",) * (config.gradient == "spectral") + ("compensated",) * config.compensated:
        error = error + _at_spacing(option, config)[int(fine)]
    return error


def _cells(config: Config) -> float:
    """Mesh cells a particle along an axis; the smallest."""
    return min(m / n for m, n in zip(config.mesh_shape, config.particle_shape, strict=True))


def accuracy_line(simulation: SimulationSetup, times: Sequence[float]) -> str:
    """Description of the accuracy of P(k), with errors rounded up."""
    error = expected_error(simulation, times)
    if error is None:
        return "P(k) not measured for this mesh or solver; see docs/explanation/accuracy.md"
    if beyond := _beyond_tables(simulation.config, len(times) - 1):
        return f"P(k) not measured for {beyond}; see docs/explanation/accuracy.md"
    if simulation.start is not None and simulation.start.lattice_warning(simulation.config):
        return "P(k) not measured for a lattice beside the mesh; see docs/howto/initial_conditions.md"
    spacing = _spacing(simulation.config)
    parts = [f"{_round_up(e)} % to k = {f * math.pi / spacing:.2g}" for e, f in zip(error, (0.25, 0.5), strict=True)]
    linear = f"; linear waves feel the true force to k = {math.pi / spacing / 2:.2g} h/Mpc"
    forces = linear if simulation.config.compensated else ""
    trained = ", with force.correction" if simulation.potential_factor is not None else ""
    order = f", if start.snapshot, of unknown order, is as good as {simulation.config.lpt_order}LPT"
    start = "" if simulation.start is None else order
    about = f"P(k) at z = 0 right to about {' and '.join(parts)} h/Mpc"
    phases = _phases_and_groups(simulation, len(times) - 1)
    return f"{about}{trained}{phases}{start}{forces}; see docs/explanation/accuracy.md"


def _beyond_tables(config: Config, steps: int) -> str:
    """What lies beyond the ends of the tables, but for more steps; empty if nothing does."""
    values = (("spacings", _spacing(config), "Mpc/h between particles"), ("starts", config.a_start, "as time.a_start"))
    for name, value, unit in (*values, ("steps", min(steps, _tables()["steps"][-1]), "steps")):
        low, *_, high = _tables()[name]
        if not 0.99 * low <= value <= 1.01 * high:
            return f"{value:.3g} {unit}, but from {low:g} to {high:g}"
    return ""


def coarse_warning(config: Config) -> str | None:
    """Warning about displacements so far below a cell that cloud-in-cell does not follow them."""
    spacing, a, fine = _spacing(config), config.a_start, _cells(config) >= 2
    if spacing < 10 or spacing < _COLD[fine] * a:
        return None
    text = f"particles {spacing:.3g} Mpc/h apart at a_start = {a:g} are displaced by far less than a cell"
    remedy = "use " + "box.mesh of twice box.particles, or " * (not fine) + "a later start"
    return f"{text}, and P(k) is off by about 10 % or more; {remedy}"


def _phases_and_groups(simulation: SimulationSetup, steps: int) -> str:
    """Decorrelation and numbers of halos, from 1 to 4 Mpc/h between particles; empty where few steps change them."""
    config, correction, nodes = simulation.config, simulation.potential_factor, _tables()["spacings"][:3]
    errors = INTEGRATORS[simulation.solver].errors
    if not nodes[0] <= _spacing(config) <= nodes[-1] or errors is None or _at(errors, "steps", steps, config)[1] > 1:
        return ""
    if correction is not None:
        if (name := f"{correction.spacing:g}_{correction.cells}") not in _tables()["corrected"]:
            return ""
        lost, groups = _tables()["corrected"][name]
    else:
        row = _tables()["phases_and_groups"][int(_cells(config) >= 2)]
        lost, groups = (np.interp(np.log(_spacing(config)), np.log(nodes), column) for column in zip(*row, strict=True))
    return f", 1 - r about {lost:.1g} % at the latter, {groups:.1f} times the halos of N-body (100 particles)"


def growth_line(simulation: SimulationSetup) -> str:
    """Components that enter the growth."""
    cosmo = parameters(simulation.cosmo)
    if cosmo.n_eff is not None:
        if cosmo.m_nu is None:
            return "with radiation"
        streaming = "linear response, linear growth right to 0.1 %, suppression of P(k) to 0.5 % for 0.15 eV to k = 0.6"
        left_out = f"; maps lack their clustering, at most {100 * float(cosmo.Omega_nu / cosmo.Omega_cb):.2g} %"
        maps = "" if simulation.light_cone is None else left_out
        return f"with radiation and neutrinos of {float(cosmo.m_nu):.3g} eV in {streaming} h/Mpc{maps}"
    return f"without radiation, which lowers P(k) at early times; cosmology.n_eff = {N_EFF} adds it"


def resolution_line(simulation: SimulationSetup, compared: float | None) -> str:
    """Spacing of the particles, their Nyquist frequency and the largest wavenumber that a likelihood compares."""
    spacing = _spacing(simulation.config)
    scale = "" if compared is None else f"; the likelihood compares up to k = {compared:.2g} h/Mpc"
    return f"particles {spacing:.3g} Mpc/h apart, Nyquist frequency {math.pi / spacing:.2g} h/Mpc{scale}"


def convergence_warning(simulation: SimulationSetup, gravity: str, compared: float) -> str | None:
    """Warning that a model has not converged at the largest wavenumber that a likelihood compares [h/Mpc].

    The lattice is good to half its Nyquist frequency; forces of an N-body model are limited by the mesh and by the
    table of errors, too.
    """
    config = simulation.config
    if gravity == "linear":
        return None
    limit = math.pi / max(_spacing(config), max(config.cell_size) if gravity == "nbody" else 0) / 2
    if compared > limit * (1 + 1e-6):
        problem = f"the model has converged at most up to k = {limit:.2g} h/Mpc, half the Nyquist frequency"
    elif gravity == "nbody":
        if cold := coarse_warning(config):
            return cold
        error = expected_error(simulation, tuple(map(float, step_times(simulation.growth, config))))
        if error is None or (worst := error[compared > limit / 2 * (1 + 1e-6)]) <= _CONVERGED:
            return None
        problem = f"the error of P(k) of the model there is about {_round_up(worst)} %"
    else:
        return None
    remedy = "parameters may be biased: repeat with finer box.particles and box.mesh"
    return f"the likelihood compares up to k = {compared:.2g} h/Mpc, and {problem}; {remedy}"


def growth_change(simulation: SimulationSetup, times: Sequence[float]) -> float:
    """Change of P(k) of long waves by the time steps [per cent]."""
    integrator = INTEGRATORS[simulation.solver]
    if integrator.exact_growth:
        return 0.0
    return 100 * (long_wave_growth(integrator.formula, simulation.growth, times) ** 2 - 1)


def growth_warning(simulation: SimulationSetup, times: Sequence[float]) -> str | None:
    """Warning that the time steps change P(k) of long waves by more than 2 %."""
    change = growth_change(simulation, times)
    if abs(change) < 2:
        return None
    steps = f"{len(times) - 1} steps of {simulation.solver} from a = {times[0]:g}"
    remedy = 'use time.solver = "bullfrog", which is exact there, more time.steps, or a later time.a_start'
    return f"{steps} change P(k) by {change:+.1f} % on all scales; {remedy}"


def long_wave_growth(formula: Formula, table: GrowthTable, times: Sequence[float]) -> float:
    """Growth of a long wave by the steps of a solver, over the linear growth.

    Such a wave feels its own displacement as acceleration: the steps are sums of two numbers.
    """
    ends = jnp.asarray(times, float)
    steps = jit(jax.vmap(partial(formula, table)))(ends[:-1], ends[1:])
    disp, vel = float(table.D1(ends[0])), float(table.momentum(ends[0]))
    for before, kick, log_scale, after in zip(*(np.asarray(x, float) for x in steps[:4]), strict=True):
        disp += before * vel
        vel = 2**log_scale * vel + kick * disp
        disp += after * vel
    return disp / float(table.D1(ends[-1]))


def _at(table: str, axis: str, value: float, config: Config) -> np.ndarray:
    """Errors of a table at a value of its rows' axis and the spacing of the particles: linear in their logarithms."""
    nodes = np.log(_tables()[axis])
    return np.array([np.interp(np.log(value), nodes, column) for column in _at_spacing(table, config).T])


def _at_spacing(table: str, config: Config) -> np.ndarray:
    """Rows of a table at the spacing of the particles; ends are held."""
    x, nodes = np.log(_spacing(config)), np.log(_tables()["spacings"])
    return np.array([[np.interp(x, nodes, column) for column in zip(*row, strict=True)] for row in _tables()[table]])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _spacing(config: Config) -> float:
    """Largest distance between neighbours on the particles' lattice [Mpc/h]."""
    return max(length / n for length, n in zip(config.box_size, config.particle_shape, strict=True))


def _round_up(error: float) -> str:
    """One digit below 10 and whole numbers from there on; at least 0.5."""
    digit = 1.0 if error >= 1 else 0.1
    return f"{max(0.5, math.ceil(error / digit - 1e-9) * digit):g}"
