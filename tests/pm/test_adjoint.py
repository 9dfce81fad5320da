"""The reversible adjoint: bits, values, memory and failures."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from simulations import COSMO, configure, initial, moved

import pmwd_dist as pmd
from pmwd_dist.pm.particles import exact, momentum_unit
from pmwd_dist.pm.status import Code, successful
from pmwd_dist.pm.stepping.backward import evolve_vjp
from pmwd_dist.pm.stepping.forward import Inputs, Outcome, Save, evolve
from pmwd_dist.pm.stepping.reversible import evolve_reversibly
from pmwd_dist.pm.stepping.step import coefficients_of
from pmwd_dist.pm.time_steps import step_times

SAVEAT = diffrax.SaveAt(t0=True, ts=[0.3, 1.0], t1=True)


def prepare(
    solver: Any, particles: pmd.Particles, table: Any, times: Any, args: Any, config: pmd.Config, factor: Any = None
) -> Inputs:
    coefficients = coefficients_of(solver.coefficients, table, times, config, factor)
    return Inputs(exact(particles, config), coefficients, times, args)


class Factor(eqx.Module):
    """Factor of the potential with parameters."""

    strength: Any

    def __call__(self, k: Any, a: Any) -> Any:
        return 1 + self.strength[0] * a * k**2 / (1 + k**2) + self.strength[1] * jnp.exp(-k)


# --- bits --------------------------------------------------------------------------------------------------------


def there_and_back(
    particles: pmd.Particles, table: Any, config: pmd.Config, solver: Any, factor: Any = None
) -> tuple[Outcome, pmd.Particles, Inputs]:
    """The outcome of a run, the particles at its start from its reversal, and cotangents."""
    dtype = particles.disp.dtype
    inputs = prepare(solver, particles, table, step_times(table, config).astype(dtype), (), config, factor)
    outcome = evolve(inputs, (), config)
    cotangents = Outcome(outcome.particles, (), (), None)  # type: ignore[arg-type]
    before, cotangents = evolve_vjp(inputs, outcome, cotangents, (), config)
    return outcome, before.with_unit(momentum_unit(config, dtype)), cotangents


@pytest.mark.parametrize(
    ("solver", "pdims", "dtype", "steps", "factor"),
    [
        (pmd.BullFrog(), (1, 1), jnp.float32, 1000, Factor((0.3, 0.1))),
        (pmd.FastPM(), (4, 1), jnp.float32, 100, None),
        pytest.param(pmd.LeapFrog(), (2, 2), jnp.float64, 100, Factor((0.3, 0.1)), marks=pytest.mark.slow),
    ],
    ids=["1x1", "4x1", "2x2"],
)
def test_the_backward_pass_restores_every_bit(
    solver: Any, pdims: tuple[int, int], dtype: Any, steps: int, factor: Any
) -> None:
    config = configure(pdims, steps=steps)
    particles, table = initial(config, dtype=dtype), pmd.growth_table(COSMO)
    jit = jax.jit if pdims == (2, 2) else problems.optimized  # both must restore the bits
    outcome, before, cotangents = jit(lambda x: there_and_back(x, table, config, solver, factor))(particles)
    check_restored(particles, outcome, before, steps)
    assert np.isfinite(cotangents.particles.disp).all()


def check_restored(particles: pmd.Particles, outcome: Outcome, before: pmd.Particles, steps: int) -> None:
    assert outcome.status.step == steps
    assert outcome.particles.disp.dtype == particles.disp.dtype
    assert np.abs(outcome.particles.disp - particles.disp).max() > 1
    np.testing.assert_array_equal(before.disp, particles.disp)
    np.testing.assert_array_equal(before.vel, particles.vel)


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rtol", "stored"), [(jnp.float64, 1e-12, 2), pytest.param(jnp.float32, 1e-6, 4, marks=pytest.mark.slow)]
)
def test_gradients_are_those_of_stored_states(dtype: Any, rtol: float, stored: int) -> None:
    """Against JAX's own derivative of the same loop, with what is kept on the way; divided, see test_gradients.py."""
    config = configure()
    particles, table = initial(config, dtype=dtype), jax.tree.map(lambda x: x.astype(dtype), pmd.growth_table(COSMO))

    def observe(a: Any, particles: pmd.Particles, amplitude: Any) -> Any:
        return amplitude * a * pmd.density(particles, config), jnp.asarray(7)

    def work(before: Any, after: Any, amplitude: Any) -> Any:
        force = (after.particles.vel - before.particles.vel) / (after.a - before.a)
        return amplitude * before.particles.disp * force, jnp.asarray(1)

    saves = Save((0, 2, 4), observe), Save((4,), lambda a, particles, amplitude: particles)

    def loss(run: Any, disp: Any, table: Any, amplitude: Any, strength: Any) -> Any:
        times = step_times(table, config).astype(dtype)
        start, factor = moved(particles, disp), Factor(strength)
        inputs = prepare(pmd.BullFrog(), start, table, times, amplitude, config, factor)
        out = run(inputs, saves, config, accumulate=work)
        (fields, _), end = out.saved
        weights = jnp.arange(1, 4, dtype=dtype)
        saved = jnp.sum(jnp.mean(fields**2, (1, 2, 3)) * weights) + jnp.mean(end.vel**2)
        return saved + jnp.mean(out.particles.disp**2) + jnp.mean(out.accumulated[0] ** 2)

    def derivatives(run: Any) -> Any:
        gradient = jax.value_and_grad(partial(loss, run), argnums=(0, 1, 2, 3))
        strength = jnp.asarray([0.3, 0.1], dtype)
        return jax.jit(gradient)(jnp.zeros_like(particles.disp), table, jnp.asarray(1.5, dtype), strength)

    ours, expected = derivatives(partial(evolve_reversibly, stored=stored)), derivatives(evolve)
    if dtype == jnp.float32:  # there, sums over all particles have lost digits to cancellation
        ours, expected = ((x[0], x[1][0], x[1][3]) for x in (ours, expected))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * np.abs(np.asarray(y)).max() + 1e-30)


class Pick(eqx.Module):
    """A function of the particles that holds arrays of every type."""

    amplitude: Any
    index: Any
    key: Any

    def __call__(self, a: Any, particles: Any, table: Any) -> Any:
        noise = jax.random.normal(self.key, particles.disp.shape[1:], particles.disp.dtype)
        return self.amplitude * noise * particles.disp[self.index]


@pytest.mark.slow
def test_what_is_saved_and_accumulated_may_capture_arrays_of_every_type() -> None:
    """Traced integers, keys and modules too; the loss is quadratic in the amplitude that they capture."""
    config = configure()
    particles, table = initial(config), pmd.growth_table(COSMO)
    times = np.asarray(step_times(table, config))
    at = diffrax.SaveAt(ts=times.tolist())
    key = jax.random.key(1)

    def loss(amplitude: Any, index: Any, key: Any) -> Any:
        pick = Pick(amplitude, index, key)

        def work(before: Any, after: Any, table: Any) -> Any:
            weight = (after.a - before.a) * table.D1(before.a)
            return weight * pick(after.a, after.particles, table), jnp.asarray(1)

        saveat = eqx.tree_at(lambda at: at.subs.fn, at, pick)
        out = pmd.nbody(particles, table, config, saveat=saveat, accumulate=work)
        total, count = out.accumulated
        return jnp.sum(total**2) + jnp.sum(out.snapshots**2), (total, out.snapshots, count)

    @jax.jit
    def derivatives(*args: Any) -> Any:
        one = jnp.ones_like(args[0])
        return jax.jvp(lambda x: jax.value_and_grad(loss, has_aux=True)(x, *args[1:]), args[:1], (one,))

    ((value, (total, saved, count)), slope), (_, curvature) = derivatives(jnp.asarray(1.5), 2, key)
    states = pmd.nbody(particles, table, config, saveat=at).snapshots
    noise = jax.random.normal(key, states.disp.shape[2:])
    picked = 1.5 * np.asarray(noise) * np.asarray(states.disp)[:, 2]
    np.testing.assert_allclose(saved, picked, rtol=0, atol=1e-12)
    weights = np.diff(times) * np.asarray(jax.vmap(table.D1)(times[:-1]))
    np.testing.assert_allclose(total, np.einsum("t,txyc->xyc", weights, picked[1:]), rtol=0, atol=1e-12)
    assert count == 4
    np.testing.assert_allclose(slope, 2 * value / 1.5, rtol=1e-12)
    np.testing.assert_allclose(curvature, 2 * value / 1.5**2, rtol=1e-12)


def test_what_cannot_take_a_step_stays_as_it_was_and_so_does_its_gradient() -> None:
    """Forces beyond the halo are not finite, and steps that are not taken must not read them, nor round momenta."""
    config = configure((4, 1), halo=1, box_size=16.0)
    particles, table = initial(config), pmd.growth_table(COSMO)
    particles = pmd.Particles(particles.disp.at[2, 0, 0, 0].set(7.0), particles.vel)

    @jax.jit
    def run(disp: Any) -> Any:
        solution = pmd.nbody(moved(particles, disp), table, config)
        return jnp.sum(solution.particles.disp**2), solution

    (_, solution), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(jnp.zeros_like(particles.disp))
    assert solution.status.code == Code.BEYOND_HALO
    assert solution.status.step == 0
    np.testing.assert_array_equal(solution.particles.disp, particles.disp)
    np.testing.assert_array_equal(solution.particles.vel, particles.vel)
    np.testing.assert_allclose(gradient, 2 * particles.disp, rtol=1e-12)


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["forward", "forward over reverse"])  # the latter holds what reverse holds
def test_memory_does_not_grow_with_the_number_of_steps(mode: str) -> None:
    def sweep(before: Any, after: Any, table: Any) -> Any:
        return (after.particles.disp - before.particles.disp) ** 2

    def temporary(steps: int) -> int:
        config = configure(steps=steps)
        particles, table = initial(config), pmd.growth_table(COSMO)

        def loss(disp: Any) -> Any:
            solution = pmd.nbody(moved(particles, disp), table, config, accumulate=sweep)
            return jnp.sum(solution.particles.disp**2) + jnp.sum(solution.accumulated**2)

        function = loss if mode == "forward" else jax.grad(loss)
        derivative = partial(lambda function, x: jax.jvp(function, (x,), (x,))[1], function)
        compiled = jax.jit(derivative).lower(particles.disp).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = temporary(10), temporary(1000)
    assert many - few < 3000 * 990  # coefficients and growth factors of a step, not 24 KB of particles


# --- in diffrax --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_diffeqsolve_takes_it(single: pmd.Decomposition) -> None:
    config = configure()
    particles, table = initial(config), pmd.growth_table(COSMO)
    times = step_times(table, config)

    def end(disp: Any, amplitude: Any = 1.0) -> Any:
        solution = diffrax.diffeqsolve(
            pmd.ParticleMesh(config),
            pmd.BullFrog(),
            times[0],
            times[-1],
            None,
            moved(particles, disp),
            args=table,
            stepsize_controller=diffrax.StepTo(times),
            adjoint=pmd.ReversibleAdjoint(),
            saveat=diffrax.SaveAt(t0=True, t1=True, fn=lambda a, y, args: amplitude * y.disp),
            throw=False,
        )
        return jnp.sum(solution.ys[1] ** 2), (solution.ts, solution.stats["num_accepted_steps"])

    def ours(disp: Any) -> Any:
        # Given steps that are those by default.
        solution = pmd.nbody(moved(particles, disp), table, config, stepsize_controller=diffrax.StepTo(times))
        return jnp.sum(solution.particles.disp**2)

    derivative = jax.jit(jax.value_and_grad(end, (0, 1), has_aux=True))
    (value, (saved_at, steps)), (gradient, by_amplitude) = derivative(0 * particles.disp, 1.0)
    expected, expected_gradient = jax.jit(jax.value_and_grad(ours))(0 * particles.disp)
    np.testing.assert_allclose(saved_at, (config.a_start, config.a_stop), rtol=1e-12)
    assert steps == 4
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(by_amplitude, 2 * value, rtol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-11 * np.abs(expected_gradient).max())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"solver": diffrax.Heun()}, "needs a drift-kick-drift solver"),
        ({"saveat": SAVEAT}, "use nbody"),
        ({"stepsize_controller": diffrax.ConstantStepSize(), "dt0": 0.3}, "diffrax.StepTo"),
        ({"solver_state": successful()}, "leave out solver_state"),
    ],
)
def test_what_diffeqsolve_cannot_do_with_it_is_refused(options: dict[str, Any], error: str) -> None:
    config = configure()
    particles, table = initial(config), pmd.growth_table(COSMO)
    arguments: dict[str, Any] = {
        "solver": pmd.BullFrog(),
        "dt0": None,
        "stepsize_controller": diffrax.StepTo(step_times(table, config)),
    }
    with pytest.raises((TypeError, ValueError), match=error):
        diffrax.diffeqsolve(
            pmd.ParticleMesh(config),
            t0=0.1,
            t1=1.0,
            y0=particles,
            args=table,
            adjoint=pmd.ReversibleAdjoint(),
            **(arguments | options),
        )
