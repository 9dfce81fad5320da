"""Whether a window without kinks helps derivatives: CIC, TSC and PCS in jax.numpy, `python -m benchmarks.windows`.

An Einstein-de Sitter universe of n^3 particles in a box of 2n Mpc/h, leapfrog from a = 0.1 to 1, paint and read by the
same window, which is divided out of the force. The loss is mean((1 + delta)^2) of the density painted with the window,
or of the same painting after a Gaussian filter of 4 Mpc/h. In float64, along random directions of the white noise:
the error of central differences of the loss against the gradient, and of central differences of the gradient
against Hessian-vector products, both at several steps; and the error of the float32 gradient.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from benchmarks import problem

WINDOWS = {"cic": 2, "tsc": 3, "pcs": 4}
CHANGES = (1e-5, 1e-4, 1e-3, 1e-2)


def weights(t: Any, order: int) -> list[Any]:
    """B-spline weights of the cells around a particle, t from the lowest one's centre plus (order - 1) / 2 - 1/2."""
    if order == 2:
        return [1 - t, t]
    if order == 3:
        return [(1 - t) ** 2 / 2, 0.75 - (t - 0.5) ** 2, t**2 / 2]
    cubic = [(1 - t) ** 3, 4 - 6 * t**2 + 3 * t**3, 1 + 3 * t + 3 * t**2 - 3 * t**3, t**3]
    return [w / 6 for w in cubic]


def clouds(disp: Any, order: int, n: int) -> Any:
    """Cells around each particle, along each axis and flat, and their weights: (order^3, particles)."""
    u = disp / problem.CELL + (0.5 if order == 3 else 0.0)
    lower = jax.lax.stop_gradient(jnp.floor(u))
    lattice = jnp.stack(jnp.meshgrid(*[jnp.arange(n)] * 3, indexing="ij"), -1)
    cell = lattice + lower.astype(jnp.int32) - (order - 1) // 2
    index, weight = jnp.zeros((1, n**3), jnp.int32), jnp.ones((1, n**3), disp.dtype)
    for i in range(3):
        along = (cell[..., i].ravel()[None] + jnp.arange(order)[:, None]) % n
        each = jnp.stack([w.ravel() for w in weights((u - lower)[..., i], order)])
        index = (index[:, None] * n + along[None]).reshape(-1, n**3)
        weight = (weight[:, None] * each[None]).reshape(-1, n**3)
    return index, weight


def paint(disp: Any, order: int, n: int) -> Any:
    index, weight = clouds(disp, order, n)
    return jnp.zeros(n**3, disp.dtype).at[index].add(weight).reshape((n,) * 3)


def wavevectors(n: int) -> Any:
    k = 2 * np.pi * np.fft.fftfreq(n)
    return k[:, None, None], k[None, :, None], 2 * np.pi * np.arange(n // 2 + 1)[None, None, :] / n


def force(disp: Any, order: int, n: int) -> Any:
    """Minus the gradient of the inverse Laplacian of delta [Mpc/h]."""
    k = wavevectors(n)
    k2 = sum(x**2 for x in k)
    k2[0, 0, 0] = np.inf
    window = np.prod(np.broadcast_arrays(*[np.sinc(x / (2 * np.pi)) ** (-2 * order) for x in k]), axis=0)
    potential = jnp.fft.irfftn(jnp.fft.rfftn(paint(disp, order, n)) * jnp.asarray(window / k2, disp.dtype), s=(n,) * 3)

    def difference(axis: int) -> Any:
        def shifted(cells: int) -> Any:
            return jnp.roll(potential, -cells, axis)

        return (shifted(1) - shifted(-1)) * (2 / 3) - (shifted(2) - shifted(-2)) / 12

    index, weight = clouds(disp, order, n)
    read = [jnp.sum(weight * difference(axis).ravel()[index], axis=0).reshape((n,) * 3) for axis in range(3)]
    return jnp.stack(read, -1) * problem.CELL


def loss(noise: Any, order: int, n: int, steps: int, smooth: float) -> Any:
    k = wavevectors(n)
    k2 = sum(x**2 for x in k)
    modulus = np.sqrt(k2) / problem.CELL
    nodes = np.maximum(modulus, 1e-3).ravel()
    with jax.ensure_compile_time_eval():
        power = np.asarray(pmd.linear_power(nodes, problem.cosmology())).reshape(k2.shape)
    k2[0, 0, 0] = np.inf
    modes = jnp.fft.rfftn(noise) * jnp.asarray(np.sqrt(power / problem.CELL**3) / k2, noise.dtype)
    psi = [jnp.fft.irfftn(1j * jnp.asarray(x, noise.dtype) * modes, s=(n,) * 3) * problem.CELL for x in k]
    psi = jnp.stack(psi, -1)
    a = np.linspace(problem.A_START, problem.A_STOP, steps + 1)

    def drift(low: Any, high: Any) -> Any:
        return 2 * (low**-0.5 - high**-0.5)

    def kick(low: Any, high: Any) -> Any:
        return 3 * (high**0.5 - low**0.5)

    def step(state: Any, ends: Any) -> Any:
        disp, momentum = state
        low, high = ends
        middle = (low + high) / 2
        disp = disp + drift(low, middle) * momentum
        momentum = momentum + kick(low, high) * force(disp, order, n)
        return (disp + drift(middle, high) * momentum, momentum), None

    start = a[0] * psi, a[0] ** 1.5 * psi
    ends = jnp.asarray(a[:-1], noise.dtype), jnp.asarray(a[1:], noise.dtype)
    (disp, _), _ = jax.lax.scan(step, start, ends)
    density = jnp.fft.rfftn(paint(disp, order, n)) * jnp.asarray(np.exp(-(modulus**2) * smooth**2 / 2), noise.dtype)
    return jnp.mean(jnp.fft.irfftn(density, s=(n,) * 3) ** 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--windows", default="cic,tsc,pcs")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    noise, *directions = rng.normal(size=(4, *(options.n,) * 3))
    print(f"{options.n}^3 particles, {options.steps} steps; relative errors (rms over {len(directions)} directions)")
    print(f"window, filter [Mpc/h]: differences of the loss at {CHANGES}; of the gradient, same; float32 gradient")
    for window, smooth in itertools.product(options.windows.split(","), (0.0, 4.0)):
        function = partial(loss, order=WINDOWS[window], n=options.n, steps=options.steps, smooth=smooth)
        value, gradient = jax.jit(function), jax.jit(jax.grad(function))
        product = jax.jit(lambda x, d, f=function: jax.jvp(jax.grad(f), (x,), (d,))[1])
        g = gradient(noise)
        products = [product(noise, d) for d in directions]
        scale = np.sqrt(np.mean([float(jnp.vdot(g, d)) ** 2 for d in directions]))
        first, second = [], []
        for change in CHANGES:
            ends = [[noise + sign * change * d for sign in (1, -1)] for d in directions]
            off = [
                float(value(p) - value(m)) / (2 * change) - float(jnp.vdot(g, d))
                for (p, m), d in zip(ends, directions, strict=True)
            ]
            first.append(np.sqrt(np.mean(np.square(off))) / scale)
            off = [
                jnp.linalg.norm((gradient(p) - gradient(m)) / (2 * change) - h) / jnp.linalg.norm(h)
                for (p, m), h in zip(ends, products, strict=True)
            ]
            second.append(np.sqrt(np.mean(np.square(off))))
        single = gradient(jnp.asarray(noise, jnp.float32)).astype(float)
        exact = gradient(jnp.asarray(noise, jnp.float32).astype(float))
        rounding = float(jnp.linalg.norm(single - exact) / jnp.linalg.norm(exact))
        show = ["  ".join(f"{x:.1e}" for x in errors) for errors in (first, second)]
        print(f"{window} {smooth:g}:  {show[0]}  |  {show[1]}  |  {rounding:.1e}", flush=True)


if __name__ == "__main__":
    main()
