"""Figures and tables of a run."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import matplotlib as mpl
import matplotlib.image
import matplotlib.quiver
import numpy as np
import pytest
from PIL import Image

from pmwd_dist.cli.movie import write_movie
from pmwd_dist.io.arrays import Arrays, write_arrays
from pmwd_dist.report import drawing, plot
from pmwd_dist.report.fields import lensed_maps
from pmwd_dist.report.tables import Table, read_table, write_table
from pmwd_dist.run.common import manifest
from pmwd_dist.run.outputs.power import Power, spectrum_table
from pmwd_dist.run.outputs.registry import figures, redraw
from pmwd_dist.run.outputs.slices import Slices


def make_spectrum(z: float, bins: int = 20, empty: int | None = None) -> Table:
    k = 0.05 * np.arange(1, bins + 1)
    linear = 2e4 / (1 + z) ** 2 * (k / 0.05) ** -1.5
    modes = np.round(100 * np.arange(1, bins + 1) ** 2.0)
    if empty is not None:
        modes[empty] = 0
    return spectrum_table(SimpleNamespace(k=k, power=linear * (1 + k), modes=modes), linear, 27.0)


def slab_of(*values: Any) -> Arrays:
    return dict(zip(("z", "density", "sides", "thickness"), map(np.asarray, values), strict=True))


def make_slab(z: float = 0.0, shape: tuple[int, int] = (16, 16), sides: tuple[float, float] = (64.0, 64.0)) -> Arrays:
    return slab_of(z, np.random.default_rng(0).lognormal(-0.5, 1.0, shape), sides, 8.0)


def draw_spectra(folder: Path, spectra: dict[float, Table]) -> Path:
    for z, spectrum in spectra.items():
        write_table(folder / f"power_z{z:.3f}.csv", spectrum)
    redraw(folder)
    return folder / "power.png"


def draw_slab(folder: Path, slab: Arrays) -> Path:
    write_arrays(folder / "density_z0.000.npz", slab, {})
    redraw(folder)
    return folder / "density_z0.000.png"


def test_spectrum_survives_its_file(tmp_path: Path):
    """With names and units of its columns, and without bins that hold no mode."""
    for z in (0.0, 0.5, 2.0):
        write_table(tmp_path / f"power_z{z:.3f}.csv", make_spectrum(z, empty=3 if z else None))
    first = (tmp_path / "power_z0.000.csv").read_text().splitlines()[0]
    assert first == "k [h/Mpc],power [(Mpc/h)^3],modes,linear power [(Mpc/h)^3],shot noise [(Mpc/h)^3]"
    read = Power.read(tmp_path)
    assert [(z, len(table["k"])) for z, table in read.items()] == [(0.0, 20), (0.5, 19), (2.0, 19)]
    for name, column in make_spectrum(0.5, empty=3).columns.items():
        np.testing.assert_allclose(read[0.5][name], column, rtol=1e-6)


def test_slab_survives_its_file(tmp_path: Path):
    slab = make_slab(0.25, (8, 12), (32.0, 48.0))
    write_arrays(tmp_path / "density_z0.250.npz", slab, {})
    read = Slices.read(tmp_path / "density_z0.250.npz")
    np.testing.assert_array_equal(read["density"], slab["density"])
    assert (read["z"], read["sides"].tolist(), read["thickness"]) == (0.25, [32.0, 48.0], 8.0)


def test_limits_of_the_particles_are_drawn():
    spectra = [make_spectrum(0.0), make_spectrum(1.0)]
    linear = [table["linear power"] for table in spectra]
    spectra = [SimpleNamespace(**table.columns) for table in spectra]
    (upper, lower), (without, _) = (plot.power(spectra, linear, shot_noise=x).axes for x in (27.0, np.nan))
    lines = {line.get_label(): line.get_xydata()[0] for line in upper.lines if len(line.get_xydata())}
    assert lines["shot noise $V/N$ (not subtracted)"][1] == 27
    assert lines["particle Nyquist frequency"][0] == pytest.approx(np.pi / 3)
    assert lower.get_xlim()[1] > np.pi / 3
    assert not any("Nyquist" in line.get_label() for line in without.lines)


def test_spectra_are_drawn(tmp_path: Path):
    """One and many, without linear theory and far from it."""
    spectrum = make_spectrum(0.0)
    draw_spectra(tmp_path, {0.0: spectrum})
    spectrum["linear power"][:] = np.nan
    draw_spectra(tmp_path, {0.0: spectrum})
    spectrum["linear power"][3:] = 1e5
    path = draw_spectra(tmp_path, {0.0: spectrum} | {z: make_spectrum(z) for z in range(1, 9)})
    assert min(mpl.image.imread(path).shape[:2]) > 800
    columns = make_spectrum(0.0).columns
    pickle.dumps(plot.power(SimpleNamespace(**columns), columns["linear power"]))


@pytest.mark.parametrize(
    "slab",
    [
        make_slab(1.0, (32, 8), (128.0, 32.0)),
        make_slab(1.0, (8, 16), (8.0, 64.0)),
        *(slab_of(9.0, x, (64.0, 64.0), 8.0) for x in (np.ones((8, 8)), np.zeros((8, 8)), 1 + 1e-3 * np.eye(8))),
    ],
)
def test_slabs_are_drawn(tmp_path: Path, slab: Arrays):
    """Also fields with little to see."""
    assert draw_slab(tmp_path, slab).stat().st_size > 10_000


@pytest.mark.parametrize("ra", [np.array([350.0, 355.0, 5.0, 10.0]), np.linspace(0, 350, 4), np.zeros(0)])
def test_a_wedge_is_as_wide_as_its_galaxies(ra: np.ndarray):
    """Across RA = 0, on the whole circle, and without galaxies."""
    figure = plot.wedge({"RA": ra, "DEC": 0 * ra, "Z": 0.1 + ra / 1000}, thickness=2.0)
    (axes,) = figure.axes
    low, high = np.degrees(axes.viewLim.intervalx)
    assert high - low == pytest.approx({4: 20 if len(ra) and ra[0] > 300 else 360}.get(len(ra), 2))
    assert len(axes.collections[0].get_offsets()) == len(ra)
    far = np.array([-3, -2, -1, 90])[: len(ra)]  # more than 90 degrees from the median
    plot.wedge({"RA": ra, "DEC": far, "Z": 0.1 + ra / 1000})
    with pytest.raises(ValueError, match=r"columns\['DEC'\] must be a finite number"):
        plot.wedge({"RA": ra, "DEC": [np.nan], "Z": ra})


def test_another_process_draws_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = ["power.png", "density_z0.000.png", "density_z1.000.png"]
    drawn = set[str]()
    modules = drawing.start().submit(eval, "[x in __import__('sys').modules for x in ('matplotlib', 'jax')]")
    assert modules.result() == [True, False]
    write_table(tmp_path / "power_z0.000.csv", make_spectrum(0.0))
    write_arrays(tmp_path / "density_z0.000.npz", make_slab(), {})
    drawing.draw(figures(tmp_path))
    drawing.draw(figures(tmp_path, names[:1]))
    write_arrays(tmp_path / "density_z1.000.npz", make_slab(), {})
    monkeypatch.setattr(drawing, "save", lambda figure, path: drawn.add(path.name))
    drawing.finish(figures(tmp_path))
    assert drawn <= {names[2]} and {path.name for path in tmp_path.glob("*.png")} | drawn == set(names)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("fit", [None, np.array([1.0, 2.0, 0.0])])
def test_a_mass_function_has_a_ratio_to_a_fit_alone(fit: Any):
    found = SimpleNamespace(**dict.fromkeys(("mass", "density", "error", "number"), 1 + np.arange(3.0)))
    axes = plot.mass_function(found, fit).axes
    assert [ax.get_ylabel()[:5] for ax in axes] == ["$\\mat", "ratio"][: 1 if fit is None else 2]
    assert [bool(ax.get_xlabel()) for ax in axes] == ([True] if fit is None else [False, True])
    assert axes[-1].lines
    assert axes[0].get_xlim() == pytest.approx((0.8, 3.75))  # of a width, also with one bin
    found.number = 0 * found.number
    plot.mass_function(found)


def test_flows_are_drawn_as_arrows(tmp_path: Path):
    """With the speed of one of them as the key; without a velocity there are none."""
    velocity = 300 * np.ones((2, 64, 32)) / np.sqrt(2)
    for name, values in {"z0.000": velocity, "z1.000": velocity[:0]}.items():
        write_arrays(tmp_path / f"fields_{name}.npz", make_slab(shape=(64, 32)) | {"velocity": values}, {})
    axes = plot.density(np.ones((64, 32)), (64.0, 32.0), velocity=velocity).axes[0]
    assert [key.text.get_text() for key in axes.findobj(mpl.quiver.QuiverKey)] == ["300 km/s"]
    assert {path.name for path in redraw(tmp_path)} == {"fields_z0.000.png", "fields_z1.000.png"}


def test_a_figure_of_data_that_are_none_is_absent(tmp_path: Path):
    path = tmp_path / "density_z1.000.png"
    write_arrays(path.with_suffix(".npz"), make_slab() | {"density": np.ones(4)}, {})
    path.touch()  # of earlier data
    drawing.draw(figures(tmp_path))
    with pytest.raises(ValueError, match=r"density_z1.000.png: field=.* must have the shape \(nx, ny, nz\)"):
        drawing.finish(figures(tmp_path))
    assert not path.exists()


@pytest.mark.slow
def test_figures_of_a_process_that_is_killed_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = list[str]()
    write_table(tmp_path / "power_z0.000.csv", make_spectrum(0.0))
    (tmp_path / "power.png").touch()  # of earlier data
    os.kill(drawing.start().submit(os.getpid).result(), signal.SIGKILL)
    drawing.draw(figures(tmp_path))
    monkeypatch.setattr(drawing, "save", lambda figure, path: drawn.append(path.name))
    drawing.finish(figures(tmp_path))
    assert drawn == ["power.png"]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_nothing_is_left_of_the_process_when_the_program_is_killed(name: str):
    """Ctrl-C, which a terminal sends to all, ends the program, not the process; a killed program ends it."""
    code = (
        "import os, signal, sys; from pmwd_dist.report import drawing as d; "
        "pid = d.start().submit(os.getpid).result(); os.kill(pid, signal.SIGINT); d.start().submit(int).result(); "
        f"print(pid, flush=True); signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), signal.{name})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (-getattr(signal, name), "")
    state, limit = "", time.monotonic() + 10
    with suppress(FileNotFoundError):
        while state != "Z" and time.monotonic() < limit:  # or init is late
            state = Path(f"/proc/{done.stdout.strip()}/stat").read_text().split()[2]
            time.sleep(0.02)
        assert state == "Z"


def test_redraw_fails_on_damaged_files(tmp_path: Path):
    assert redraw(tmp_path) == []
    (tmp_path / "density_z0.000.npz").write_text("no zip")
    with pytest.raises(ValueError, match="is damaged"):
        redraw(tmp_path)
    for text, why in (("k,power\n1,two\n", ""), ("k,power\n1,2.3", r"\(its end is missing\)")):
        (tmp_path / "power_z0.000.csv").write_text(text)
        with pytest.raises(ValueError, match=f"not a table of this program {why}"):
            redraw(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"density": np.ones(8)},
        {"density": np.full((8, 8), np.nan)},
        {"density": np.full((8, 8), "a")},
        {"sides": np.ones(3)},
        {"sides": np.zeros(2)},
        {"z": np.zeros(2)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_slabs_that_are_made_up_are_refused(tmp_path: Path, changes: dict[str, np.ndarray]):
    path = tmp_path / "density_z0.000.npz"
    fields = {"z": np.float64(0), "density": np.ones((8, 8)), "sides": np.ones(2), "thickness": np.float64(1)}
    np.savez(path, **(fields | changes))
    with pytest.raises(ValueError, match=r"density_z0.000.npz: .*; restore it from a copy") as caught:
        redraw(tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_slabs_are_refused_or_the_same(tmp_path: Path):
    write_arrays(tmp_path / "whole.npz", make_slab(), {})
    whole, rng = (tmp_path / "whole.npz").read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(100):
        content = bytearray(whole)
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        (tmp_path / "damaged.npz").write_bytes(content)
        try:
            slab = Slices.read(tmp_path / "damaged.npz")
        except ValueError:
            refused += 1
        else:
            np.testing.assert_array_equal(slab["density"], make_slab()["density"])
    assert refused > 80


def test_settings_of_matplotlib_stay_as_they_were(tmp_path: Path):
    before = dict(mpl.rcParams)
    draw_slab(tmp_path, make_slab())
    draw_spectra(tmp_path, {0.0: make_spectrum(0.0)})
    assert dict(mpl.rcParams) == before


PAIRS = "z=0.5", "z=0.5 x galaxies 1", "galaxies 1"


def test_tables_and_maps_of_observables_are_drawn_from_their_files(tmp_path: Path):
    k = 0.05 * np.arange(1, 12)
    poles = {f"{kind}P{pole}": 100 / k / (1 + pole) for kind in ("", "error of ", "linear ") for pole in (0, 2, 4)}
    contents = {
        "multipoles": Table("matter", {"k": k, **poles, "modes": 100 * k}, {"k": "h/Mpc", "P0": "(Mpc/h)^3"}),
        "cross": Table("density, linear field", {"k": k, "r": 1 - k / 4, "T": 1 + k, "modes": k}, {"k": "h/Mpc"}),
        "bispectrum": Table(
            "bispectrum",
            {"k1": k, "k2": k, "k3": 2 * k}
            | dict.fromkeys(("B", "error of B", "tree level", "triangles"), k - k[1] / 2),
            {"k1": "h/Mpc"},
        ),
        "halos": Table("halos", dict.fromkeys(("mass", "dn/dlnM", "error", "halos", "Tinker 2008"), 1 + k), {}),
        "pdf": Table("density", {"density": k, "probability density": k, "cells": 10 * k}, {}),
    }
    for name, table in contents.items():
        path = tmp_path / f"{name}_z0.500.csv"
        write_table(path, table)
        read = read_table(path)
        assert (read.title, read.units, list(read.columns)) == (table.title, table.units, list(table.columns))
    with h5py.File(tmp_path / "light_cone.hdf5", "w") as file:
        file.attrs.update({"sky": "sphere", "sources": [0.5], "nside": 2, "redshift_bins": [0.1, 0.2]})
        file["convergence"] = file["galaxies"] = np.random.default_rng(0).normal(size=(1, 48))
        file["seen"] = np.arange(48) % 2
    rows = dict.fromkeys(("l", "modes", *(f"{x} {y}" for x in ("C_l", "error", "linear") for y in PAIRS)), 1 + k)
    write_table(tmp_path / "convergence_power.csv", Table("convergence", rows, {}))
    drawn = redraw(tmp_path)
    assert {path.name for path in drawn} == {*(f"{name}_z0.500.png" for name in contents), "convergence.png"}
    assert all(path.stat().st_size > 10_000 for path in drawn)
    with Image.open(tmp_path / "convergence.png") as image:  # a row of each kind, three panels of spectra
        assert image.width / image.height == pytest.approx(3 * 6.6 / (3 * 5.6), rel=0.01)
    alone, among = plot.convergence(np.eye(4), field=1.0), lensed_maps(["z = 1"], np.eye(4)[None], field=1.0)
    assert among.axes[0].xaxis.label.get_size() == alone.axes[0].xaxis.label.get_size()
    (tmp_path / "pdf_z0.500.csv").write_text("# nothing\nof,this\n1,2\n")
    with pytest.raises(ValueError, match=r"pdf_z0.500.csv: has no column 'density'"):
        redraw(tmp_path)


@pytest.mark.parametrize(
    ("column", "words"),
    [([0.1, np.nan], "Z with values that are not finite"), ([0.1], "Z of 1 rows, and another .* 2")],
)
def test_damaged_galaxies_name_their_file(tmp_path: Path, column: list[float], words: str) -> None:
    with h5py.File(tmp_path / "galaxies.hdf5", "w") as file:
        file.update({"RA": [0.0, 1.0], "DEC": [0.0, 1.0], "Z": column})
    with pytest.raises(ValueError, match=f"galaxies.hdf5: has {words}"):
        redraw(tmp_path)


def test_a_movie_has_a_frame_for_each_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng, slices = np.random.default_rng(0), Slices(thickness=4.0)
    manifest.create(tmp_path, {}, [f"density_z{z}.npz" for z in ("0.000", "1.000", "2.000")])
    (tmp_path / "density_z3.000.npz").touch()  # somebody else's
    with pytest.raises(ValueError, match=r"DIR=.* has 0 density slices; set more output.redshifts"):
        write_movie(tmp_path)
    for z in (1.0, 0.0):
        values = {"z": z, "density": rng.lognormal(size=(8, 8)), "sides": [10.0, 10.0], "thickness": 4.0}
        slices.write(tmp_path, z, {name: np.asarray(value) for name, value in values.items()})
    with Image.open(write_movie(tmp_path, fps=4)) as movie:
        assert (movie.n_frames, movie.info["duration"]) == (2, 250)
        first = np.asarray(movie.convert("RGB"), float)
        movie.seek(1)
        assert np.abs(np.asarray(movie.convert("RGB"), float) - first).mean() > 1
    monkeypatch.setattr("PIL.Image.Image.save", lambda *_, **__: os.write(os.open("/dev/full", os.O_WRONLY), b"0"))
    with pytest.raises(OSError, match=r"No space left on device: .*movie.gif'"):
        write_movie(tmp_path)
    monkeypatch.setattr("matplotlib.animation.writers.is_available", lambda name: False)
    with pytest.raises(ValueError, match=r"--output=.*movie.mp4' needs ffmpeg"):
        write_movie(tmp_path, tmp_path / "movie.mp4")
    with pytest.raises(ValueError, match=r"--output=.*no/movie.gif' is in a folder that does not exist"):
        write_movie(tmp_path, tmp_path / "no" / "movie.gif")
    for photo in (tmp_path / "photo.gif", tmp_path / "photo.png"):
        photo.write_bytes(b"GIF89a of one frame")
        with pytest.raises(ValueError, match=r"--output=.*photo.*' is a file of another kind; use another name"):
            write_movie(tmp_path, photo)
        photo.unlink()
    files = {"density_z0.000.npz", "density_z1.000.npz", "density_z3.000.npz", "movie.gif", "manifest.json"}
    assert {path.name for path in tmp_path.iterdir()} == files


def test_tick_labels_of_a_corner_plot_lie_apart():
    rng = np.random.default_rng(0)
    draws = {name: mean + 0.0123 * rng.standard_normal((2, 300)) for name, mean in (("sigma8", 0.8), ("b1", 1.2345))}
    figure = plot.corner(draws)
    figure.draw_without_rendering()
    labels = [[label.get_window_extent() for label in axes.get_xticklabels()] for axes in figure.axes[2:]]
    assert all(len(row) >= 2 for row in labels)
    boxes = [box for row in labels for box in row]
    assert all(right.x0 > left.x1 + 2 for left, right in zip(boxes[:-1], boxes[1:], strict=True))
