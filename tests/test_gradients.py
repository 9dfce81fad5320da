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
    """value_and_grad and jvp of the loss, compiled for every layout."""
    noise, direction = draw()
    programs = {}
    for pdims in LAYOUTS:
        config = configure(pdims)

        def reverse(noise: Any, parameters: Any, config: pmd.Config = config) -> Any:
            return jax.value_and_grad(lambda n, p: loss(n, p, config), argnums=(0, 1), has_aux=True)(noise, parameters)

        def forward(noise: Any, direction: Any, config: pmd.Config = config) -> Any:
            function = lambda n: loss(n, PARAMETERS, config, diffrax.ForwardMode())[0]  # noqa: E731
            return jax.jvp(function, (noise,), (direction,))

        noise_, direction_ = (jax.device_put(x, config.layout.sharding) for x in (noise, direction))
        programs[pdims] = (
            problems.compiled(reverse).lower(noise_, PARAMETERS).compile(),
            problems.compiled(forward).lower(noise_, direction_).compile(),
        )
    return programs


def derivatives(compiled: Any, pdims: tuple[int, int]) -> dict[str, Any]:
    noise, direction = (jax.device_put(x, configure(pdims).layout.sharding) for x in draw())
    (value, code), (gradient, by_parameter) = compiled[pdims][0](noise, PARAMETERS)
    assert code == 0
    tangent = compiled[pdims][1](noise, direction)[1]
    return {"value": value, "gradient": gradient, "tangent": tangent} | by_parameter


@pytest.mark.parametrize("pdims", LAYOUTS[1:], ids=str)
def test_derivatives_agree_in_value_with_one_device(compiled: Any, pdims: tuple[int, int]) -> None:
    ours, expected = derivatives(compiled, pdims), derivatives(compiled, (1, 1))
    for name, value in expected.items():
        value = np.asarray(value)
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-9 * np.abs(value).max(), err_msg=name)
    assert problems.has_sharding(ours["gradient"], configure(pdims).layout.sharding)


@pytest.mark.parametrize("pdims", LAYOUTS, ids=str)
def test_jvp_and_vjp_agree(compiled: Any, pdims: tuple[int, int]) -> None:
    ours = derivatives(compiled, pdims)
    _, direction = draw()
    np.testing.assert_allclose(np.vdot(ours["gradient"], direction), ours["tangent"], rtol=1e-11)


@pytest.mark.parametrize("pdims", LAYOUTS, ids=str)
def test_gradient_agrees_with_differences(compiled: Any, pdims: tuple[int, int]) -> None:
    """Noise and parameters, by central differences; small steps, since cloud-in-cell has kinks at cell edges."""
    ours, program = derivatives(compiled, pdims), compiled[pdims][0]
    sharding = configure(pdims).layout.sharding
    noise, direction = draw()
    step = 1e-6

    def value(noise: np.ndarray, parameters: dict[str, float]) -> float:
        return float(program(jax.device_put(noise, sharding), parameters)[0][0])

    difference = (value(noise + step * direction, PARAMETERS) - value(noise - step * direction, PARAMETERS)) / (2 * step)
    np.testing.assert_allclose(np.vdot(ours["gradient"], direction), difference, rtol=1e-4)
    for name in ("Omega_c", "sigma8", "w0", "h"):
        ends = [value(noise, PARAMETERS | {name: PARAMETERS[name] + sign * step}) for sign in (1, -1)]
        np.testing.assert_allclose(ours[name], (ends[0] - ends[1]) / (2 * step), rtol=1e-4, err_msg=name)


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
    assert "all-to-all" in text and "collective-permute" in text  # this is how XLA spells them
    block = np.prod(SHAPE) // 4
    for line in text.splitlines():
        if re.search(r"= .* all-gather(-start)?\(", line):
            sizes = [np.prod([int(n) for n in dims.split(",") if n]) for dims in re.findall(r"\w\d+\[([\d,]*)\]", line.split(" all-gather")[0])]
            assert max(sizes, default=1) < block, line
