"""Analytic cases, and brute-force float64 references in NumPy and SciPy that share no code with the package."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from mesh_response import mesh_response
from scipy.integrate import solve_ivp
from scipy.sparse.csgraph import connected_components

# --- cloud-in-cell: dense matrices of every particle against every cell ---------------------------------------


def window(x: np.ndarray, cells: int, mask: int, *, periodic: bool = True) -> np.ndarray:
    """Weight of each particle (rows, position in cells) in each cell (columns) of an axis, or its derivative."""
    x = np.asarray(x, float)
    images = range(-2, 3) if periodic else (0,)
    if periodic:
        x = x % cells
    total = np.zeros((x.size, cells))
    for image in images:
        u = x[:, None] - (np.arange(cells)[None, :] + image * cells)
        slope = np.where((u >= -1) & (u < 0), 1.0, np.where((u >= 0) & (u < 1), -1.0, 0))
        total += slope if mask else np.maximum(0, 1 - abs(u))
    return total


def windows(positions: np.ndarray, shape: Any, mask: Any, periodic: Any = (True,) * 3) -> list[np.ndarray]:
    """The three matrices of particles (..., 3), positions in cells, for one derivative mask."""
    flat = positions.reshape(-1, 3)
    return [window(flat[:, i], shape[i], mask[i], periodic=periodic[i]) for i in range(3)]


def paint(
    positions: np.ndarray, weight: Any, shape: Any, mask: Any = (0, 0, 0), periodic: Any = (True,) * 3
) -> np.ndarray:
    """Sum over particles of weight times window, shape `shape`."""
    weight = np.broadcast_to(weight, positions.shape[:-1]).ravel()
    x, y, z = windows(positions, shape, mask, periodic)
    return np.einsum("p,px,py,pz->xyz", weight, x, y, z, optimize=True)


def read(positions: np.ndarray, field: np.ndarray, mask: Any = (0, 0, 0), periodic: Any = (True,) * 3) -> np.ndarray:
    """Field at each particle, shape of the particles."""
    x, y, z = windows(positions, field.shape, mask, periodic)
    return np.einsum("xyz,px,py,pz->p", field, x, y, z, optimize=True).reshape(positions.shape[:-1])


def unit(axis: int) -> tuple[int, int, int]:
    """The derivative mask of one axis."""
    return tuple(int(i == axis) for i in range(3))  # type: ignore[return-value]


def lattice(shape: Any, extent: Any) -> np.ndarray:
    """Points of a regular lattice over a box, shape (*shape, 3)."""
    axes = [np.arange(n) * (e / n) for n, e in zip(shape, extent, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


def cells(disp: Any, config: Any) -> np.ndarray:
    """Positions of particles in mesh cells."""
    return (lattice(config.particle_shape, config.box_size) + np.asarray(disp)) / np.asarray(config.cell_size)


def inside_cells(rng: np.random.Generator, config: Any, max_displacement: float) -> np.ndarray:
    """Random displacements up to some narrowest cells, no particle within 0.04 of a cell of a cell's edge.

    Cloud-in-cell is smooth inside a cell: differences with steps below the margin see no kink.
    """
    small = min(config.cell_size)
    disp = rng.uniform(-max_displacement + 0.1, max_displacement - 0.1, (*config.particle_shape, 3)) * small
    position = cells(disp, config)
    fraction = position - np.floor(position)
    return disp + (0.04 + 0.92 * fraction - fraction) * np.asarray(config.cell_size)


# --- fields in Fourier space: full complex transforms --------------------------------------------------------


def wavevectors(shape: Any, box: Any) -> list[np.ndarray]:
    """Wavevectors of a full transform, ready to broadcast; the Nyquist frequency is negative, as in numpy."""
    out = []
    for axis, (n, length) in enumerate(zip(shape, box, strict=True)):
        k = np.fft.fftfreq(n, 1 / n) * (2 * math.pi / length)
        out.append(k.reshape([-1 if a == axis else 1 for a in range(3)]))
    return out


def without_nyquist(k: list[np.ndarray], shape: Any) -> list[np.ndarray]:
    """Wavevectors for odd derivatives: the Nyquist frequency, which has no sign, is zero."""
    out = []
    for axis, (k_, n) in enumerate(zip(k, shape, strict=True)):
        keep = np.ones(n) if n % 2 else (np.arange(n) != n // 2).astype(float)
        out.append(k_ * keep.reshape([-1 if a == axis else 1 for a in range(3)]))
    return out


def inverse_laplacian(k: list[np.ndarray]) -> np.ndarray:
    """1 / k^2, zero at k = 0."""
    k2 = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
    return np.where(k2 > 0, 1 / np.where(k2 > 0, k2, 1), 0)


def filter_matrix(kept: np.ndarray) -> np.ndarray:
    """Matrix of a filter on the cells, from the modes of a full transform that it keeps."""
    units = np.eye(kept.size).reshape(-1, *kept.shape)
    return np.fft.ifftn(kept * np.fft.fftn(units, axes=(1, 2, 3)), axes=(1, 2, 3)).real.reshape(kept.size, -1)


def displacement(delta: np.ndarray, box: Any) -> np.ndarray:
    """The curl-free field with divergence -delta."""
    k = wavevectors(delta.shape, box)
    potential = np.fft.fftn(delta) * inverse_laplacian(k)
    return np.stack([np.fft.ifftn(1j * k_ * potential).real for k_ in without_nyquist(k, delta.shape)], -1)


def lpt_fields(delta: np.ndarray, box: Any, order: int) -> list[np.ndarray]:
    """psi1, psi2, psi3a and psi3b up to an order; for order 3 psi2 is the mean over two staggered lattices."""
    shape = delta.shape
    k = wavevectors(shape, box)
    odd, inverse = without_nyquist(k, shape), inverse_laplacian(k)

    def hessian(potential: np.ndarray) -> np.ndarray:
        rows = [[-(k[i] ** 2 if i == j else odd[i] * odd[j]) * potential for j in range(3)] for i in range(3)]
        return np.stack([np.stack([np.fft.ifftn(entry).real for entry in row], -1) for row in rows], -1)

    def gradient(potential: np.ndarray) -> np.ndarray:
        return np.stack([np.fft.ifftn(1j * k_ * potential).real for k_ in odd], -1)

    p1 = np.fft.fftn(delta) * inverse
    A = hessian(p1)
    source = np.fft.fftn(minors(A, A))
    if order == 3:
        numbers = [k_ * length / (2 * math.pi * n) for k_, n, length in zip(k, shape, box, strict=True)]
        below = math.prod(np.abs(x) < 0.5 - 1e-9 for x in numbers)
        phase = below * np.exp(1j * math.pi * sum(numbers))
        shifted = hessian(p1 * phase)
        source = (below * source + np.fft.fftn(minors(shifted, shifted)) * np.conj(phase)) / 2
    p2 = -source * inverse
    potentials = [p1, p2]
    if order == 3:
        potentials += [-np.fft.fftn(x) * inverse for x in (np.linalg.det(A), minors(A, hessian(p2)))]
    return [gradient(p) for p in potentials[: (0, 1, 2, 4)[order]]]


def minors(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """(tr A tr B - tr A B) / 2."""
    return (np.einsum("...ii,...jj", A, B) - np.einsum("...ij,...ji", A, B)) / 2


LEVI_CIVITA = np.array([[[(i - j) * (j - k) * (k - i) / 2 for k in range(3)] for j in range(3)] for i in range(3)])


def second_order(delta: np.ndarray, box: Any) -> np.ndarray:
    """psi2 with div psi2 = sum_{i<j} (phi_ii phi_jj - phi_ij^2), laplacian phi = delta."""
    return lpt_fields(delta, box, 2)[1]


def acceleration(disp: Any, config: Any, factor: Callable[[np.ndarray], Any] = lambda k: 1.0) -> np.ndarray:
    """-grad phi at the particles, laplacian phi = factor(k) delta: the mesh force of a config, step by step."""
    shape, box = config.mesh_shape, config.box_size
    position = cells(disp, config)
    mean = math.prod(config.particle_shape) / math.prod(shape)
    k = wavevectors(shape, box)
    modes = np.fft.fftn(paint(position, 1.0, shape) / mean)
    if config.gradient == "spectral":
        modes = modes * inverse_laplacian(k)
    else:
        modes = modes * inverse_laplacian(k) / mesh_response(k, config)
    for axis, n in enumerate(config.particle_shape):
        frequency = np.abs(k[axis]) * box[axis] / (math.pi * n)  # in units of the lattice's Nyquist frequency
        if shape[axis] % n and n < shape[axis]:
            modes = modes * np.where(frequency < 0.9, np.cos(math.pi / 0.6 * np.maximum(frequency - 0.6, 0)) ** 2, 0)
        elif n < shape[axis]:
            modes = modes * (frequency < 1 - 1e-12)
    modes = modes * factor(np.sqrt(sum(k_**2 for k_ in k)))
    if config.gradient == "spectral":
        fields = [np.fft.ifftn(1j * k_ * modes).real for k_ in without_nyquist(k, shape)]
        return np.stack([read(position, field) for field in fields], -1)
    for axis in range(3):
        modes = modes / np.sinc(k[axis] * config.cell_size[axis] / (2 * math.pi)) ** 4
    potential = np.fft.ifftn(modes).real
    fields = [difference(potential, axis) / config.cell_size[axis] for axis in range(3)]
    return np.stack([read(position, field) for field in fields], -1)


def difference(field: np.ndarray, axis: int) -> np.ndarray:
    """Fourth-order central difference along a periodic axis."""
    f = lambda offset: np.roll(field, -offset, axis)  # noqa: E731
    return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / 12


def power_spectrum(field: np.ndarray, box: Any, *, deconvolve: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean k, mean power and number of modes, mode by mode over the full transform."""
    shape = field.shape
    step = min(2 * math.pi / length for length in box)
    nyquist = min(math.pi * n / length for n, length in zip(shape, box, strict=True))
    bins = math.floor(nyquist / step + 1e-6)
    modes = np.fft.fftn(field)
    k = wavevectors(shape, box)
    sums = np.zeros((3, bins + 1))
    for index in itertools.product(*map(range, shape)):
        vector = [k[a].ravel()[index[a]] for a in range(3)]
        modulus = math.hypot(*vector)
        bin_ = round(modulus / step)
        if 1 <= bin_ <= bins:
            value = abs(modes[index]) ** 2
            if deconvolve:
                for a in range(3):
                    value /= np.sinc(vector[a] * box[a] / shape[a] / (2 * math.pi)) ** 4
            sums[:, bin_] += modulus, value, 1
    total_k, total_power, count = sums[:, 1:]
    return total_k / count, total_power / count * math.prod(box) / field.size**2, count


# --- cosmologies and exact solutions ----------------------------------------------------------------------------


def cosmology(**changes: float) -> SimpleNamespace:
    """An object with jax_cosmo's attributes and nothing else."""
    values = {"Omega_c": 0.26, "Omega_b": 0.05, "h": 0.68, "n_s": 0.97, "sigma8": 0.81}
    return SimpleNamespace(**(values | {"Omega_k": 0.0, "w0": -1.0, "wa": 0.0} | changes))


def einstein_de_sitter() -> SimpleNamespace:
    """Matter only, flat: D1 = a, D2 = -3/7 a^2, E = a^(-3/2)."""
    return cosmology(Omega_c=0.95, Omega_b=0.05)


def radiation(cosmo: Any, a: Any) -> Any:
    """Density of photons and three neutrinos of 1.95 K, by a Riemann sum, where the cosmology has them [critical]."""
    if getattr(cosmo, "n_eff", None) is None:
        return 0.0
    photons = 2.472822e-5 / cosmo.h**2
    q = np.arange(0.005, 40, 0.01)
    T = (4 / 11) ** (1 / 3) * (cosmo.n_eff / 3) ** 0.25 * 2.7255 * 8.617333e-5
    y = np.asarray(a)[..., None] * getattr(cosmo, "m_nu", 0.0) / 3 / T
    energy = 0.01 * np.sum(q**2 * np.sqrt(q**2 + y**2) / (np.exp(q) + 1), -1) * 120 / (7 * np.pi**4)
    return (photons + 7 / 8 * (4 / 11) ** (4 / 3) * cosmo.n_eff * photons * energy) * np.asarray(a) ** -4.0


def expansion(cosmo: Any, a: Any) -> Any:
    """E(a) = H / H0."""
    matter = cosmo.Omega_c + cosmo.Omega_b
    dark = 1 - matter - cosmo.Omega_k - radiation(cosmo, 1.0)
    w = a ** (-3 * (1 + cosmo.w0 + cosmo.wa)) * np.exp(-3 * cosmo.wa * (1 - a))
    if (table := getattr(cosmo, "w_table", None)) is not None:
        w = np.interp(np.log(a), *_dark_density(tuple(map(tuple, table))))
    return np.sqrt(matter * a**-3 + cosmo.Omega_k * a**-2 + dark * w + radiation(cosmo, a))


@cache
def _dark_density(table: tuple[tuple[float, float], ...]) -> tuple[np.ndarray, np.ndarray]:
    """ln a, and the density of dark energy with w of a table, by the trapezoidal rule."""
    x = np.linspace(math.log(1e-5), math.log(2), 2**18)
    (a0, w0), (a1, w1) = table[-2:]
    nodes, values = np.transpose([*table, (9.0, w1 + (9.0 - a1) * (w1 - w0) / (a1 - a0))])
    w = np.interp(np.exp(x), nodes, values)
    integral = np.append(0, np.cumsum((w[1:] + w[:-1]) / 2 * np.diff(x)))
    return x, np.exp(-3 * (integral - np.interp(0.0, x, integral) + x))


def growth(cosmo: Any, a: np.ndarray) -> dict[str, np.ndarray]:
    """D1, D2 and d/d ln a of both at ascending a, by scipy in conformal-free form: d(a^3 E D')/da, unlike the package.

    With p = a^3 E dD/da: dD/da = p / (a^3 E), dp/da = 3/2 Omega_m S / (a^2 E) with S = D1 for D1, and so on.
    """
    matter = cosmo.Omega_c + cosmo.Omega_b

    def rhs(a: float, y: np.ndarray) -> np.ndarray:
        D, p = y.reshape(2, 4)
        D1, D2, D3a, D3b = D
        E = expansion(cosmo, a)
        sources = [D1, D2 - D1**2, D3a - 2 * D1**3, D3b + 2 * D1 * (D1**2 - D2)]
        return np.concatenate([p / (a**3 * E), 1.5 * matter / (a**2 * E) * np.array(sources)])

    a0 = 1e-5  # matter domination to 1e-5 or better: D1 = a and so on, and growing modes forget the rest
    orders = np.array([1, 2, 3, 3])
    D0 = np.array([1, -3 / 7, -1 / 3, 10 / 21]) * a0**orders
    start = np.concatenate([D0, a0**2 * expansion(cosmo, a0) * orders * D0])
    start[0] += 2 / 3 * radiation(cosmo, a0) * a0**4 / matter  # growth of Meszaros (1974)
    points = np.unique(np.append(a, 1.0))
    run = solve_ivp(rhs, (a0, points[-1]), start, method="DOP853", rtol=1e-12, atol=0, t_eval=points)
    at, now = np.searchsorted(points, a), run.y[0, np.searchsorted(points, 1.0)]
    D, p = run.y[:, at].reshape(2, 4, -1) / (now**orders)[:, None]
    dD = p / (a**2 * expansion(cosmo, a))
    return {"D1": D[0], "dD1": dD[0], "D2": D[1], "dD2": dD[1], "D3": D[2:], "dD3": dD[2:]}


def plane_wave(shape: Any, box: Any, crossing: float, *, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Linear density contrast at D1 = 1 and displacement psi of a sine wave whose sheets first cross at `crossing`.

    x = q + D1 psi(q) solves the equations of motion exactly until D1 = crossing (Zel'dovich 1970).
    """
    k = 2 * math.pi / box[axis]
    q = lattice(shape, box)[..., axis]
    psi = np.zeros((*shape, 3))
    psi[..., axis] = -np.sin(k * q) / (k * crossing)
    return np.cos(k * q) / crossing, psi


def smooth_field(rng: np.random.Generator, shape: Any, *, largest: int = 1) -> np.ndarray:
    """Unit-variance Gaussian field of the modes with |n| <= `largest` along each axis."""
    modes = np.fft.fftn(rng.standard_normal(shape))
    for axis, n in enumerate(shape):
        keep = np.abs(np.fft.fftfreq(n, 1 / n)) <= largest
        modes = modes * keep.reshape([-1 if a == axis else 1 for a in range(3)])
    modes[0, 0, 0] = 0
    field = np.fft.ifftn(modes).real
    return field / field.std()


UNOPTIMIZED: dict[str, int | bool] = {"xla_backend_optimization_level": 0}
OPTIMIZED: dict[str, int | bool] = {"xla_backend_optimization_level": 3}  # XLA's defaults
if jax.__version_info__ < (0, 11):  # later ones have no other way to compile
    UNOPTIMIZED |= {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    OPTIMIZED |= {"xla_cpu_use_fusion_emitters": True, "xla_cpu_parallel_codegen_split_count": 32}
XLA_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in UNOPTIMIZED.items())  # of all tests


def optimized(function: Any) -> Any:
    """jax.jit with the optimisations that the tests leave out."""
    return jax.jit(function, compiler_options=OPTIMIZED)


def has_sharding(array: Any, sharding: Any) -> bool:
    """Whether an array is laid out like this, however it is written: P("x", None) is P("x") on one device along y."""
    return array.sharding.is_equivalent_to(sharding, array.ndim)


# --- friends of friends -----------------------------------------------------------------------------------------


def friends_on_borders() -> tuple[np.ndarray, np.ndarray]:
    """Points, shape (256, 3), and the sides of their box, for a linking length of 1/4, which many distances are.

    Groups lie across the middle and the ends of the box, one winds around it, one crosses the middle again and again,
    one is a single point many times, and the rest are random.
    """
    rng, sides, quarter = np.random.default_rng(3), np.array([8.0, 8.0, 4.0]), np.arange(32.0) / 4
    blob = np.stack(np.meshgrid(*[quarter[:3] - 0.25] * 3, indexing="ij"), -1).reshape(-1, 3)
    around = np.stack([quarter, 0 * quarter + 2, 0 * quarter + 2], -1)
    turns = [
        [(4 + s * i / 4, j / 2, 1) for i in (-1, 0, 1)] + [(4 + s / 4, j / 2 + 0.25, 1)]
        for j, s in enumerate((1, -1) * 3)
    ]
    corner, side = np.array([4, 4, 4]), np.array([0, 6, 2])
    groups = [around, np.concatenate(turns), blob + corner, blob + side, np.tile([4.0, 6.0, 1.0], (25, 1))]
    count = 256 - sum(map(len, groups))
    points = np.concatenate([*groups, rng.integers(0, 64, (count, 3)) / 8]) % sides
    return rng.permutation(points), sides


def friends_by_pairs(points: np.ndarray, sides: np.ndarray, length: float) -> np.ndarray:
    """Least index in the friends-of-friends group of each point, by all pairs."""
    squared = 0.0
    for x, side in zip(points.T.astype(float), sides, strict=True):
        d = np.abs(x[:, None] - x)
        squared = squared + np.where(d > side / 2, d - side, d) ** 2
    _, component = connected_components(squared <= length * length, directed=False)
    return np.array([np.flatnonzero(component == c)[0] for c in component])
