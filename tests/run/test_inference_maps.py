"""Inferences from maps of weak lensing by a config file, and their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inferences import LENSING, SMALL, plan_of

from pmwd_dist import infer
from pmwd_dist.infer.cosmological import CosmologicalModel
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.folder import Log, prepare_folder
from pmwd_dist.run.inference.inputs import draw_mock
from pmwd_dist.run.inference.verdict import make_verdict
from pmwd_dist.run.settings import SettingsError

pytestmark = pytest.mark.slow
_MODEL = 'gravity = "linear"\nbias = "eulerian"\nb1 = 1.8'
CONE = (
    SMALL.replace(_MODEL, "light_cone = true\nobserver = [30, 10, 30]\nb1 = 0.5")
    .replace("a_stop = 0.5", "a_start = 0.9\nsteps = 1\nlpt_order = 1")
    .replace("sigma = 0.5", 'kind = "poisson"\nnbar = 5.0')
)


def unexpected(event: Any) -> None:
    """Fail at a warning of a verdict, such as one of a missing figure."""
    pytest.fail(str(event))


class Flat(CosmologicalModel):
    """Maps of zero for the noise of another forward model."""

    sources: ClassVar = (0.02, 0.04)
    field: ClassVar = 8.0

    @property
    def layout(self) -> Any:
        return (2, 4, 4), super().layout[1]

    def __call__(self, noise: Any, parameters: Any) -> Any:
        del parameters
        return jnp.zeros((2, 4, 4)) + 0 * jnp.mean(noise)


@pytest.mark.usefixtures("no_pictures")
def test_maps_of_a_simulation_on_a_finer_mesh_have_no_spectra(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run", "box.mesh=8", "box.particles=4", text=LENSING)
    prepare_folder(plan)
    simulation = plan.simulation
    flat = Flat(simulation.config, simulation.cosmo)
    plain = infer.Model(simulation.config, flat, {}, plan.model.likelihood)
    ones, zeros = np.ones((2, 4)), np.zeros((4, 4, 4))
    chain = infer.Chain({}, ones, ones, ones, ones, 16, 0, zeros, zeros, np.zeros((1, 2, 4, 4, 4)))
    data = {"data": 0.1 * np.random.default_rng(0).standard_normal((2, 4, 4))}
    judged = make_verdict(plan, plain.condition(data["data"]), chain, data, Log(plan.folder, unexpected))
    assert "maps.png" in judged.files
    assert "fields.png" not in judged.files


@pytest.mark.usefixtures("no_checks")  # the test above has them
def test_maps_of_lensing_are_data(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run", text=LENSING)
    assert np.allclose(plan.model.likelihood.sigma[0] / plan.model.likelihood.sigma[1], np.sqrt(2))
    prepare_folder(plan)
    rng = np.random.default_rng(0)
    draws = {"sigma8": np.full((2, 4), 0.8)}
    zeros, noise = np.zeros((4, 4, 4)), rng.standard_normal((1, 2, 4, 4, 4))
    still = np.zeros((2, 4))
    chain = infer.Chain(draws, rng.standard_normal((2, 4)), still, still, still + 1, 16, 0, zeros, zeros, noise)
    data = {"data": 0.1 * rng.standard_normal((2, 4, 4)), "noise": noise[0, 0]}
    judged = make_verdict(plan, plan.model.condition(data["data"]), chain, data, Log(plan.folder, unexpected))
    assert set(judged.files) <= set(manifest.files(plan.folder))  # which may be written again after more steps
    assert {"maps.png", "angular.png", "fields.png", "slices.png"} <= set(judged.files)
    wrong = {
        "needs a section .observe.light_cone.": LENSING.partition("[observe")[0],
        "likelihood.density: missing; add for example": LENSING.replace("density = [10.0, 20.0]", ""),
        "light is bent by all matter": LENSING.replace('bias = "none"', 'bias = "lagrangian"'),
        "a light cone is filled during a run": LENSING.replace('bias = "none"', 'bias = "none"\ngravity = "lpt"'),
        'start.begin = "wiener": linear theory has none with likelihood.kind': LENSING.replace(
            'begin = "prior"', 'begin = "wiener"'
        ),
        "likelihood.k_max: is of a gaussian": LENSING.replace("density", "k_max = 0.1\ndensity"),
        "likelihood.density = .*must be a number, or one for each of 2 maps": LENSING.replace(
            "[10.0, 20.0]", "[1.0, 2.0, 3.0]"
        ),
        'is of likelihood.kind = "lensing"; leave it out': SMALL + "[observe.light_cone]\n",
        "likelihood.density: is of a lensing likelihood": SMALL.replace("sigma = 0.5", "sigma = 0.5\ndensity = 1.0"),
    }
    for message, text in wrong.items():
        with pytest.raises(SettingsError, match=message):
            plan_of(tmp_path / "run", text=text)


SHEAR = (
    LENSING.replace("sources = [0.02, 0.04]\n", "")
    .replace("density = [10.0, 20.0]", 'quantity = "shear"\n[data]\ncounts = "counts.npy"\nmask = "mask.npy"')
    .replace("[start]", 'delta_z = { kind = "normal", mean = [0.0, 0.1], sd = [1e-3, 2e-3] }\n[start]')
    .replace(
        "[start]", 'm = { kind = "normal", mean = 0, sd = 1 }\nA_IA = { kind = "uniform", low = -1, high = 1 }\n[start]'
    )
    + """
[[observe.light_cone.bins]]
z = [0.01, 0.02, 0.03]
n = [0.0, 1.0, 0.0]
[[observe.light_cone.bins]]
z = [0.01, 0.02, 0.04]
n = 1
"""
)


@pytest.mark.usefixtures("no_checks")
def test_shear_with_a_number_of_galaxies_in_each_pixel_is_data(tmp_path: Path) -> None:
    counts, mask = np.arange(32.0).reshape(2, 4, 4), np.ones((4, 4))
    mask[1, 1] = 0
    for name, values in {"counts": counts, "mask": mask}.items():
        np.save(tmp_path / f"{name}.npy", values)
    plan = plan_of(tmp_path / "run", text=SHEAR)
    model = plan.model
    there = np.broadcast_to((counts > 0)[:, None] & (mask > 0), (2, 2, 4, 4))
    np.testing.assert_array_equal(np.asarray(model.likelihood.mask) > 0, there)
    np.testing.assert_allclose(model.likelihood.sigma[:, 1, 0, 1:], 0.26 / np.sqrt(counts[:, 0, 1:]))
    shifts = {name: (prior.mean, prior.sd) for name, prior in model.priors.items() if name.startswith("delta_z")}
    assert shifts == {"delta_z_0": (0.0, 1e-3), "delta_z_1": (0.1, 2e-3)}
    assert {"m_0", "m_1", "A_IA"} <= model.priors.keys()
    prepare_folder(plan)
    drawn = draw_mock(plan)
    assert drawn["data"].shape == (2, 2, 4, 4)
    draws = {name: np.full((2, 4), float(np.asarray(prior.forward(0.0)))) for name, prior in model.priors.items()}
    still, noise = np.zeros((2, 4)), np.stack([drawn["noise"]] * 2)
    chain = infer.Chain(draws, still, still, still, still + 1, 16, 0, noise[0], noise[0], noise[None])
    judged = make_verdict(plan, model.condition(drawn["data"]), chain, drawn, Log(plan.folder, unexpected))
    assert {"maps.png", "angular.png"} <= set(judged.files)
    wrong = {
        "priors.A_IA: intrinsic alignments need n": SHEAR.partition("[[")[0],
        "priors.eta_IA: has no effect without A_IA": SHEAR.replace("A_IA", "eta_IA"),
        "priors.delta_z = .*: has lists; use one for each of 2 sources": SHEAR.replace("[0.0, 0.1]", "[0.0]").replace(
            "[1e-3, 2e-3]", "1"
        ),
        "priors.delta_z = .*: has lists of several lengths": SHEAR.replace("[1e-3, 2e-3]", "[1e-3]"),
        "priors.sigma8 = .*: has lists; use one number": SHEAR.replace("mean = 1.5", "mean = [1.5, 2.0]"),
        "likelihood.density: data.counts hold the galaxies": SHEAR.replace('quantity = "shear"', "density = 1.0"),
        "data.counts = .*: no such file": SHEAR.replace("counts.npy", "none.npy"),
        "data.counts: is of likelihood.kind": SMALL + '[data]\ncounts = "counts.npy"\n',
        "likelihood.ellipticity: is of likelihood.kind": SMALL.replace("sigma = 0.5", "sigma = 0.5\nellipticity = 0.3"),
        "likelihood.quantity: is of likelihood.kind": SMALL.replace("sigma = 0.5", 'sigma = 0.5\nquantity = "shear"'),
        "priors.m: is of likelihood.kind": SMALL.replace(
            "[start]", 'm = { kind = "normal", mean = 0, sd = 1 }\n[start]'
        ),
    }
    for message, text in wrong.items():
        with pytest.raises(SettingsError, match=message):
            plan_of(tmp_path / "wrong", text=text)


def test_galaxies_on_a_light_cone_are_data(tmp_path: Path) -> None:
    """A mock of counts, the log density and its slope for two chains at once, and rules on the keys."""
    plan = plan_of(tmp_path / "run", text=CONE)
    assert "galaxies on the light cone" in "".join(plan.lines())
    data = draw_mock(plan)["data"]
    assert (data == np.rint(data)).all() and 2.5 < data.mean() < 10
    posterior = plan.model.condition(data)
    positions = jax.vmap(lambda key: posterior.initial(key))(jax.random.split(jax.random.key(0), 2))
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(posterior.logdensity)))(positions)
    assert np.isfinite(values).all()
    assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves(slopes))
    wrong = {
        "model.light_cone: is of galaxies in a run": CONE.replace("light_cone", 'gravity = "lpt"\nlight_cone'),
        "model.line_of_sight: starts at the observer": CONE.replace('line_of_sight = "none"', ""),
        "model.observer: is of model.light_cone = true": CONE.replace("light_cone = true\n", ""),
        "model.observer = .* must lie in the box of 60": CONE.replace("[30, 10, 30]", "[30, 10, 70]"),
        "time.a_stop = 0.95: must be 1, where the observer is": CONE.replace("steps = 1", "steps = 1\na_stop = 0.95"),
    }
    for message, text in wrong.items():
        with pytest.raises(SettingsError, match=message):
            plan_of(tmp_path / "wrong", text=text)
