"""The light cone of a run: filled step by step, written with the lensing by it at the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from pmwd_dist.config import Config
from pmwd_dist.observe.angular_power import AngularPower, angular_power, limber_power
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.observe.lensing import convergence, shear
from pmwd_dist.observe.power import mean
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.status import Code, SimulationError
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.forward import Epoch
from pmwd_dist.pm.stepping.host import StepSchedule
from pmwd_dist.pm.stepping.step import MidStep, undo_half_drift
from pmwd_dist.report.results import CONVERGENCE, CONVERGENCE_POWER, LIGHT_CONE
from pmwd_dist.report.tables import Table
from pmwd_dist.run.settings import SimulationSetup
from pmwd_dist.run.settings.light_cone import LightCone, field_of_view
from pmwd_dist.run.simulation.fields import write_fields

if TYPE_CHECKING:
    from pmwd_dist.run.simulation.plan import SimulationJob

_LARGEST_NSIDE = 1024  # of harmonics


def empty(cone: LightCone) -> Array:
    """The shells of a light cone before the first step."""
    like = shells_like(cone)
    return jax.jit(lambda: jnp.zeros(like.shape, like.dtype), out_shardings=like.sharding)()


def shells_like(cone: LightCone) -> jax.ShapeDtypeStruct:
    """Shape, type and sharding of the shells of a light cone."""
    pixels = cone.pixels if isinstance(cone, FlatSkyLightCone) else (pixel_count(cone.nside),)
    sharding = NamedSharding(cone.config.decomposition.mesh, cone.spec)
    return jax.ShapeDtypeStruct((len(cone.edges) - 1, *pixels), np.dtype(jnp.result_type(float)), sharding=sharding)


@partial(jax.jit, static_argnames=("cone", "config"), donate_argnames=("particles", "shells"))
def advance_and_see(
    particles: ExactParticles,
    shells: Array,
    motion: MidStep,
    schedule: StepSchedule,
    done: Any,
    cone: LightCone,
    config: Config,
) -> tuple[MidStep, Array]:
    """One step of `host.advance`, and the shells with the particles that the light cone crosses in it.

    The halo of the config is for forces; the light cone has a halo of its own. Particles and shells are donated;
    `motion` is the rest of the state of the step, with particles=().
    """
    before = motion._replace(particles=particles)
    after = host.advance(before, schedule, done, config)
    start, end = (Epoch(schedule.times[done + i], undo_half_drift(m, config)) for i, m in enumerate((before, after)))
    seen = cone(start, end, schedule.table)
    shells = shells + jnp.where(after.status.code == Code.SUCCESSFUL, seen, 0)
    sharding: Any = shells_like(cone).sharding
    return after, jax.lax.with_sharding_constraint(shells, sharding)


def files(cone: LightCone | None) -> list[str]:
    """Names of the files of a light cone."""
    return [] if cone is None else [LIGHT_CONE, *([CONVERGENCE_POWER] if has_harmonics(cone) else []), CONVERGENCE]


def has_harmonics(cone: LightCone) -> bool:
    """Whether shear and spectra are computed: harmonics of larger spheres take longer than the simulation."""
    return isinstance(cone, FlatSkyLightCone) or cone.nside <= _LARGEST_NSIDE


def write_maps(plan: SimulationJob, shells: Array) -> dict[str, Table]:
    """Write the shells, and the convergence and shear of each source; return the tables of spectra. Collective.

    Raises:
      SimulationError: the maps are not finite.
      OSError, SharedError: the file can't be written.
    """
    cone, wanted, simulation = plan.simulation.light_cone, plan.settings.observe.light_cone, plan.simulation
    assert cone is not None
    assert wanted is not None
    about: dict[str, Any] = {"sources": wanted.sources, "edges": cone.edges, "box_size": cone.config.box_size}
    if isinstance(cone, FlatSkyLightCone):
        side = field_of_view(wanted, cone)
        offsets = random_offsets(cone, plan.settings.noise.seed) if wanted.shift else None
        see = {"field": side, "pixels": wanted.rays, "offsets": offsets}
        place = tuple(cone.observer if i == cone.along else 0.0 for i in range(3))
        about |= {"sky": "flat", "observer": place, "line_of_sight": cone.line_of_sight, "field": side}
    else:
        side, see = None, dict[str, Any]()
        about |= {"sky": "sphere", "observer": cone.observer, "nside": cone.nside, "ordering": "RING"}
    fields = _lens(shells, simulation, wanted.sources, see)
    if not np.isfinite(np.asarray(fields["convergence"])).all():
        raise SimulationError("the light cone is not finite: a displacement exceeds 100 Mpc/h; use a smaller sigma8")
    pieces = {"mass": (shells, {"unit": "mass of a particle", "axes": "shell, pixels"})}
    for name, values in fields.items():
        pieces[name] = values, {"axes": "source, " + ("component, " * (name == "shear")) + "pixels"}
    about["units"] = "edges, box_size, observer: Mpc/h; field: degrees"
    write_fields(plan.folder / LIGHT_CONE, pieces, about)
    if not has_harmonics(cone):
        return {}
    return {CONVERGENCE_POWER: _spectra(fields["convergence"], simulation, wanted.sources, side)}


def random_offsets(cone: FlatSkyLightCone, seed: int) -> np.ndarray:
    """Shifts of the shells across the line of sight, the same for all shells of one repetition of the box [Mpc/h]."""
    depth = cone.config.box_size[cone.along]
    middle = (np.asarray(cone.edges[1:]) + np.asarray(cone.edges[:-1])) / 2
    repetition = np.floor((middle + cone.observer) / depth).astype(int)
    shifts = np.random.default_rng(seed).uniform(0, cone.sides, (repetition.max() + 1, 2))
    return shifts[repetition]


def _lens(
    shells: Array, simulation: SimulationSetup, sources: tuple[float, ...], see: dict[str, Any]
) -> dict[str, Array]:
    """Maps of the convergence and, where it has harmonics, of the shear of all sources, on every device."""
    cone: Any = simulation.light_cone
    functions: dict[str, Any] = {"convergence": convergence}
    if has_harmonics(cone):
        functions["shear"] = shear

    def lens(shells: Array) -> dict[str, Array]:
        return {
            name: jnp.stack([function(shells, simulation.cosmo, cone, source=z, **see) for z in sources])
            for name, function in functions.items()
        }

    return jax.jit(lens, out_shardings=cone.config.decomposition.replicated)(shells)


def _spectra(maps: Array, simulation: SimulationSetup, sources: tuple[float, ...], side: float | None) -> Table:
    """C_l of each map, its Gaussian scatter, and C_l of linear theory with the windows of the maps."""
    cone = simulation.light_cone
    assert cone is not None
    columns: dict[str, np.ndarray] = {}
    for z, values in zip(sources, maps, strict=True):
        found = angular_power(values, side=side)
        found = found if side is not None else _binned(found)
        some = np.asarray(found.modes) > 0
        ell, power, modes = (np.asarray(x, float)[some] for x in (found.ell, found.power, found.modes))
        # A table ends where nothing is simulated.
        linear = limber_power(
            ell, lambda k: np.nan_to_num(simulation.linear_power(k)), simulation.cosmo, cone.edges, z, cone=cone
        )
        columns |= {"l": ell, "modes": modes, f"C_l z={z:g}": power}
        columns |= {f"error z={z:g}": power * np.sqrt(2 / modes), f"linear z={z:g}": np.asarray(linear, float)}
    where = "the whole sky" if side is None else f"a field of {side:.4g} degrees"
    note = "linear: with the window of the pixels, for waves that fit into the box and on the lattice of the particles"
    return Table(f"convergence of {where}", columns, {}, note)


def _binned(power: AngularPower) -> AngularPower:
    """A spectrum of each l from 2 on in bins of a tenth, as means over the modes; some bins at small l are empty."""
    ell, values, modes = (np.asarray(x, float)[2:] for x in (power.ell, power.power, power.modes))
    index = np.floor(np.log(ell / 2) / np.log(1.1)).astype(int)
    count = jnp.asarray(np.bincount(index, modes))
    ell, values = (mean(jnp.asarray(np.bincount(index, modes * x)), count) for x in (ell, values))
    return AngularPower(ell, values, count)
