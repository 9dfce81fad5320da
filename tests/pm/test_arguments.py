"""Arguments of a simulation: numbers of every type, and what is wrong said in a sentence."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe import LagrangianBias, redshift_space
from pmwd_dist.parallel import inputs
from pmwd_dist.pm import nbody, saves

N = 4
CONFIG = pmd.Config(box_size=4.0, mesh_shape=N, steps=2, lpt_order=2, decomposition=(1, 1))
COSMO = problems.cosmology()
FIELD = np.random.default_rng(0).integers(0, 9, (N, N, N))
MODES = np.zeros((N, N, N // 2 + 1), complex)
DISP, SHORT = np.zeros((N, N, N, 3)), np.zeros((2, N, N, 3))
OTHER = r"\(2, 4, 4, 3\) must be \(4, 4, 4, 3\)"

BIG = pmd.Config(box_size=8.0, mesh_shape=N, lpt_order=2, decomposition=(1, 1))

# Most of these arguments are not those of the annotations.
pytestmark = pytest.mark.usefixtures("unchecked")


def particles(dtype: Any = float) -> pmd.Particles:
    return pmd.Particles(np.zeros((N, N, N, 3), dtype), np.zeros((N, N, N, 3), dtype))


def solution() -> pmd.Solution:
    zero = jnp.zeros(())
    return pmd.Solution(particles(), None, None, None, pmd.Status(zero, zero, zero, zero))


def evolve(**options: Any) -> pmd.Solution:
    return pmd.nbody(particles(), COSMO, CONFIG, **options)


def made(box_size: float = 4.0, a: float = 0.1) -> pmd.Particles:
    """Particles of LPT."""
    config = BIG if box_size == 8 else CONFIG
    return pmd.lpt(MODES, COSMO, config, a=a)


def distorted() -> pmd.Particles:
    return redshift_space(made(), COSMO, CONFIG, a=0.1)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", ">f8", "float16", "longdouble"])
def test_fields_of_every_type_are_those_in_double_precision(dtype: str) -> None:
    field, kind = FIELD.astype(dtype), "float32" if dtype == "float16" else "float64"
    for values, wanted in ((inputs.real(field, "x"), kind), (inputs.complex_(field, "x"), np.result_type(kind, "c8"))):
        assert values.dtype == wanted
        np.testing.assert_array_equal(values, field.astype(float))
    with jax.enable_x64(False):
        assert inputs.real(field, "x").dtype == "float32"
        assert inputs.complex_(field, "x").dtype == "complex64"


def test_lists_are_arrays() -> None:
    np.testing.assert_array_equal(
        pmd.power_spectrum(FIELD.tolist(), CONFIG).power, pmd.power_spectrum(FIELD, CONFIG).power
    )
    own = pmd.Decomposition((1, 1))
    np.testing.assert_array_equal(pmd.prfft3d(FIELD.tolist(), (1, 1)), pmd.prfft3d(FIELD, own))
    np.testing.assert_array_equal(pmd.halo_reduce(FIELD > 4, 0, own), (FIELD > 4).astype(int))


def test_particles_of_two_precisions_are_in_the_wider_one() -> None:
    given = particles(np.float32)
    mixed = pmd.Particles(given.disp.astype(float), given.vel)
    assert jax.eval_shape(lambda p: pmd.nbody(p, COSMO, CONFIG), mixed).particles.vel.dtype == float
    whole = pmd.Particles(given.disp.astype(int), given.vel.astype(int))
    assert jax.eval_shape(lambda p: pmd.nbody(p, COSMO, CONFIG), whole).particles.disp.dtype == float


def test_particles_know_their_box_and_scale_factor_until_they_are_transformed() -> None:
    first, final = made(), pmd.nbody(made(), COSMO, CONFIG).particles
    assert (first.origin.a, final.origin.a, final.origin.box_size) == (0.1, 1.0, CONFIG.box_size)
    assert jax.tree.structure(first) == jax.tree.structure(final) == jax.tree.structure(particles())
    doubled = jax.tree.map(lambda x: 2 * x, first)  # of no box and time, as those of users
    assert doubled.origin == particles().origin
    origins = jax.vmap(lambda a: made(a=a))(jnp.asarray([0.5])).origin, made(a=jnp.asarray(0.5)).origin
    assert [x.a for x in origins] == [None, None]


MISUSE: list[tuple[Any, str]] = [
    (lambda: pmd.power_spectrum(FIELD.astype(complex), CONFIG), r"field.dtype=complex128 must be real"),
    (lambda: pmd.power_spectrum(FIELD[:2], CONFIG), r"field.shape=\(2, 4, 4\) must be mesh_shape=\(4, 4, 4\)"),
    (lambda: pmd.power_spectrum("field", CONFIG), r"field.dtype='<U5' must be a type of numbers; pass an array"),
    (lambda: pmd.power_spectrum([[1], [2, 3]], CONFIG), r"field.dtype='object' must be a type of numbers"),
    (lambda: pmd.power_spectrum(jax.random.key(0), CONFIG), r"field.dtype='key<fry>' must be a type of numbers"),
    (lambda: pmd.linear_modes(FIELD * 1j, COSMO, CONFIG), r"noise.dtype=complex128 must be real"),
    (lambda: pmd.linear_modes(FIELD[0], COSMO, CONFIG), r"noise.shape=\(4, 4\) must be particle_shape"),
    (lambda: pmd.linear_modes(FIELD, COSMO, CONFIG, linear_power=3.0), r"linear_power is a float and must be"),
    (lambda: pmd.linear_modes(FIELD, COSMO, CONFIG, linear_power=lambda k: -k), r"linear_power is P = -.* positive"),
    (lambda: pmd.linear_modes(FIELD, COSMO, CONFIG, linear_power=lambda k: k[:3]), r"array of shape \(3,\) for k"),
    (lambda: pmd.lpt(FIELD, COSMO, CONFIG), r"modes.shape=\(4, 4, 4\) must be \(4, 4, 3\); make them with"),
    (lambda: pmd.lpt(FIELD[..., :3], COSMO, CONFIG, a=np.nan), r"a=nan must be a scale factor from 0.0001 to 2"),
    (lambda: pmd.lpt(FIELD[..., :3], COSMO, CONFIG, a=[0.1, 0.2]), r"a=\[0.1, 0.2\] must be one number"),
    (lambda: pmd.nbody((FIELD, FIELD), COSMO, CONFIG), r"particles is a tuple and must be Particles; use Particles"),
    (lambda: pmd.nbody(particles(complex), COSMO, CONFIG), r"particles.disp.dtype=complex128 must be real"),
    (lambda: pmd.nbody(pmd.Particles(SHORT, DISP), COSMO, CONFIG), rf"particles.disp.shape={OTHER}"),
    (lambda: pmd.nbody(pmd.Particles(DISP, SHORT), COSMO, CONFIG), rf"particles.vel.shape={OTHER}"),
    (lambda: evolve(solver="euler"), r"solver='euler' must be .* bullfrog, fastpm"),
    (lambda: evolve(adjoint="x"), "adjoint='x' must be a diffrax.AbstractAdjoint; use ReversibleAdjoint"),
    (lambda: evolve(stepsize_controller=0.1), "stepsize_controller=0.1 must be a diffrax.AbstractStepSizeController"),
    (lambda: evolve(solver=pmd.FastPM), r"solver=.* must be a solver; use BullFrog"),
    (
        lambda: evolve(adjoint=diffrax.DirectAdjoint(), accumulate=lambda *_: 0.0),
        "accumulate needs a drift-kick-drift solver, .* leave out solver, adjoint",
    ),
    (lambda: evolve(saveat=[1.0, 0.5]), r"saveat=\[1.0, 0.5\] must rise; sort"),
    (lambda: evolve(saveat=[]), r"saveat=\[\] must be one scale factor or more"),
    (lambda: evolve(saveat=["z"]), r"saveat.dtype='<U1' must be a type of numbers"),
    (lambda: evolve(saveat=3.0), r"a=3 lies outside a_start=0.1 .. a_stop=1.0"),
    (
        lambda: evolve(potential_factor=lambda k, a: k[1:]),
        r"potential_factor returns an array of shape \(127,\) for k of shape \(128,\) and a number a",
    ),
    (lambda: evolve(potential_factor=lambda k: k), r"potential_factor fails for wavenumbers k .* take \(k, a\)"),
    (lambda: evolve(potential_factor=lambda k, a: "x"), r"potential_factor fails for wavenumbers k"),
    (lambda: evolve(potential_factor=1.1), r"potential_factor=1.1 must be a function"),
    (lambda: pmd.ReversibleAdjoint(stored_potentials=-1), "stored_potentials=-1 must be a whole number, 0 or more"),
    (lambda: pmd.ReversibleAdjoint(stored_potentials="all"), "stored_potentials='all' must be a number of steps or"),
    (lambda: pmd.ReversibleAdjoint(stored_potentials=None), "stored_potentials=None must be a whole number"),
    (lambda: evolve(progress_meter=True), r"progress_meter=True must be a progress meter; use diffrax\.Tqdm"),
    (lambda: evolve(max_steps=1.5), r"max_steps=1.5 must be a whole number"),
    (
        lambda: pmd.nbody(made(a=0.2), COSMO, CONFIG),
        r"particles.origin.a=0.2 is not config.a_start=0.1; .* set it to 0.2",
    ),
    (
        lambda: pmd.nbody(made(8.0), COSMO, CONFIG),
        r"particles.origin.box_size=\(8.0, 8.0, 8.0\) is not the box of .*4.0",
    ),
    (lambda: pmd.density(made(8.0), CONFIG), r"particles.origin.box_size=.* is not the box of the config"),
    (
        lambda: redshift_space(made(), COSMO, CONFIG, a=1.0),
        r"particles.origin.a=0.1 is not a=1; pass particles of",
    ),
    (lambda: pmd.density(redshift_space(made(8.0, 0.5), COSMO, BIG, a=0.5), CONFIG), r"is not the box of"),
    (lambda: redshift_space(distorted(), COSMO, CONFIG, a=0.1), "are in redshift space already; pass those"),
    (lambda: pmd.nbody(distorted(), COSMO, CONFIG), "particles are in redshift space already"),
    (lambda: pmd.save_snapshot("s", made(), COSMO, CONFIG, a=1.0), r"origin.a=0.1 is not a=1; .* set it to 0.1"),
    (lambda: pmd.density(particles().disp, CONFIG), r"particles is a ndarray and must be Particles"),
    (lambda: pmd.cic_paint(particles().disp, CONFIG, "heavy"), r"weight.dtype='<U5' must be a type of numbers"),
    (lambda: pmd.cic_paint(DISP, CONFIG, FIELD * 1j), r"weight.dtype=complex128 must be real"),
    (lambda: pmd.cic_paint(DISP, CONFIG, FIELD[0]), r"weight.shape=\(4, 4\) must be \(4, 4, 4\) or \(\)"),
    (lambda: pmd.cic_paint(SHORT, CONFIG), rf"disp.shape={OTHER}"),
    (lambda: pmd.cic_read(FIELD * 1j, DISP, CONFIG), r"field.dtype=complex128 must be real; pass"),
    (lambda: pmd.cic_read(FIELD[:2], DISP, CONFIG), r"field.shape=\(2, 4, 4\) must be mesh_shape=\(4, 4, 4\)"),
    (lambda: pmd.fftfreq3d((4, 4), (1, 1)), r"shape=\(4, 4\) must be three positive numbers of cells"),
    (lambda: pmd.fftfreq3d((4, 4, 4), None), r"decomposition=None must be a Decomposition"),
    (lambda: pmd.growth(1.0, problems.cosmology(h="high")), r"cosmo.h='high' must be a finite number"),
    (
        lambda: pmd.growth(1.0, problems.cosmology(h=67.0)),
        r"cosmo.h=67.0 must be .* to 3; it is the Hubble constant",
    ),
    (lambda: pmd.growth(1.0, problems.cosmology(Omega_c=np.array(np.nan))), "cosmo.Omega_c=.* must be a finite"),
    (lambda: pmd.growth(1.0, problems.cosmology(Omega_c=-0.1)), r"cosmo.Omega_c=-0.1 must be .* from 0 to 10"),
    (lambda: pmd.linear_power(1.0, problems.cosmology(sigma8=81.59)), r"cosmo.sigma8=81.59 must be .* 0 to 5"),
    (lambda: pmd.growth(1.0, problems.cosmology(w0=30.0)), r"cosmo.w0=30.0 must be .* -5 to 5"),
    (lambda: pmd.growth(1.0, problems.cosmology(wa=1.5)), r"cosmo.wa=1.5 must be less than -w0: .* early"),
    (lambda: pmd.with_neutrinos(COSMO, m_nu=np.array(-0.1)), r"cosmo.m_nu=array\(-0.1\) must be a finite number"),
    (lambda: pmd.with_neutrinos(COSMO, n_eff=np.array(-1.0)), r"cosmo.n_eff=array\(-1.\) must be a finite number"),
    (lambda: pmd.with_dark_energy(COSMO, [0.3, 1.0], [0.5, -1.0]), "begins below 0"),
    (
        lambda: pmd.observe.bias_weights(MODES, LagrangianBias(b1=1.0), COSMO, CONFIG, smoothing=jnp.asarray(-3.0)),
        r"smoothing=Array\(-3., .* must be a finite number from 1e-06",
    ),
    (lambda: pmd.observe.angular_power(FIELD[0], side=jnp.asarray(-1.0)), r"side=Array\(-1., .* from 0.001 to 90 deg"),
    (lambda: pmd.observe.smoothed(FIELD, CONFIG, [1.0, 2.0]), "radius must be one finite number from 0"),
    (lambda: pmd.growth(1.0, problems.cosmology(n_s=[1.0, 1.1])), r"cosmo.n_s must be one finite"),
    (lambda: pmd.growth(1.0, {}), r"cosmo is a dict and must be a cosmology, such as jax_cosmo"),
    (lambda: pmd.with_dark_energy(COSMO, [0.3, np.inf], [-1.0, -1.0]), "a must be a finite number"),
    (lambda: pmd.with_dark_energy(COSMO, [0.3, 1.0], [-1.0, 40.0]), "w must be a finite number from -5 to 5"),
    (lambda: pmd.linear_modes(FIELD, COSMO, CONFIG, f_nl=np.nan), r"f_nl=nan must be a finite number"),
    (
        lambda: pmd.observe.bias_weights(MODES, LagrangianBias(b1=1.0), COSMO, CONFIG, f_nl=1e9),
        r"f_nl=1000000000.0 must be",
    ),
    (lambda: pmd.linear_modes(FIELD, COSMO, CONFIG, f_nl=1e300), r"f_nl=1e\+300 must be a finite number from -1e\+06"),
    (lambda: pmd.white_noise(jax.random.key(0), CONFIG, fixed="no"), r"fixed='no' must be True or False"),
    (lambda: pmd.ForceCorrection(0.0), r"spacing=0.0 must be a finite number from 0.001 to 1e\+06 Mpc/h"),
    (lambda: pmd.ForceCorrection(jnp.float32(-2.0)), r"spacing=Array\(-2., .* must be a finite number from 0.001"),
    (lambda: pmd.ForceCorrection(2.0, steps=(0, 9)), "steps must be a finite number from 1 to"),
    (
        lambda: evolve(potential_factor=pmd.ForceCorrection(2.0)),
        r"correction is for particles 2 Mpc/h apart, and here are particles 1 .* take another",
    ),
    (lambda: pmd.observe.smoothed(FIELD, CONFIG, np.nan), r"radius=nan must be a finite number from 0 to 1e\+06"),
    (lambda: pmd.white_noise(jax.random.key(0), pmd.Config(1.0, 10**5)), "shape=.* needs 8e.* TB of memory"),
    (lambda: pmd.white_noise(0, CONFIG), r"key=0 must be a key; for example jax.random.key\(0\)"),
    (lambda: pmd.white_noise(jax.random.key(0), CONFIG, int), r"dtype=.* must be a type of real floating-point"),
    (lambda: pmd.prfft3d(np.array(["a"]), (1, 1)), r"field.dtype='<U1' must be a type of numbers"),
    (lambda: pmd.pifft3d(None, (1, 1)), r"spectrum.dtype='object' must be a type of numbers"),
    (lambda: pmd.prfft3d(FIELD, "slabs"), r"decomposition='slabs' must be a Decomposition; for example"),
    # One argument in the place of another, and the function to call first.
    (lambda: pmd.growth(COSMO, 0.5), r"a is a \w+ and must be .* number.*; call growth\(a, cosmo\)"),
    (lambda: pmd.growth_rate(pmd.growth_table(COSMO), 0.5), r"call growth_rate\(a, cosmo\)"),
    (lambda: pmd.comoving_distance(COSMO, 0.5), r"call comoving_distance\(a, cosmo\)"),
    (lambda: pmd.linear_power(CONFIG, COSMO), r"call linear_power\(k, cosmo\)"),
    (lambda: pmd.growth(0.5, 0.5), r"cosmo is a float and must be a cosmology"),
    (lambda: pmd.linear_modes(MODES, COSMO, CONFIG), r"noise.dtype=complex\d+ must be real; call white_noise"),
    (lambda: pmd.linear_modes(COSMO, FIELD, CONFIG), r"noise is a \w+ and must be an array; call white_noise"),
    (lambda: pmd.lpt(FIELD, COSMO, CONFIG), r"modes.shape=.*; make them with linear_modes"),
    (lambda: pmd.lpt(made(), COSMO, CONFIG), r"modes is a Particles and must be an array; call linear_modes"),
    (lambda: pmd.nbody(MODES, COSMO, CONFIG), r"must be Particles; .* call lpt\(modes, cosmo, config\) first"),
    (lambda: pmd.density(solution(), CONFIG), r"particles is a Solution .*; pass solution.particles"),
    (lambda: pmd.power_spectrum(made(), CONFIG), r"field is a Particles .*; call density\(particles, config\) first"),
    (lambda: pmd.power_spectrum(solution(), CONFIG), r"field is a Solution .*; call density"),
    (lambda: pmd.power_spectrum(CONFIG, FIELD), r"field is a Config .*; call density"),
    (lambda: pmd.power_spectrum(MODES, CONFIG), r"field.dtype=complex\d+ must be real; call density"),
    (lambda: pmd.observe.cross_power(FIELD * 1.0, made(), CONFIG), r"reference is a Particles"),
    (lambda: pmd.cic_paint(made(), CONFIG), r"disp is a Particles and must be an array; pass particles.disp"),
    (lambda: pmd.cic_read(made().disp, FIELD * 1.0, CONFIG), r"disp.shape=.*; pass particles.disp"),
    (lambda: pmd.ParticleMesh(CONFIG).vf(0.5, particles(), COSMO), r"must be a growth table; pass args=growth_table"),
    (lambda: pmd.BullFrog().init(None, 0.1, 1.0, particles(), COSMO), "must be a growth table"),
    (lambda: evolve(solver=diffrax.KenCarp3()), r"solver=.* is for several terms.*use BullFrog\(\)"),
    (lambda: evolve(solver=diffrax.Kvaerno5()), r"solver=.* is implicit.*use BullFrog\(\)"),
]


@pytest.mark.parametrize(("call", "message"), MISUSE)
def test_misuse_names_argument_value_and_remedy(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_noise_beyond_the_memory_can_be_planned():
    planned = jax.eval_shape(lambda: pmd.white_noise(jax.random.key(0), pmd.Config(1.0, 10**5)))
    assert planned.shape == (10**5,) * 3


SWAPPED = r"config is a .* and must be a pmwd_dist.Config; it follows the cosmology or the field"


@pytest.mark.parametrize(
    "call",
    [
        lambda config: pmd.white_noise(jax.random.key(0), config),
        lambda config: pmd.linear_modes(FIELD, CONFIG, config),
        lambda config: pmd.lpt(FIELD[..., :3], CONFIG, config),
        lambda config: pmd.nbody(particles(), CONFIG, config),
        lambda config: pmd.density(particles(), config),
        lambda config: pmd.cic_paint(particles().disp, config),
        lambda config: pmd.cic_read(FIELD, particles().disp, config),
        lambda config: pmd.power_spectrum(FIELD, config),
        lambda config: pmd.save_snapshot("s.hdf5", particles(), CONFIG, config, 1.0),
        lambda config: pmd.load_snapshot("s.hdf5", config),
        lambda config: pmd.snapshot_density("s.hdf5", config),
    ],
)
@pytest.mark.parametrize("config", [{"box_size": 4.0, "mesh_shape": N}, COSMO], ids=["dict", "swapped"])
def test_something_else_than_a_config_is_named(call: Any, config: Any) -> None:
    with pytest.raises(ValueError, match=SWAPPED):
        call(config)


def test_solvers_by_name_and_save_times_as_a_list() -> None:
    np.testing.assert_array_equal(saves.as_saveat([0.5, 1]).subs.ts, diffrax.SaveAt(ts=jnp.array([0.5, 1])).subs.ts)
    assert saves.as_saveat(np.float64(0.5)).subs.ts.shape == (1,)
    for name, solver in {"bullfrog": pmd.BullFrog(), "fastpm": pmd.FastPM(), "LeapFrog": pmd.LeapFrog()}.items():
        assert nbody.as_solver(name) == solver
    run = lambda p: pmd.nbody(p, COSMO, CONFIG, solver="fastpm", saveat=[0.5, 1.0])  # noqa: E731
    assert jax.eval_shape(run, particles()).snapshots.disp.shape == (2, N, N, N, 3)


@pytest.mark.parametrize("single_precision", [True, False])
def test_a_table_beyond_the_precision_of_the_program(single_precision: bool) -> None:
    k = np.geomspace(1e-2, 1e2, 64)
    with jax.enable_x64(not single_precision), pytest.raises(ValueError, match=r"linear_power holds P = .* to .*e\+"):
        pmd.linear_modes(
            FIELD, COSMO, CONFIG, linear_power=(k, np.full(64, 1e39 if single_precision else np.finfo(float).tiny / 2))
        )
