"""Derivatives of the whole pipeline: in value against one device and differences, and what they communicate."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd

SHAPE = (8, 12, 10)
PARAMETERS = vars(problems.cosmology())
LAYOUTS = ((1, 1), (4, 1), (1, 4), (2, 2))


def configure(pdims: tuple[int, int]) -> pmd.Config:
    return pmd.Config(
        box_size=(24.0, 36.0, 30.0), mesh_shape=SHAPE, steps=2, halo=3, decomposition=pmd.Decomposition(pdims=pdims)
    )


def loss(noise: Any, parameters: dict[str, Any], config: pmd.Config, adjoint: Any = None) -> Any:
    """mean((1 + delta)^2) from white noise and the parameters of a cosmology; the status on the side."""
    cosmo = SimpleNamespace(**parameters)
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    solution = pmd.nbody(particles, cosmo, config, adjoint=adjoint)
    return jnp.mean(pmd.density(solution.particles, config) ** 2), solution.status.code


def draw() -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(0).standard_normal((2, *SHAPE)))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[int, int], tuple[Any, Any]]:
    """value_and_grad and jvp of the loss, compiled for every layout; with the parameters in two of them."""
    noise, direction = draw()
    programs = {}
    for pdims in LAYOUTS:
        config = configure(pdims)

        def reverse(noise: Any, parameters: Any, config: pmd.Config = config) -> Any:
            function = lambda n, p: loss(n, PARAMETERS | p, config)  # noqa: E731
            return jax.value_and_grad(function, argnums=(0, 1), has_aux=True)(noise, parameters)

        def forward(noise: Any, direction: Any, config: pmd.Config = config) -> Any:
            function = lambda n: loss(n, PARAMETERS, config, diffrax.ForwardMode())[0]  # noqa: E731
            return jax.jvp(function, (noise,), (direction,))

        noise_, direction_ = (jax.device_put(x, config.decomposition.sharding) for x in (noise, direction))
        programs[pdims] = (
            problems.compiled(reverse).lower(noise_, varied(pdims)).compile(),
            problems.compiled(forward).lower(noise_, direction_).compile(),
        )
    return programs


def varied(pdims: tuple[int, int]) -> dict[str, float]:
    """Parameters to differentiate: their part of the program takes four times as long to compile as all else."""
    return PARAMETERS if pdims in ((1, 1), (2, 2)) else {}


def derivatives(compiled: Any, pdims: tuple[int, int]) -> dict[str, Any]:
    noise, direction = (jax.device_put(x, configure(pdims).decomposition.sharding) for x in draw())
    (value, code), (gradient, by_parameter) = compiled[pdims][0](noise, varied(pdims))
    assert code == 0
    tangent = compiled[pdims][1](noise, direction)[1]
    return {"value": value, "gradient": gradient, "tangent": tangent} | by_parameter


@pytest.mark.parametrize("pdims", LAYOUTS[1:], ids=str)
def test_derivatives_agree_in_value_with_one_device(compiled: Any, pdims: tuple[int, int]) -> None:
    ours, expected = derivatives(compiled, pdims), derivatives(compiled, (1, 1))
    for name in ours:
        value = np.asarray(expected[name])
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-9 * np.abs(value).max(), err_msg=name)
    assert problems.has_sharding(ours["gradient"], configure(pdims).decomposition.sharding)


@pytest.mark.parametrize("pdims", LAYOUTS, ids=str)
def test_jvp_and_vjp_agree(compiled: Any, pdims: tuple[int, int]) -> None:
    ours = derivatives(compiled, pdims)
    _, direction = draw()
    np.testing.assert_allclose(np.vdot(ours["gradient"], direction), ours["tangent"], rtol=1e-11)


@pytest.mark.parametrize("pdims", LAYOUTS, ids=str)
def test_gradient_agrees_with_differences(compiled: Any, pdims: tuple[int, int]) -> None:
    ours, program = derivatives(compiled, pdims), compiled[pdims][0]
    noise, direction = draw()
    step = 1e-5  # small: cloud-in-cell has kinks at cell edges

    def value(noise: np.ndarray) -> float:
        return float(program(jax.device_put(noise, configure(pdims).decomposition.sharding), varied(pdims))[0][0])

    difference = (value(noise + step * direction) - value(noise - step * direction)) / (2 * step)
    np.testing.assert_allclose(np.vdot(ours["gradient"], direction), difference, rtol=1e-7)


# The scale of BullFrog's momenta lives on a grid of 2^-22, through which derivatives pass: a staircase that a
# difference must step over, and w0 moves it least. Larger steps meet the kinks of cloud-in-cell.
@pytest.mark.parametrize(("name", "step"), [("Omega_c", 1e-4), ("sigma8", 1e-4), ("h", 1e-4), ("w0", 1e-3)])
def test_derivatives_by_parameters_agree_with_differences(compiled: Any, name: str, step: float) -> None:
    program = compiled[1, 1][0]
    noise = jax.device_put(draw()[0], configure((1, 1)).decomposition.sharding)
    ends = [float(program(noise, PARAMETERS | {name: PARAMETERS[name] + sign * step})[0][0]) for sign in (1, -1)]
    derivative = derivatives(compiled, (1, 1))[name]
    np.testing.assert_allclose(derivative, (ends[0] - ends[1]) / (2 * step), rtol=1e-4)


def test_adjoints_agree(compiled: Any) -> None:
    config = configure((1, 1))
    noise, _ = draw()
    direct = problems.compiled(jax.grad(lambda n: loss(n, PARAMETERS, config, diffrax.DirectAdjoint())[0]))(noise)
    expected = np.asarray(derivatives(compiled, (1, 1))["gradient"])
    np.testing.assert_allclose(direct, expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("pdims", LAYOUTS[1:], ids=str)
@pytest.mark.parametrize("which", ["reverse", "forward"])
def test_no_full_field_is_gathered(compiled: Any, pdims: tuple[int, int], which: str) -> None:
    """Neither forwards nor backwards: all-gathers, if any, are smaller than one block of the mesh."""
    text = compiled[pdims][which == "forward"].as_text()
    # This is how XLA spells them; pencils in one process are exchanged by permutations.
    assert "collective-permute" in text and ("all-to-all" in text or min(pdims) > 1)
    block = np.prod(SHAPE) // 4
    for line in text.splitlines():
        if re.search(r"= .* all-gather(-start)?\(", line):
            sizes = [
                np.prod([int(n) for n in dims.split(",") if n])
                for dims in re.findall(r"\w\d+\[([\d,]*)\]", line.split(" all-gather")[0])
            ]
            assert max(sizes, default=1) < block, line
