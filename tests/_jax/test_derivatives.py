"""Functions with derivative rules of their own: all modes and orders are those of JAX's own functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pmwd_dist._jax import arithmetic
from pmwd_dist._jax.arithmetic import rows
from pmwd_dist._jax.derivatives import forward_derivatives, hoist, linear_map
from pmwd_dist._jax.order import after, barrier, stored
from pmwd_dist._jax.select import batch_max, sum_where, switch

X, K = np.array([0.3, 0.7]), np.linspace(1.0, 2.0, 5)


def close(ours: Any, expected: Any, rtol: float = 1e-12, atol: float = 1e-13) -> None:
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def derivatives(function: Callable[..., Any], index: Any, x: Any, y: Any) -> Any:
    """Value, gradient, Hessian forward over reverse and reverse over reverse, and a third derivative."""
    gradient = jax.grad(function, argnums=(1, 2))
    hessian = [jacobian(gradient, argnums=(1, 2)) for jacobian in (jax.jacfwd, jax.jacrev)]
    third = jax.jacfwd(jax.grad(lambda *args: jnp.sum(hessian[0](*args)[0][1]), argnums=1), argnums=2)
    return [f(index, x, y) for f in (function, gradient, *hessian, third)]


# --- hoist -------------------------------------------------------------------------------------------------------


def test_a_function_without_its_arrays_does_not_keep_them_alive() -> None:
    array = jnp.arange(3)
    pure, values = hoist(partial(jnp.multiply, array), X[0])
    close(pure([2 * value for value in values], 0.5), np.arange(3.0))
    alive = weakref.ref(array)
    del array, values
    assert alive() is None, "the memory of an array is kept for as long as the function"


# --- forward_derivatives -----------------------------------------------------------------------------------------


def power(x: Any, k: Any) -> Any:
    return jnp.sin(x[0] * k) * k ** x[1]


def observed(function: Any, x: Any, k: Any) -> Any:
    return jnp.sum(function(x, k) ** 2)


@pytest.mark.parametrize("argnums", [0, 1])
def test_derivatives_of_all_modes_and_orders_are_those_of_the_function(argnums: int) -> None:
    def all_of(function: Any) -> Any:
        f = lambda x, k: observed(function, x, k)  # noqa: E731
        modes = {
            "grad": jax.grad(f, argnums),
            "forward of reverse": jax.jacfwd(jax.grad(f, 1 - argnums), argnums),
            "reverse of reverse": jax.jacrev(jax.grad(f, 0), argnums),
            "third": jax.jacfwd(jax.jacrev(jax.grad(f, 0), 0), argnums),
        }
        batch = jax.vmap(jax.grad(f, argnums), (None, 0))
        return jax.jit(lambda x, k: ({name: mode(x, k) for name, mode in modes.items()}, batch(x, k[:, None])))(X, K)

    close(all_of(forward_derivatives(power)), all_of(power))


def test_reverse_mode_sums_once() -> None:
    """One contraction with the Jacobian, not a sum over the results for each use of a number."""

    def sums(function: Any) -> int:
        return str(jax.make_jaxpr(jax.grad(lambda x: observed(function, x, K)))(X)).count("reduce_sum")

    assert sums(forward_derivatives(power)) == 1 < sums(power)


# --- linear_map ---------------------------------------------------------------------------------------------------


XS = np.linspace(0.1, 0.9, 3)


def scaled(x: Any, change: Any) -> Any:
    """cos(x) times a change, as the tangent of sin(x)."""
    both = lambda x, t: [jnp.cos(x) * t]  # noqa: E731
    return linear_map(both, both, [x], [change], operands_like=[0], results_like=[0])[0]


@jax.custom_jvp
def sine(x: Any) -> Any:
    return jnp.sin(x)


sine.defjvp(lambda primals, tangents: (sine(*primals), scaled(*primals, *tangents)))


def test_a_jacobian_shares_what_has_no_batch_axis() -> None:
    jacobian = jax.jit(jax.jacrev(sine))
    np.testing.assert_allclose(jacobian(XS), np.diag(np.cos(XS)), rtol=1e-14)
    cosines = [line for line in jacobian.lower(XS).as_text().splitlines() if "stablehlo.cosine" in line]
    assert cosines
    assert all("tensor<3xf64>" in line for line in cosines)


def test_batches_of_batches_and_their_derivatives() -> None:
    batch = np.stack([XS, 2 * XS])
    expected = np.stack([np.diag(np.cos(x)) for x in batch])
    np.testing.assert_allclose(jax.vmap(jax.jacrev(sine))(batch), expected, rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(jax.jacfwd(sine))(batch), expected, rtol=1e-14)
    second = jax.jacrev(jax.jacrev(lambda x: jnp.sum(sine(x))))(XS)
    np.testing.assert_allclose(second, np.diag(-np.sin(XS)), rtol=1e-14)


# --- rows ---------------------------------------------------------------------------------------------------------

TABLE, INDEX = np.random.default_rng(0).standard_normal((5, 2)), np.array([[0, 3, 3], [3, 4, 0]])


def test_derivatives_are_those_of_indexing() -> None:
    def all_of(of: Any) -> Any:
        def observed(table: Any) -> Any:
            return jnp.sum(jnp.sin(of(table, INDEX)) ** 3)

        batch = jax.vmap(jax.vmap(jax.grad(lambda t, i: jnp.sum(of(t, i) ** 3)), (None, 0)), (0, None))
        several = jnp.stack([TABLE, 2 * TABLE])
        return jax.jit(lambda t: (jax.grad(observed)(t), jax.hessian(observed)(t), batch(several, INDEX)))(TABLE)

    close(all_of(rows), all_of(lambda table, index: table[index]), 1e-13, 1e-14)


def test_no_rows_have_a_derivative_of_zero() -> None:
    none = jax.jit(jax.grad(lambda table: jnp.sum(rows(table, INDEX[:0]))))(TABLE)
    np.testing.assert_array_equal(none, np.zeros_like(TABLE))


@pytest.mark.parametrize("most", [5, 20])
def test_many_rows_are_added_block_by_block(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row, and of four of which the last has two."""
    monkeypatch.setattr(arithmetic, "_MOST", most)
    weights = np.arange(12.0).reshape(2, 3, 2)
    total = jax.jit(jax.grad(lambda table: jnp.sum(weights * rows(table, INDEX))))(TABLE)
    expected = np.zeros_like(TABLE)
    np.add.at(expected, INDEX, weights)
    np.testing.assert_allclose(total, expected, rtol=1e-14)


def test_one_row_has_the_derivatives_of_indexing() -> None:
    batch = jax.jit(jax.vmap(jax.grad(lambda table, i: jnp.sum(rows(table, i) ** 3)), (None, 0)))
    found = batch(TABLE, np.array([3, 0]))
    for i, slope in zip((3, 0), found, strict=True):
        expected = np.zeros_like(TABLE)
        expected[i] = 3 * TABLE[i] ** 2
        np.testing.assert_allclose(slope, expected, rtol=1e-14)


# --- switch and barrier -------------------------------------------------------------------------------------------

BRANCHES = (lambda x, y: jnp.sin(x * y), lambda x, y: x**3 * y, lambda x, y: jnp.exp(y) + 0 * x)


def switched(index: Any, x: Any, y: Any) -> Any:
    x, y = stored(barrier((x, y)))
    return jnp.sum(switch(index, BRANCHES, x, y))


def theirs(index: Any, x: Any, y: Any) -> Any:
    return jnp.sum(jax.lax.switch(index, BRANCHES, x, y))


@pytest.mark.parametrize("axes", [None, pytest.param((0, None), marks=pytest.mark.slow)], ids=str)
def test_derivatives_are_those_of_lax(axes: Any) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 3, 2))
    x, y = (x[0], y[0]) if axes is None else (x if axes[0] == 0 else x[0], y if axes[1] == 0 else y[0])

    def run(function: Callable[..., Any]) -> Any:
        one = lambda i, x, y: derivatives(function, i, x, y)  # noqa: E731
        return jax.jit(one if axes is None else jax.vmap(one, in_axes=(None, *axes)))

    programs = run(switched), run(theirs)
    for index in range(3):
        close(*(program(index, x, y) for program in programs), 1e-14, 1e-14)


def test_the_index_of_a_batch_is_one_for_all() -> None:
    x = np.array([0.5, np.nan, 7.0, np.inf])
    text = str(jax.make_jaxpr(jax.vmap(lambda x: switch(batch_max(x).astype(int), BRANCHES, x, x)))(x))
    assert " switch[" in text
    np.testing.assert_array_equal(jax.vmap(batch_max, out_axes=None)(x), 7)
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: batch_max(x) * x))(x[:1]), 0.5)


@pytest.mark.parametrize("checked", [True, False])
def test_the_index_is_one_for_all_chains_of_a_shard_map(checked: bool) -> None:
    """Collectives of different branches would wait for each other forever."""
    mesh = jax.make_mesh((2, 2), ("chains", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    run = jax.shard_map(
        jax.vmap(lambda x: x * 0 + batch_max(x)),
        mesh=mesh,
        in_specs=P("chains"),
        out_specs=P("chains"),
        check_vma=checked,
    )
    np.testing.assert_array_equal(jax.jit(run)(np.arange(4.0)), 3)


def test_a_failed_element_of_a_batch_is_waited_for_by_itself() -> None:
    """Numbers, complex ones and integers wait, under one vmap and two; NaN stays where it is."""
    waiting = {"x": jnp.ones((2, 3, 4)), "z": jnp.full((2, 3, 4), 1 + 2j), "n": jnp.arange(24).reshape(2, 3, 4)}
    done = jnp.ones((2, 3, 5)).at[0, 1, 0].set(jnp.nan)
    out, passed = jax.jit(jax.vmap(jax.vmap(after)))(waiting, done)
    np.testing.assert_array_equal(passed, done)
    np.testing.assert_array_equal(out["n"], waiting["n"])
    for name in ("x", "z"):
        expected = np.array(waiting[name])
        np.testing.assert_array_equal(np.delete(out[name].reshape(6, 4), 1, 0), np.delete(expected.reshape(6, 4), 1, 0))
        assert np.isnan(out[name][0, 1]).all()


def test_stored_arrays_are_results_of_a_conditional_which_keeps_them_on_cpus() -> None:
    x, n = np.array([np.nan, 1.0]), np.arange(2)
    program = jax.jit(lambda x, n: stored((2 * x, n + 1))).lower(x, n).compile()
    assert ("conditional(" in str(program.as_text())) == (jax.default_backend() == "cpu")
    for ours, expected in zip(program(x, n), (2 * x, n + 1), strict=True):
        np.testing.assert_array_equal(ours, expected)


# --- sum_where ----------------------------------------------------------------------------------------------------

ARGUMENTS = np.linspace(0.2, 1.0, 5)


def each(a: Any, x: Any, y: Any) -> list[Any]:
    return [jnp.sin(a * x * y), jnp.sum(x**3) * jnp.exp(a * y)]


def ours(wanted: Any, x: Any, y: Any) -> Any:
    one, two = sum_where(wanted, each, jnp.asarray(ARGUMENTS), x, y)
    return jnp.sum(one) + jnp.sum(two**2)


def plain(wanted: Any, x: Any, y: Any) -> Any:
    both = [each(a, x, y) for a in ARGUMENTS]
    one, two = (sum(jnp.where(wanted[i], value[k], 0) for i, value in enumerate(both)) for k in range(2))
    return jnp.sum(one) + jnp.sum(two**2)


@pytest.mark.parametrize("batched", [pytest.param(False, marks=pytest.mark.slow), True])
def test_derivatives_are_those_of_a_plain_sum(batched: bool) -> None:
    """To third order; of a batch, with the sum's own y, to first order in each mode."""
    x, y = np.random.default_rng(0).standard_normal((2, 3, 2))
    x, y = x if batched else x[0], y[0]

    def run(function: Callable[..., Any]) -> Any:
        def first(wanted: Any, x: Any, y: Any) -> Any:
            at = lambda x, y: function(wanted, x, y)  # noqa: E731
            return jax.value_and_grad(at, (0, 1))(x, y), jax.jvp(at, (x, y), (y, x))[1]

        return jax.jit(jax.vmap(first, (None, 0, None)) if batched else partial(derivatives, function))

    programs = run(ours), run(plain)
    for wanted in ([False] * 5, [True, False, False, True, True], [True] * 5):
        close(*(program(np.array(wanted), x, y) for program in programs))


def test_what_is_not_wanted_is_not_computed() -> None:
    seen = list[float]()

    def told(a: Any, x: Any) -> list[Any]:
        jax.debug.callback(lambda a: seen.append(float(a)), a)
        return [a * x]

    wanted = np.array([False, True, False, True, False])
    jax.block_until_ready(jax.jit(lambda x: sum_where(wanted, told, jnp.asarray(ARGUMENTS), x))(1.0))
    jax.effects_barrier()
    np.testing.assert_allclose(sorted(seen), ARGUMENTS[wanted])
