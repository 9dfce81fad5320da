"""Figures along wavenumbers, multipoles and densities: spectra, r(k) and T(k), the one-point distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.report.style import (
    COLOURS,
    check_results,
    colours,
    figure_of,
    finish_axis,
    label_decades,
    make_axes,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POLES = {0: "monopole", 2: "quadrupole", 4: "hexadecapole"}
_PER_MPC = r"$k$  [$h$/Mpc]"
_SIZE = 8.0, 6.4
_DASHED = (0, (5, 3))
TRUTH: Any = {"color": "0.25", "lw": 1.3, "ls": _DASHED}


@styled()
def power(
    spectra: Any, linear: Any, *, labels: Sequence[str] = (), shot_noise: float = math.nan, axes: Any = None
) -> Figure:
    """Draw power spectra with linear theory, and their ratio below with the scatter of the modes.

    Args:
      spectra: spectrum of `power_spectrum`, or several.
      linear: linear theory at the wavenumbers of the spectrum [(Mpc/h)^3], or a sequence of one array each.
      labels: label of each spectrum.
      shot_noise: volume per particle [(Mpc/h)^3], drawn with the particle Nyquist frequency; default: neither.
      axes: two axes, for spectra and ratios; default: a new figure.

    Examples:
      >>> spectrum = pmd.power_spectrum(density, config)
      >>> pmd.plot.power(spectrum, pmd.linear_power(spectrum.k, cosmo))
    """
    if hasattr(spectra, "power"):
        spectra, linear = [spectra], [linear]
    check_results(spectra, "spectra", "k power modes", "pmd.power_spectrum")
    _check_counts(spectra, linear=linear, labels=labels or spectra)
    if not (isinstance(shot_noise, float | np.floating) and math.isnan(shot_noise)):
        check_number(shot_noise, "shot_noise", 1e-30, unit="(Mpc/h)^3")
    upper, lower = make_axes(axes, (8, 8.2), 2, sharex=True, height_ratios=(2.2, 1))
    wavenumbers, ratios = [np.zeros(0)], [np.zeros(0)]
    for i, (spectrum, expected, colour) in enumerate(zip(spectra, linear, colours(len(spectra)), strict=True)):
        k, value, modes, theory = _filled(spectrum.modes, spectrum.k, spectrum.power, spectrum.modes, expected)
        known = np.isfinite(theory) & (theory > 0)
        upper.loglog(k, value, color=colour, lw=2.2, label=labels[i] if labels else None)
        upper.loglog(k[known], theory[known], color=colour, lw=1.3, ls=_DASHED)
        ratio = value[known] / theory[known]
        # A mode and its conjugate count twice but scatter as one: the mean of a bin scatters by sqrt(2 / modes).
        scatter = ratio * np.sqrt(2 / modes[known])
        lower.fill_between(k[known], ratio - scatter, ratio + scatter, color=colour, alpha=0.18, lw=0)
        lower.loglog(k[known], ratio, color=colour, lw=2.2)
        wavenumbers.append(k)
        ratios.append(ratio[ratio > 0])
    _finish_power(upper, lower, np.concatenate(wavenumbers), np.concatenate(ratios), shot_noise)
    return figure_of(upper)


def _check_counts(spectra: Any, **others: Any) -> None:
    """Raise ArgumentError unless there are as many theories and labels as spectra."""
    for name, values in {"spectra": spectra, **others}.items():
        is_list = isinstance(values, Sized) and not isinstance(values, str | Mapping) and getattr(values, "ndim", 1)
        if not is_list or len(values) != len(spectra):
            raise ArgumentError(name, values, "must be a list with an entry for each spectrum", show_value=False)


def _filled(counts: Any, *columns: Any) -> list[np.ndarray]:
    """Columns in the bins that hold modes, triangles or cells."""
    some, values = np.asarray(counts) > 0, [np.asarray(column, float) for column in columns]
    if wrong := [x.shape for x in values if x.shape[:1] != some.shape]:
        remedy = "pass theory and errors in these bins"
        raise ArgumentError("shape", wrong[0], f"of a curve must be {some.shape}, the bins of the spectrum", remedy)
    return [x[some] for x in values]


def _finish_power(upper: Axes, lower: Axes, k: np.ndarray, ratios: np.ndarray, shot_noise: float) -> None:
    upper.plot([], [], color="0.35", lw=1.3, ls=_DASHED, label="linear theory")
    if math.isfinite(shot_noise):
        nyquist = math.pi / shot_noise ** (1 / 3)
        upper.axhline(shot_noise, color="0.35", lw=1.3, ls=":", label=r"shot noise $V/N$ (not subtracted)")
        for axes, label in ((upper, "particle Nyquist frequency"), (lower, None)):
            axes.axvline(nyquist, color="0.35", lw=1.3, ls="-.", label=label)
        k = np.append(k, nyquist)
    lower.fill_between([], [], color="0.35", alpha=0.25, lw=0, label=r"scatter of the modes, $1\,\sigma$")
    lower.legend(loc="upper left", fontsize=12)
    upper.legend(loc="lower left", frameon=True, framealpha=1, edgecolor="none")  # over the line of the shot noise
    upper.set_ylabel(r"$P(k)$  [(Mpc/$h)^3$]")
    lower.axhline(1, color="0.35", lw=1)
    lower.set_ylabel(r"$P$ / linear theory")
    lower.set_xlabel(_PER_MPC)
    for axes in (upper, lower):
        finish_axis(axes, k)
    if len(ratios):
        lower.set_ylim(min(0.6, ratios.min() * 0.9), max(1.7, ratios.max() * 1.15))
    low, high = lower.get_ylim()
    label_decades(lower.yaxis, (1, 2, 5) if high / low > 12 else (1, 1.5, 2, 3, 5))


@styled()
def multipoles(measured: Any, linear: Any = None, *, error: Any = None, axes: Any = None) -> Figure:
    """Draw k P_l with linear theory, both in bins that are merged at large k.

    Args:
      measured: multipoles of `observe.power_multipoles`.
      linear: multipoles of `observe.kaiser_multipoles`.
      error: standard deviation of each value, shape (poles, bins) [(Mpc/h)^3].
      axes: axes; default: a new figure.

    Examples:
      >>> theory = observe.kaiser_multipoles(lambda k: pmd.linear_power(k, cosmo), cosmo, config)
      >>> pmd.plot.multipoles(observe.power_multipoles(density, config), theory)
    """
    check_results([measured], "measured", "k power modes poles", "observe.power_multipoles")
    rows = {} if linear is None else _rows_of_theory(measured, linear)
    (ax,) = make_axes(axes, _SIZE)
    k, modes, *power = _filled(measured.modes, measured.k, measured.modes, *measured.power)
    if error is not None and np.shape(error)[:1] != (len(power),):
        raise ArgumentError("error", error, f"must have a row for each of poles={measured.poles}", show_value=False)
    scatters = np.zeros_like(power) if error is None else _filled(measured.modes, *error)
    theories = _filled(measured.modes, *(rows[pole] for pole in measured.poles)) if rows else []
    groups = _groups(k)
    total = np.bincount(groups, modes)
    centre = np.bincount(groups, modes * k) / total
    shown = [np.zeros(1)]
    for i, (pole, colour) in enumerate(zip(measured.poles, COLOURS, strict=False)):
        fade = 0.45 if pole == 4 else 1.0
        scatter = centre * np.sqrt(np.bincount(groups, (modes * scatters[i]) ** 2)) / total
        value = centre * np.bincount(groups, modes * power[i]) / total
        label = rf"$\ell = {pole}$, {_POLES.get(pole, '')}".rstrip(", ")
        ax.errorbar(centre, value, scatter, fmt="o", color=colour, ms=4.5, lw=1.4, alpha=fade, label=label)
        shown += [value] * (pole < 4)
        if theories:
            theory = centre * np.bincount(groups, modes * theories[i]) / total
            ax.plot(centre, theory, color=colour, lw=1.6, ls=_DASHED, alpha=fade)
            shown += [theory] * (pole < 4)
    if linear is not None:
        ax.plot([], [], color="0.35", lw=1.6, ls=_DASHED, label="linear theory (Kaiser)")
    ax.axhline(0, color="0.35", lw=1)
    finish_axis(ax, centre)
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    low, high = min(0.0, float(np.quantile(values, 0.02))), float(values.max()) or 1.0
    ax.set_ylim(low - 0.2 * (high - low), high + 0.15 * (high - low))
    ax.set_ylabel(r"$k\,P_\ell(k)$  [(Mpc/$h)^2$]")
    return _finished(ax, _PER_MPC)


def _rows_of_theory(measured: Any, linear: Any) -> dict[int, Any]:
    """Linear multipoles by order; ArgumentError unless they have the orders and wavenumbers of the measured ones."""
    check_results([linear], "linear", "k power poles", "observe.kaiser_multipoles")
    rows = dict(zip(linear.poles, linear.power, strict=True))
    if not rows.keys() >= set(measured.poles):
        raise ArgumentError("linear.poles", linear.poles, f"must hold all of measured.poles={measured.poles}")
    of_theory, of_measured = _filled(measured.modes, linear.k, measured.k)
    if not np.allclose(of_theory, of_measured, rtol=1e-3):
        raise ArgumentError("linear.k", linear.k, "must be measured.k, that of the same config", show_value=False)
    return rows


def _finished(axes: Axes, along: str, *, legend: bool = True) -> Figure:
    axes.set_xlabel(along)
    if legend:
        axes.legend(fontsize=12)
    return figure_of(axes)


def _groups(k: np.ndarray) -> np.ndarray:
    """Index of the merged bin of each bin; merged bins are at least 6 % wide."""
    numbers, start = np.zeros(len(k), int), k[0]
    for i in range(1, len(k)):
        wide = k[i] > start * 1.06
        numbers[i] = numbers[i - 1] + wide
        start = k[i] if wide else start
    return numbers


@styled()
def bispectrum(measured: Any, tree: Any = None, *, axes: Any = None) -> Figure:
    """Draw a bispectrum by wavenumber where all triangles are equilateral, else by index of the bin.

    Args:
      measured: bispectrum of `observe.bispectrum`.
      tree: tree level in the same bins [(Mpc/h)^6], as of `observe.tree_bispectrum`.
      axes: axes; default: a new figure.

    Examples:
      >>> measured = observe.bispectrum(density, config)
      >>> pmd.plot.bispectrum(measured)
    """
    check_results([measured], "measured", "k bispectrum scatter triangles", "observe.bispectrum")
    (ax,) = make_axes(axes, _SIZE)
    sides, value, error = _filled(measured.triangles, measured.k, measured.bispectrum, measured.scatter)
    same = bool((sides == sides[:, :1]).all())
    x = sides[:, 0] if same else np.arange(1.0, len(sides) + 1)
    some, shown = value > 0, value[value > 0]
    low = np.minimum(error, 0.999 * np.abs(value))
    style: Any = {"fmt": "o", "color": COLOURS[0], "ms": 4.5, "lw": 1.4}
    ax.errorbar(x[some], value[some], np.stack([low, error])[:, some], **style, label="measured")
    if tree is not None:
        (theory,) = _filled(measured.triangles, tree)
        ax.plot(x, theory, color=COLOURS[1], lw=1.6, label="tree level")
        shown = np.concatenate([shown, theory[theory > 0]])
    ax.set_yscale("log")
    if len(shown):
        ax.set_ylim(0.4 * float(shown.min()), 2.5 * float(shown.max()))
    if same:
        finish_axis(ax, x)
    ax.set_ylabel(r"$B(k_1, k_2, k_3)$  [(Mpc/$h)^6$]")
    return _finished(ax, _PER_MPC if same else r"bin of triangles, $k_1 \leq k_2 \leq k_3$")


@styled()
def cross(found: Any, *, axes: Any = None) -> Figure:
    """Draw the correlation r(k) and the transfer function T(k) of two fields.

    Args:
      found: spectra of `observe.cross_power`.
      axes: axes; default: a new figure.

    Examples:
      >>> found = observe.cross_power(density, reference, config)
      >>> pmd.plot.cross(found)
    """
    check_results([found], "found", "k correlation transfer modes", "observe.cross_power")
    (ax,) = make_axes(axes, _SIZE)
    k, correlation, transfer = _filled(found.modes, found.k, found.correlation, found.transfer)
    ax.plot(k, correlation, color=COLOURS[0], lw=2.2, label=r"correlation $r(k)$")
    ax.plot(k, transfer, color=COLOURS[1], lw=2.2, label=r"transfer function $T(k)$")
    ax.axhline(1, color="0.35", lw=1)
    finish_axis(ax, k)
    ax.set_ylim(min(0.0, float(np.nanmin(correlation))), max(1.25, 1.1 * float(np.nanmax(np.minimum(transfer, 4)))))
    ax.set_ylabel(r"$r(k)$,  $T(k)$")
    return _finished(ax, _PER_MPC)


@styled()
def pdf(found: Any, *, axes: Any = None) -> Figure:
    """Draw a one-point distribution of the density with its Poisson scatter.

    Args:
      found: distribution of `observe.one_point_pdf`, of densities in units of their mean.
      axes: axes; default: a new figure.

    Examples:
      >>> found = observe.one_point_pdf(density, config, np.geomspace(0.1, 30, 40))
      >>> pmd.plot.pdf(found)
    """
    check_results([found], "found", "values density cells", "observe.one_point_pdf")
    (ax,) = make_axes(axes, _SIZE)
    shown = np.asarray(found.cells) * (np.asarray(found.values) > 0)  # on a logarithmic axis
    value, probability, cells = _filled(shown, found.values, found.density, found.cells)
    scatter = probability / np.sqrt(np.maximum(cells, 1))
    low, high = (probability - scatter).clip(1e-300), probability + scatter
    ax.fill_between(value, low, high, color=COLOURS[0], alpha=0.2, lw=0)
    ax.set_yscale("log")
    ax.plot(value, probability, color=COLOURS[0], lw=2.2)
    if len(value):
        ax.set_ylim(0.3 * float(probability.min()), 3 * float(probability.max()))
    ax.set_ylabel(r"probability density")
    finish_axis(ax, value if len(value) else np.asarray(found.values, float))
    return _finished(ax, r"density / mean,  $1 + \delta$", legend=False)


@styled()
def angular_power(
    spectra: Sequence[Any], linear: Sequence[Any] = (), *, labels: Sequence[str] = (), axes: Any = None
) -> Figure:
    """Draw l (l + 1) C_l / 2 pi of maps with its Gaussian scatter, and linear theory.

    Args:
      spectra: spectra of `observe.angular_power`, one for each map.
      linear: linear theory at the multipoles of each spectrum [steradian], as of `observe.limber_power`.
      labels: label of each spectrum.
      axes: axes; default: a new figure.

    Examples:
      >>> spectrum = observe.angular_power(convergence, side=5.0)
      >>> pmd.plot.angular_power([spectrum], labels=["z = 1"])
    """
    check_results(spectra, "spectra", "ell power modes", "observe.angular_power")
    _check_counts(spectra, linear=linear if len(linear) else spectra, labels=labels or spectra)
    (ax,) = make_axes(axes, (6.6, 5.6))
    shown, ells = [np.zeros(0)], [np.zeros(0)]
    for i, (spectrum, colour) in enumerate(zip(spectra, colours(len(spectra)), strict=True)):
        ell, power, modes = _filled(spectrum.modes, spectrum.ell, spectrum.power, spectrum.modes)
        factor = ell * (ell + 1) / (2 * np.pi)
        error = getattr(spectrum, "error", None)  # of tables of runs
        error = factor * (power * np.sqrt(2 / modes) if error is None else _filled(spectrum.modes, error)[0])
        power = factor * power
        ax.fill_between(ell, np.maximum(power - error, 1e-30), power + error, color=colour, alpha=0.2, lw=0)
        power = np.where(power > 0, power, np.nan)  # without steep lines
        ax.plot(ell, power, "o-", ms=4, color=colour, lw=1.8, label=labels[i] if labels else None)
        if len(linear):
            theory = factor * _filled(spectrum.modes, linear[i])[0]
            ax.plot(ell, theory, color=colour, lw=1.4, ls=_DASHED)
            shown.append(theory)
        shown.append(power)
        ells.append(ell)
    if len(linear):
        ax.plot([], [], color="0.35", lw=1.4, ls=_DASHED, label="linear theory")
    values = np.concatenate(shown)
    values = values[values > 0]
    ax.set_yscale("log")
    if len(values):
        ax.set_ylim(max(values.min() * 0.5, values.max() * 1e-4), values.max() * 2)
    finish_axis(ax, np.concatenate(ells))
    ax.set_ylabel(r"$\ell(\ell+1)\,C_\ell / 2\pi$")
    return _finished(ax, r"multipole $\ell$", legend=bool(len(labels) or len(linear)))


@styled()
def bands(
    k: np.ndarray, panels: Mapping[str, tuple[Any, Any, str]], *, along: str = _PER_MPC, axes: Any = None
) -> Figure:
    """Draw medians of the curves of many draws, such as r(k) and T(k) of a posterior, with bands of 68 % and 95 %.

    Args:
      k: wavenumbers [h/Mpc] or multipoles, shape (k,).
      panels: curves of shape (draws, k), a reference curve or None, and its name, by label of the panel.
      along: label of the axis of k.
      axes: axes, one for each panel; default: a new figure.

    Examples:
      >>> found = jax.vmap(lambda x: observe.cross_power(x, truth, config, deconvolve=False))(chain.noise[:, 0])
      >>> pmd.plot.bands(found.k[0], {"r(k)": (found.correlation, None, "")})
    """
    grid = make_axes(axes, (8, 2.6 * len(panels) + 0.8), len(panels), sharex=True)
    for ax, (label, (draws, reference, name)) in zip(grid, panels.items(), strict=True):
        curves = np.asarray(draws, float)
        some = np.isfinite(curves).any(axis=0)  # r(k) of constant data is not finite
        levels = np.nanpercentile(np.where(some, curves, 0), [2.5, 16, 50, 84, 97.5], axis=0)
        low, below, middle, above, high = np.where(some, levels, np.nan)
        ax.fill_between(k, low, high, color=COLOURS[0], alpha=0.15, lw=0, label="95 % of the samples")
        ax.fill_between(k, below, above, color=COLOURS[0], alpha=0.3, lw=0, label="68 %")
        ax.plot(k, middle, color=COLOURS[0], lw=2, marker="o" if len(k) == 1 else "")
        if reference is not None:
            ax.plot(k, reference, label=name, **TRUTH)
        if "P(k)" in label or "C_" in label:
            ax.set_yscale("log")
        ax.set_ylabel(label, fontsize=12)
        finish_axis(ax, np.asarray(k))
    grid[0].legend(fontsize=11)
    grid[-1].set_xlabel(along)
    return figure_of(grid[0])
