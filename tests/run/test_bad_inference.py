"""Settings and data of inferences that are wrong or odd: named before any work."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest
from inferences import LENSING, SMALL, plan_of

import pmwd_dist as pmd
from pmwd_dist.run.common.fingerprint import differences, identity
from pmwd_dist.run.common.folder import prepare_folder
from pmwd_dist.run.inference.inputs import draw_mock
from pmwd_dist.run.settings import SettingsError

pytestmark = pytest.mark.usefixtures("no_memory")


def normal(name: str, mean: float, sd: float, limits: str = "") -> str:
    return f'priors.{name}={{ kind = "normal", mean = {mean}, sd = {sd}{limits} }}'


def uniform(name: str, low: float, high: float) -> str:
    return f'priors.{name}={{ kind = "uniform", low = {low}, high = {high} }}'


WRONG = {
    "likelihood.nbar: missing; add for example": ["likelihood.kind=poisson"],
    "likelihood.nbar: is of a poisson likelihood": ["likelihood.nbar=2.0"],
    'must be "gaussian", "poisson" or "lensing"; for example "gaussian"': ["likelihood.kind=gauss"],
    'data.selection: is of counts; use likelihood.kind = "poisson"': ["data.selection=a.npy"],
    "likelihood.dispersion: is of a poisson likelihood; leave it out": ["likelihood.dispersion=0.1"],
    "likelihood.slope: is fixed, and has a prior; leave one of them out": [
        "likelihood.slope=1.0",
        'priors.slope={ kind = "normal", mean = 0.0, sd = 1.0 }',
    ],
    "likelihood.noise_k2: needs the same noise in all cells": ["likelihood.noise_k2=5.0", "likelihood.slope=1.0"],
    "data.bins: needs likelihood.kind = .poisson. with priors.nbar": ["data.bins=a.npy"],
    "data.templates: needs a prior of their amplitudes; add priors.template": ['data.templates=["a.npy"]'],
    "data.templates: holds a file twice": [
        'data.templates=["a.npy", "a.npy"]',
        'priors.template={ kind = "normal", mean = 0.0, sd = 1.0 }',
    ],
    "priors.template: is of data.templates": ['priors.template={ kind = "normal", mean = 0.0, sd = 1.0 }'],
    'model.window = "nearest": is of particles as galaxies; use bias = "lagrangian"': ["model.window=nearest"],
    'has low = 3.0, which must be less than high=2.0; for example { kind = "uniform"': [uniform("b1", 3.0, 2.0)],
    'of kind "normal" needs mean and sd, and may have low and high': ['priors.b1={ kind = "normal", mean = 3.0 }'],
    r"priors.sigma9 = { kind = .normal. }: unknown key; did you mean priors.sigma": ["priors.sigma9.kind=normal"],
    "priors.b1 = 1.5: must be a table with a kind; for example { kind =": ["priors.b1=1.5"],
    "priors.b1: the prior { kind = .* } excludes the truth, 1.8; change one of them": [uniform("b1", 2.0, 3.0)],
    'priors.b2: has no effect with model.bias = "eulerian"': [normal("b2", 0.0, 1.0)],
    'model.smoothing: has no effect with model.bias = "eulerian"; leave it out': ["model.smoothing=4"],
    "data.truth.b2: has no prior": ["data.truth={ b2 = 1.0 }"],
    "sampler.steps = 37: must be a multiple of thin \\* chunk = 12": ["sampler.steps=37"],
    "sampler.energy_variance: is a target of mclmc, and hmc is tuned for its acceptance": ["sampler.method=hmc"],
    "sampler.stepz = 3: unknown key; did you mean sampler.steps?": ["sampler.stepz=3"],
    'start.begin = "wiener": linear theory has none with box.particles other than box.mesh; use begin = "prior"': [
        "start.begin=wiener",
        "model.gravity=lpt",
        "box.mesh=8",
        "box.particles=4",
    ],
    "likelihood.sigma = 0: must be a number greater than 0, or name a file": ["likelihood.sigma=0"],
    "likelihood.sigma = 1e-30: must be positive and finite, from 1e-15 to 1e15": ["likelihood.sigma=1e-30"],
    "likelihood.small_scale_noise: needs k_max, and data.mask, a file of sigma or a slope": [
        "likelihood.small_scale_noise=3.0",
        "likelihood.k_max=0.3",
    ],
    r"likelihood.k_max = 0.1: leaves no mode of a .* use more than 0.1047 h/Mpc": ["likelihood.k_max=0.1"],
    "priors.b1 = .* has a wrong mean: must be 0, or of a size from": ['priors.b1={kind="normal",mean=1e30,sd=1.0}'],
    r"likelihood.k_max = 3.0: is beyond the Nyquist wavenumber, 0.2\d* h/Mpc; leave it out": ["likelihood.k_max=3.0"],
    "likelihood.slope = -50: must be -1 or more": ["likelihood.slope=-50"],
    "likelihood.dispersion = 1e\\+30: must be 100 or less": ["likelihood.dispersion=1e30"],
    r"likelihood.noise_k2 = -20.0: has noise of negative power at .* use more than": ["likelihood.noise_k2=-20.0"],
    r"priors.h = { .* }: has a median that is not positive; bound it from below": [
        uniform("h", -1.0, -0.5),
        "data.truth={ h = -0.7 }",
    ],
    r"priors.m_nu = { .* }: allows -0.14, and m_nu is not negative; bound it": [normal("m_nu", 0.06, 0.1)],
    r"priors.n_eff = { .* }: allows 5.909, within two .* n_eff of 2 to 5, and here it is 5.91; bound it": [
        uniform("n_eff", 2.0, 6.0),
        "data.truth={ n_eff = 3.0 }",
    ],
    r"priors.b1 = { .* }: has 1.8, 1.8, 1.8 as its median and two deviations from it": [normal("b1", 1.8, 1e-18)],
    "priors.sigma8: follows from A_s; leave one of them out": [
        "cosmology.A_s=2e-9",
        normal("sigma8", 0.8, 0.1, ", low = 0.2"),
    ],
    "priors.w0: has no effect beside cosmology.w_table; leave it out": [
        "cosmology.w_table=[[0.5, -0.9], [1.0, -1.0]]",
        normal("w0", -1.0, 0.1, ", high = -0.1"),
    ],
    "cosmology.f_nl: of an inference, needs a prior": ["cosmology.f_nl=10.0"],
    'model.bias = "lagrangian": is of particles': ["model.bias=lagrangian"],
    r"\[output\]: unknown section; use box, time, .*, data, model": ["output.redshifts=0"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_are_named(message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_of(tmp_path / "run", *WRONG[message])


@pytest.mark.parametrize("normalise", [True, False])
def test_a_table_has_sigma8_where_it_is_normalised(normalise: bool, tmp_path: Path) -> None:
    cosmo = jax_cosmo.Planck15(sigma8=0.8159)
    k = np.geomspace(1e-5, 50, 1000)
    np.savetxt(tmp_path / "table.txt", np.stack([k, 3 * np.asarray(pmd.linear_power(k, cosmo))], 1))
    prior = normal("sigma8", 0.8, 0.1, ", low = 0.2")
    given = ["cosmology.linear_power=table.txt", f"cosmology.normalise={str(normalise).lower()}", prior]
    if not normalise:
        with pytest.raises(SettingsError, match=r"priors.sigma8: would not .*; use cosmology.normalise = true, or"):
            plan_of(tmp_path / "run", *given)
        return
    noise = np.random.default_rng(0).standard_normal((4, 4, 4))
    parameters = {"b1": jnp.asarray(1.0), "sigma8": jnp.asarray(0.7)}
    models = (plan_of(tmp_path / "run", *overrides).model for overrides in (given, [prior]))
    with_table, without = (model.forward(noise, parameters) for model in models)
    np.testing.assert_allclose(with_table, without, rtol=1e-3)


@pytest.mark.slow
def test_the_shape_of_the_power_and_its_skewness_are_sampled(tmp_path: Path) -> None:
    priors = {"n_s": (0.96, 0.02), "h": (0.68, 0.03), "A_s": (2.1e-9, 1e-10), "f_nl": (100.0, 50.0)}
    given = [normal(name, *values) for name, values in priors.items()]
    model = plan_of(tmp_path / "run", "cosmology.linear_power=boltzmann", "cosmology.A_s=2.1e-9", *given).model
    noise = np.random.default_rng(0).standard_normal((4, 4, 4))

    @jax.jit
    @jax.value_and_grad
    def total(parameters: Any) -> Any:
        return jnp.sum(model.forward(noise, {"b1": jnp.asarray(1.0), **parameters}) ** 2)

    start = {name: jnp.asarray(mean) for name, (mean, _) in priors.items()}
    for name, slope in total(start)[1].items():
        step = 1e-3 * start[name]
        ends = [total(start | {name: start[name] + sign * step})[0] for sign in (1, -1)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-4)


ODD: dict[str, tuple[Any, ...]] = {
    "data.file: the data are 2 everywhere: nothing is known": (np.full((4, 4, 4), 2.0),),
    "data.file: the data have a mean of about 0, as of a contrast": (np.indices((4, 4, 4))[0] - 1.5,),
    "data.file: the data have a mean of 31.5; densities are in units of the mean": (np.arange(64.0).reshape(4, 4, 4),),
    "a mean of 31.5; densities are in units of the mean\ntemplate template_0: changes predictions by 1.* times": (
        *(np.arange(64.0).reshape(4, 4, 4), 'data.templates=["file.npy"]'),
        'priors.template={ kind = "normal", mean = 0.0, sd = 0.2 }',
    ),
    "have a mean of 31.5 galaxies in a cell, and nbar and the selection expect 2": (
        np.arange(64.0).reshape(4, 4, 4),
        "poisson",
    ),
    "priors.sigma8: 0 is within two deviations of its median; bound it": (None, normal("sigma8", 0.8, 0.5)),
    r"priors.wa: at 1.2, .* w0 \+ wa = 0.2 must be less than 0, or dark energy": (None, normal("wa", 0.0, 0.6)),
    "priors.omega_b: the density of cold dark matter stays, and omega_m moves": (None, normal("omega_b", 0.05, 0.002)),
    r"priors.h: at 1.1, .* Omega_m h\^2 = 0.372 is outside of 0.05 to 0.35, the": (None, normal("h", 0.9, 0.1)),
    "priors.sigma8: at 0.91, .* sigma8 = 0.91 is outside of 0.734 to 0.897, the training of": (
        *(None, "model.gravity=nbody", "box.size=16", "time.lpt_order=3", "force.correction=auto"),
        normal("sigma8", 0.83, 0.04),
    ),
    r"observe.light_cone.edges: shells of 0 to 20 Mpc/h leave out \d+% of the lensing weight": (
        *(None, "lensing", "observe.light_cone.edges=[0, 20]", "observe.light_cone.sources=0.02"),
        "likelihood.density=10",
    ),
    "priors.omega_m: at 0.50\\d\\d, .* the run does not span the light cone": (
        *(None, "lensing", "observe.light_cone.sources=[0.02, 0.11]", "observe.light_cone.field=80"),
        normal("omega_m", 0.3, 0.1, ", low = 0.16"),
    ),
}


@pytest.mark.parametrize("messages", ODD)
def test_what_is_odd_is_warned_of_before_any_work(messages: str, tmp_path: Path) -> None:
    values, *overrides = ODD[messages]
    texts = {"poisson": SMALL.replace("sigma = 0.5", 'kind = "poisson"\nnbar = 2.0'), "lensing": LENSING}
    chosen = next((texts[name] for name in overrides if name in texts), SMALL)
    overrides = [text for text in overrides if text not in texts]
    if values is not None:
        put(tmp_path, "file", values)
        overrides = [*overrides, "data.file=file.npy"]
    warnings = [x for x in plan_of(tmp_path / "run", *overrides, text=chosen).check() if "checks.ess" not in x]
    for message, warning in zip(messages.splitlines(), warnings, strict=True):
        assert re.search(message, warning)


def test_data_of_a_run_of_another_model_are_told(tmp_path: Path) -> None:
    seen = np.linspace(0.2, 0.8, 4)[:, None, None] * np.ones((4, 4, 4))
    np.save(tmp_path / "selection.npy", seen)
    np.save(tmp_path / "transposed.npy", seen.T)
    np.save(tmp_path / "mask.npy", np.indices((4, 4, 4))[1] > 0)
    np.save(tmp_path / "bins.npy", np.indices((4, 4, 4))[0])
    with h5py.File(tmp_path / "counts.hdf5", "w") as file:
        file["counts"] = np.random.default_rng(0).poisson(4 * seen) * np.load(tmp_path / "mask.npy")
        file["selection"] = seen * np.load(tmp_path / "mask.npy")
        file.attrs.update({"box_size": (20.0, 20.0, 20.0), "units": "Mpc/h", "z": 0.5})
        file.attrs.update({"line_of_sight": "x", "smoothing": 4.0})
        file["counts"].attrs["window"] = "cloud-in-cell"

    def told(*overrides: str) -> str:
        text = SMALL.replace("sigma = 0.5", 'kind = "poisson"')
        plan = plan_of(tmp_path / "run", "data.file=counts.hdf5:/counts", "model.gravity=lpt", *overrides, text=text)
        return "\n".join(x for x in plan.check() if "data.file" in x)

    same = ["box.size=20", f"time.a_stop={1 / 1.5}", "model.bias=lagrangian", "model.line_of_sight=x"]
    free, same = [*same, "model.smoothing=4", *FREE], [*same, "model.smoothing=4", "likelihood.nbar=4"]
    both = [*same, "data.selection=selection.npy", "data.mask=mask.npy"]
    assert told(*both) == told(*same, "data.selection=counts.hdf5:/selection") == ""
    assert told(*free, "data.mask=mask.npy", "data.bins=bins.npy") == ""
    for options in same, (*free, "data.bins=bins.npy"):
        unseen = told(*options, "data.selection=selection.npy")
        assert (
            "the data see nothing in 25 % of the cells, in which the model has galaxies; use data.selection" in unseen
        )
    for selection in (), ("data.selection=transposed.npy",):
        other = told(*same, "data.mask=mask.npy", *selection)
        assert "the data have another selection than the model, by" in other
    gaussian = told(*same[:-1], "data.mask=mask.npy", "likelihood.kind=gaussian", "likelihood.sigma=2")
    assert 'by 40 % in the mean; use likelihood.kind = "poisson", and data.selection = ' in gaussian
    with h5py.File(tmp_path / "counts.hdf5", "r+") as file:
        file["contrast"] = np.random.default_rng(0).normal(1, 0.1, (4, 4, 4))  # of a user
    derived = ("data.file=counts.hdf5:/contrast", "likelihood.kind=gaussian", "likelihood.sigma=2")
    assert told(*same[:-1], "data.mask=mask.npy", *derived) == ""
    with h5py.File(tmp_path / "counts.hdf5", "r+") as file:
        del file["selection"]
    assert "by 40 % in the mean; leave data.selection out" in told(*both)
    with h5py.File(tmp_path / "counts.hdf5", "r+") as file:
        file["selection"] = np.ones((8, 8, 8))  # of finer counts
    assert told(*both) == ""
    smoothed = told(*both, "model.smoothing=8")
    assert smoothed == "warning: data.file: the data have the smoothing 4, and the model has 8 (model.smoothing)"
    of_run = ["model.light_cone=true", "model.bias=lagrangian", "time.a_start=0.5", "time.a_stop=1"]
    cone = told("box.size=20", "model.gravity=nbody", *of_run, *FREE)
    assert "the data have the z 0.5, and the model has a light cone (model.light_cone)" in cone
    linear = told("box.size=20", f"time.a_stop={1 / 1.5}", "model.gravity=linear", *FREE)
    assert 'the data have the window cloud-in-cell, and model.gravity = "linear" has none; use "lpt"' in linear
    assert "the data have the line_of_sight x, and the model has none (model.line_of_sight)" in linear
    other = told("box.size=[20, 20, 40]", "time.a_stop=1", "model.window=nearest", "model.bias=lagrangian", *FREE)
    assert "the data have the box_size 20, 20, 20, and the model has 20, 20, 40 (box.size)" in other
    assert "the data have the z 0.5, and the model has 0 (time.a_stop)" in other
    assert "the data have the window cloud-in-cell, and the model has nearest (model.window)" in other


def test_maps_of_another_light_cone_are_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "cone.hdf5", "w") as file:
        file["convergence"] = np.random.default_rng(0).normal(0, 0.01, (2, 4, 4))
        file.attrs.update({"box_size": (20.0,) * 3, "units": "edges, box_size: Mpc/h", "sources": (0.02, 0.05)})
        file.attrs["edges"] = 0.0, 118.82
    plan = plan_of(tmp_path / "run", "data.file=cone.hdf5:/convergence", "box.size=20", text=LENSING)
    (told,) = [x for x in plan.check() if "data.file" in x]
    assert "the data have the sources 0.02, 0.05, and the model has 0.02, 0.04 (observe.light_cone.sources)" in told


def test_maps_of_other_bins_are_told(tmp_path: Path) -> None:
    z = np.array([0.01, 0.02, 0.03])
    with h5py.File(tmp_path / "cone.hdf5", "w") as file:
        file["convergence"] = np.random.default_rng(0).normal(0, 0.01, (1, 4, 4))
        file.attrs.update({"box_size": (20.0,) * 3, "units": "edges, box_size: Mpc/h", "sources": [0.02]})
        file.attrs.update({"n(z) of bin 1": np.stack((z, [0.0, 1.0, 0.0])), "field": 10.0, "shift": 1})
        file.attrs.update({"observer": (0.0, 0.0, 0.0), "line_of_sight": "z", "edges": (0.0, 40.0, 89.312)})

    def told(z: str, field: str = "") -> str:
        bins = f"bins = [{{ z = {z}, n = [0.0, 2.0, 0.0] }}]{field}"
        text = LENSING.replace("sources = [0.02, 0.04]", bins).replace("[10.0, 20.0]", "10.0")
        plan = plan_of(tmp_path / "run", "data.file=cone.hdf5:/convergence", "box.size=20", text=text)
        return "\n".join(x for x in plan.check() if "data.file: the data" in x)

    assert told("[0.01, 0.02, 0.03]") == ""
    assert re.search(r"sources 0.02, and the model has 0.03 \(observe.light_cone.bins\)", told("[0.02, 0.03, 0.04]"))
    assert re.search(r"widths of n\(z\) 0.00\d+, and the model has 0.00\d+ \(", told("[0.015, 0.02, 0.025]"))
    assert "the data have the field 10, and the model has 8 (obs" in told("[0.01, 0.02, 0.03]", "\nfield = 8.0")
    other = told("[0.01, 0.02, 0.03]", '\nline_of_sight = "x"')
    assert "the data have the line_of_sight z, and the model has x (observe.light_cone.line_of_sight)" in other
    assert "the data have the shift 1, and the model has 0 (obs" in told("[0.01, 0.02, 0.03]", "\nshift = false")
    assert "the data have the observer 0, 0, 0, and the model has 0, 0, 4 (obs" in told(
        "[0.01, 0.02, 0.03]", "\nobserver = [0.0, 0.0, 4.0]"
    )


@pytest.mark.parametrize("sky", ['sky = "sphere"\nnside = 2', "rays = 4\npixels = 4"])
def test_the_rays_of_a_model_are_those_of_runs_of_any_seed(tmp_path: Path, sky: str) -> None:
    """Data of a run with one seed are those of a model with another."""
    text = LENSING.replace("rays = 4\npixels = 4", sky)
    one, other = [plan_of(tmp_path / "run", f"noise.seed={seed}", text=text).model.forward for seed in (1, 2)]
    np.testing.assert_array_equal(one.offsets, other.offsets)
    assert one.cone == other.cone
    assert one.cone.seed is not None if "sphere" in sky else np.ptp(one.offsets) > 0


def put(folder: Path, name: str, values: Any) -> None:
    np.save(folder / f"{name}.npy", values)


def broken(value: float) -> np.ndarray:
    values = np.ones((4, 4, 4))
    values[1, 2, 3] = value
    return values


FREE = ['priors.nbar={ kind = "lognormal", median = 2.0, sd = 0.3 }']
AMPLITUDE = 'priors.template={ kind = "normal", mean = 0.0, sd = 0.2 }'


@pytest.mark.parametrize(
    ("arrays", "overrides", "message"),
    [
        ({"file": broken(np.nan)}, [], r"data.file = .*: holds 1 values that are no .*, or too large, the first at"),
        ({"file": np.ones((4, 4, 8))}, [], r"has the shape \[4, 4, 8\], and box.mesh is \[4, 4, 4\]"),
        ({"file": broken(-1)}, ["likelihood.kind=poisson"], "holds -1, which is no number of galaxies"),
        ({"mask": np.zeros((4, 4, 4))}, [], "data.mask = .*: hides every cell"),
        ({"selection": np.zeros((4, 4, 4))}, ["likelihood.kind=poisson"], "data.selection = .*: is 0 in every cell"),
        ({"mask": broken(0.5)}, [], "data.mask = .*: must hold only 0 and 1"),
        ({"bins": broken(2)}, ["likelihood.kind=poisson", *FREE], r"data.bins = .*: hold 1, 2 where there are data"),
        ({"templates": broken(np.nan)}, [AMPLITUDE], r"data.templates = \[.*\]: must be finite, a number or a field"),
        ({"templates": np.ones((4, 4, 8))}, [AMPLITUDE], r"data.templates = .*: has the shape \[4, 4, 8\], and"),
        ({"sigma": broken(0)}, [], 'likelihood.sigma = ".*sigma.npy": must be positive and finite'),
        ({"sigma": np.ones((4, 4, 8))}, [], r"likelihood.sigma = .*: has the shape \[4, 4, 8\], and box.mesh"),
        ({"file": np.array(["a"])}, [], "holds <U1, no real numbers"),
        ({}, ["data.file=missing.npy"], 'data.file = .*missing.npy": no such file'),
        ({}, ["data.file=counts.h5:/d"], "data.file = .*counts.h5"),
        ({}, ["data.file=counts.txt"], "must end with .npy, or name a data set"),
    ],
)
def test_wrong_data_are_named(arrays: dict[str, Any], overrides: list[str], message: str, tmp_path: Path) -> None:
    for name, values in arrays.items():
        put(tmp_path, name, values)
        overrides = [*overrides, f"{'likelihood' if name == 'sigma' else 'data'}.{name}={name}.npy"]
    number = "" if FREE[0] in overrides else "nbar = 2.0"
    counts = SMALL.replace("sigma = 0.5", number) if "likelihood.kind=poisson" in overrides else SMALL
    with pytest.raises(SettingsError, match=message):
        plan_of(tmp_path / "run", *overrides, text=counts)


@pytest.mark.parametrize("key", ["file", "mask"])
def test_the_shape_of_maps_is_compared_before_they_are_read(key: str, tmp_path: Path) -> None:
    put(tmp_path, key, np.full((3, 4, 4), np.nan))
    with pytest.raises(SettingsError, match=r"has the shape \[3, 4, 4\], and that of the maps is \[\d, \d+, \d+\]"):
        plan_of(tmp_path / "run", f"data.{key}={key}.npy", text=LENSING)


@pytest.mark.parametrize("name", ["report.html", "summary.csv", "traces.png", "chunk_00000.npz"])
def test_files_of_others_stay_where_a_verdict_would_be_written(name: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run")
    prepare_folder(plan)
    (plan.folder / name).write_text("mine")
    with pytest.raises(FileExistsError, match="is in the way, and not a file of this run"):
        prepare_folder(plan, overwrite=True)
    assert (plan.folder / "config.toml").exists()
    assert (plan.folder / name).read_text() == "mine"


def test_maxima_without_optax_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(SettingsError, match=r"start.begin = \"map\": needs optax; `pip install '\.\[infer\]'`"):
        plan_of(tmp_path / "run", "start.begin=map")


def test_a_table_is_named_with_its_sigma8(tmp_path: Path) -> None:
    k = np.geomspace(1e-4, 100, 256)
    power = 1e4 * k / (1 + k**4)
    np.savetxt(tmp_path / "p.txt", np.stack([k, power, k, k], 1))
    plan = plan_of(tmp_path / "run", f"cosmology.linear_power={tmp_path / 'p.txt'}")
    fine = np.geomspace(1e-4, 100, 100_000)
    window = 3 * (np.sin(8 * fine) - 8 * fine * np.cos(8 * fine)) / (8 * fine) ** 3
    variance = np.trapezoid(1e4 * fine / (1 + fine**4) * (window * fine) ** 2, fine) / (2 * np.pi**2)
    (line,) = (line for line in plan.lines() if line.startswith("cosmology"))
    text, _, sigma8 = line.partition(", sigma8 = ")
    assert text.endswith("p.txt")
    assert float(sigma8) == pytest.approx(variance**0.5, rel=1e-3)


def test_bins_and_templates_have_a_parameter_each(tmp_path: Path) -> None:
    put(tmp_path, "bins", np.indices((4, 4, 4))[0] // 2)
    for name in "ab":
        put(tmp_path, name, np.random.default_rng(0).uniform(-1, 1, (4, 4, 4)))
    counts = SMALL.replace("sigma = 0.5", 'kind = "poisson"')
    given = ["data.bins=bins.npy", 'data.templates=["a.npy", "b.npy"]', "data.truth={ nbar = 3.0 }", *FREE, AMPLITUDE]
    plan = plan_of(tmp_path / "run", *given, text=counts)
    names = ("nbar_0", "nbar_1", "template_0", "template_1")
    assert set(plan.model.priors) == {"b1", *names} and set(plan.model.likelihood.names) == set(names)
    truth = draw_mock(plan, [].append)
    assert truth["parameters/nbar_0"] == truth["parameters/nbar_1"] == pytest.approx(3)
    assert truth["parameters/template_0"] != truth["parameters/template_1"]
    settings = plan.settings.priors
    assert settings.distribution("nbar_1") == plan.model.priors["nbar_1"] and settings.distribution("b1").mean == 1.5
    first = identity(plan)
    put(tmp_path, "b", np.ones((4, 4, 4)))
    changed = differences(first, identity(plan_of(tmp_path / "run", *given, text=counts)), "the run")
    assert [line.partition(" = ")[0] for line in changed] == ["data.templates"]


def test_noise_of_each_cell_is_read_and_part_of_what_a_run_is(tmp_path: Path) -> None:
    sigma = np.random.default_rng(0).uniform(0.3, 0.6, (4, 4, 4))
    with h5py.File(tmp_path / "noise.h5", "w") as file:
        file["sigma"] = sigma
    plan = plan_of(tmp_path / "run", "likelihood.sigma=noise.h5:/sigma")
    np.testing.assert_allclose(plan.model.likelihood.sigma, sigma)
    assert any("noise.h5:/sigma" in line for line in plan.lines())
    slope = 'priors.slope={ kind = "normal", mean = 0.5, sd = 0.3 }'
    numbers = "likelihood.k_max=0.2", "likelihood.small_scale_noise=3.0", slope
    likelihood: Any = plan_of(tmp_path / "run", "likelihood.sigma=noise.h5:/sigma", *numbers).model.likelihood
    assert (likelihood.k_max, likelihood.small_scale_noise, likelihood.slope) == (0.2, 3.0, "slope")
    first = identity(plan)
    with h5py.File(tmp_path / "noise.h5", "r+") as file:
        file["sigma"][1, 2, 3] *= 1.1
    changed = differences(first, identity(plan_of(tmp_path / "run", "likelihood.sigma=noise.h5:/sigma")), "the run")
    assert [line.partition(" = ")[0] for line in changed] == ["likelihood.sigma"]


def test_data_are_read_and_odd_ones_warned_of(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "survey.h5", "w") as file:
        file["galaxies/contrast"] = np.indices((4, 4, 4))[0] - 1.5
        file["mask"] = broken(0) > 0
    plan = plan_of(tmp_path / "run", "data.file=survey.h5:/galaxies/contrast", "data.mask=survey.h5:/mask")
    assert plan.model.likelihood.mask.sum() == 63
    warnings = plan.check()
    assert any("the data have a mean of about 0, as of a contrast" in text for text in warnings)
    assert any("fewer draws than checks.ess = 400" in text for text in warnings)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["sampler.chain_devices=8"], "sampler.chain_devices = 8: needs 8 devices, and there are 4; use 2 or 4"),
        (
            ["sampler.chain_devices=1", "sampler.chains=6"],
            "sampler.chain_devices = 1: makes 4 groups of 4 devices, and sampler.chains = 6 is no multiple of that; "
            "use 2 or 4, or sampler.chains = 4 or 8",
        ),
        (
            ["sampler.chain_devices=2", "sampler.chains=1"],
            "sampler.chain_devices = 2: makes 2 groups of 4 devices, and sampler.chains = 1 is no multiple of that; "
            "use 4, or sampler.chains = 2",
        ),
        (
            ["sampler.chain_devices=2", "devices.pdims=[2, 2]"],
            "devices.pdims = [2, 2]: takes 4 devices, and sampler.chain_devices is 2; use [2, 1], or leave it out",
        ),
        (["sampler.chain_devices=0"], "sampler.chain_devices = 0: must be 1 or more; for example 1"),
    ],
)
def test_devices_of_a_chain_that_do_not_divide_are_named(overrides: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        plan_of(tmp_path / "run", *overrides, text=SMALL.replace("pdims = [1, 1]\n", ""))
    assert str(caught.value) == problem


def test_all_devices_for_a_chain_are_one_group(tmp_path: Path) -> None:
    """What one batch does, of third order, too."""
    text = SMALL.replace("pdims = [1, 1]\n", "")
    model = "model.gravity=lpt", "time.lpt_order=3"
    plan = plan_of(tmp_path / "run", "sampler.chain_devices=4", *model, text=text)
    assert plan.chain_axis is None
    other = plan_of(tmp_path / "run", *model, text=text)
    assert plan.simulation.config == other.simulation.config
    assert identity(plan) == identity(other)


def test_data_of_smaller_scales_than_particles_resolve_are_warned_of(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(1, 0.5, (4,) * 3))
    lpt = 'model.gravity="lpt"', "time.lpt_order=2"
    plan = plan_of(tmp_path / "run", *lpt, "data.file=data.npy")
    (warning,) = (text for text in plan.check() if "compares up to k = 0.21 h/Mpc, and the model has conv" in text)
    assert warning.endswith("repeat with finer box.particles and box.mesh, or a smaller likelihood.k_max")
    np.save(tmp_path / "counts.npy", np.full((4,) * 3, 2))
    poisson = SMALL.replace("sigma = 0.5", 'kind = "poisson"\nnbar = 2.0')
    counts = plan_of(tmp_path / "run", *lpt, "data.file=counts.npy", text=poisson)
    assert any(text.endswith("repeat with finer box.particles and box.mesh") for text in counts.check())
    assert any(line.startswith("resolution  particles 15 Mpc/h apart, Nyq") for line in plan.lines())
    for better in (["box.particles=8", "data.file=data.npy"], []):  # a mock is one of this very lattice
        assert not any("converged" in text for text in plan_of(tmp_path / "run", *lpt, *better).check())
