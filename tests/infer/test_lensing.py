"""Lensing maps as data: against the light cone's own convergence, NumPy, and differences of the log density."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax_cosmo
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from processes import mpirun

import pmwd_dist as pmd
from pmwd_dist import infer

EDGES, VIEW = (0.0, 80.0, 150.0), {"field": 20.0, "pixels": 4}
PRIORS = {"sigma8": infer.Normal(0.8, 0.1, low=0.1)}


def maps(decomposition: Any, sources: Any = (0.02, 0.05), **changes: Any) -> infer.Convergence:
    run = {"a_start": 0.9, "steps": 2, "halo": 3, "lpt_order": 1}
    config = pmd.Config(box_size=40.0, mesh_shape=8, decomposition=decomposition, **run)
    cone = pmd.observe.FlatSkyLightCone(config, EDGES, pixels=8, shell_assignment="linear")
    return infer.Convergence(config, jax_cosmo.Planck15(), cone, sources, **(VIEW | changes))


Z = np.linspace(0.005, 0.045, 17)
BINS = [(Z, np.sin(np.linspace(0, np.pi, 17)) ** 2), (Z, np.linspace(0, 1, 17))]
SYSTEMATICS = {"delta_z_0": 0.002, "delta_z_1": -0.001, "m_0": 0.1, "m_1": -0.2, "A_IA": 1.5, "eta_IA": 0.7}


def shear_of(cone: Any = None, **changes: Any) -> infer.Shear:
    flat = maps((1, 1))
    view = {} if cone is not None else VIEW | changes
    return infer.Shear(flat.config, jax_cosmo.Planck15(), cone or flat.cone, BINS, **view)


def posterior(forward: infer.Convergence) -> tuple[infer.Posterior, Any]:
    model = infer.Model(forward.config, forward, PRIORS, infer.ShapeNoise(forward, 1e-4, mask=np.eye(4)))
    position = model.draw(jax.random.key(0), sigma8=0.85)
    data = 0.01 * np.random.default_rng(1).standard_normal(forward.shape)
    return model.condition(data), position


@pytest.fixture(scope="module")
def one_device() -> tuple[infer.Posterior, Any]:
    """A posterior, and a position."""
    return posterior(maps((1, 1)))


@eqx.filter_jit
def program(posterior: infer.Posterior, position: Any) -> Any:
    """Maps, whether they are fine, and the log density."""
    return *posterior.model.predict(*posterior.from_latent(position)), posterior.logdensity(position)


@pytest.fixture(scope="module")
def seen(one_device: Any) -> tuple[Any, Any, Any]:
    """Maps at that position, whether they are fine, and its log density."""
    of_one, position = one_device
    return program(of_one, position)


def test_log_density_agrees_with_the_maps(one_device: Any, seen: Any) -> None:
    of_one, position = one_device
    forward = of_one.model.forward
    field, fine, logdensity = seen
    assert fine
    assert field.shape == forward.shape == (2, 4, 4)
    assert np.abs(field).max() > 0
    sigma = 0.26 / np.sqrt(1e-4 * (20 * 60 / 4) ** 2)  # 300 arcminutes a side
    chi2 = np.sum(((np.asarray(of_one.data) - field) / sigma)[:, np.eye(4, dtype=bool)] ** 2)
    noise, u = position["noise"], position["parameters"]["sigma8"]
    expected = -0.5 * (chi2 + np.sum(noise**2) + u**2)
    np.testing.assert_allclose(logdensity, expected, rtol=1e-12)


@pytest.mark.parametrize("sky", ["flat", pytest.param("sphere", marks=pytest.mark.slow)])
def test_systematics_change_shear_and_its_slopes(sky: str) -> None:
    """Values are those of shifted bins with alignments, slopes those of differences."""
    forward = shear_of()
    if sky == "sphere":
        forward = shear_of(pmd.observe.SphericalLightCone(forward.config, EDGES, 2, shell_assignment="linear"))
    rng, table = np.random.default_rng(3), pmd.growth_table(jax_cosmo.Planck15())
    mass = jax.numpy.asarray(rng.random((2, 8, 8) if sky == "flat" else (2, 48)))
    names, x = list(SYSTEMATICS), jax.numpy.array(list(SYSTEMATICS.values()))
    along = rng.standard_normal(len(names)) * 0.01

    @jax.jit
    def look(x: Any) -> Any:
        return jax.jvp(lambda x: forward._maps(mass, table, dict(zip(names, x, strict=True))), (x,), (along,))

    (found, slope), (high, _), (low, _) = (look(x + t * along) for t in (0, 1e-4, -1e-4))
    assert found.shape == forward.shape and set(names[:5]) <= set(forward.optional)
    np.testing.assert_allclose(slope, (high - low) / 2e-4, rtol=1e-6, atol=1e-9 * np.abs(slope).max())
    (z, one), (_, two) = BINS
    bins, view = [(z + 0.002, one), (z - 0.001, two)], VIEW if sky == "flat" else {}
    expected = pmd.observe.shear(mass, table, forward.cone, source=bins, alignment=(1.5, 0.7), **view)
    np.testing.assert_allclose(found[0], 1.1 * expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], 0.8 * expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shift", [-0.001, -0.004, 0.004])
def test_distributions_that_begin_at_no_redshift_are_cut_there(shift: float) -> None:
    z, n = np.linspace(0, 0.05, 17), np.linspace(1, 0.2, 17)
    kept = z + shift > 0
    of_cut = np.r_[0, z[kept] + shift], np.r_[np.interp(0, z + shift, n), n[kept]]
    source = (z + shift, n) if shift > 0 else of_cut
    forward, table = maps((1, 1), sources=(z, n)), pmd.growth_table(jax_cosmo.Planck15())
    mass = jax.numpy.asarray(np.random.default_rng(3).random((2, 8, 8)))
    (expected,) = pmd.observe.convergence(mass, table, forward.cone, source=[source], **VIEW)

    def look(shift: Any) -> Any:
        return forward._maps(mass, table, {"delta_z_0": shift})[0]

    for found in (look(shift), jax.jit(look)(shift)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    slope, step = jax.jacfwd(look)(shift), 1e-6
    np.testing.assert_allclose(slope, (look(shift + step) - look(shift - step)) / (2 * step), rtol=1e-5, atol=1e-9)


def test_one_distribution_is_one_map() -> None:
    assert maps((1, 1), sources=BINS[0]).shape == maps((1, 1), sources=0.05).shape == (1, 4, 4)


@pytest.mark.slow
def test_slopes_of_the_density_by_systematics_are_those_of_differences() -> None:
    """And a power of alignments without an amplitude is a prior without effect."""
    forward = shear_of()
    priors = {name: infer.Normal(0.0, 1.0) for name in SYSTEMATICS}
    noise = infer.ShapeNoise(forward, counts=np.arange(16).reshape(4, 4))
    model = infer.Model(forward.config, forward, priors, noise)
    position = model.draw(jax.random.key(0), **SYSTEMATICS)
    own = model.condition(model.mock(jax.random.key(1), position))
    of_parameters = jax.jit(jax.value_and_grad(lambda x: own.logdensity(position | {"parameters": x})))
    x, h = position["parameters"], 1e-5
    _, slopes = of_parameters(x)
    for name in SYSTEMATICS:
        high, low = (of_parameters(x | {name: x[name] + t})[0] for t in (h, -h))
        np.testing.assert_allclose(slopes[name], (high - low) / (2 * h), rtol=1e-5, err_msg=name)
    idle = infer.Model(forward.config, forward, {"eta_IA": priors["eta_IA"]}, noise)
    with pytest.raises(ValueError, match="holds eta_IA, which neither"):
        idle.condition(own.data)


def test_noise_of_shear_follows_the_number_in_each_pixel() -> None:
    forward = shear_of()
    counts = np.arange(32.0).reshape(2, 4, 4)
    noise = infer.ShapeNoise(forward, counts=counts, ellipticity=0.3, mask=np.arange(16).reshape(4, 4) != 5)
    draws = jax.vmap(lambda key: noise.draw(key, jax.numpy.zeros(forward.shape), {}, forward.config))
    found = np.asarray(draws(jax.random.split(jax.random.key(0), 2000))).std(axis=0)
    expected = 0.3 / np.sqrt(np.maximum(counts, 1))[:, None]
    np.testing.assert_allclose(found, np.broadcast_to(expected, forward.shape), rtol=0.07)
    data = np.ones(forward.shape)
    data[0, :, 0, 0] = np.nan  # without galaxies
    data[:, :, 1, 1] = np.nan  # behind the mask
    noise.check(data, forward.config)
    residual = np.asarray(noise.residual(jax.numpy.asarray(data), jax.numpy.zeros(forward.shape), {}, forward.config))
    hidden = np.isnan(data)
    np.testing.assert_array_equal(residual == 0, hidden)
    np.testing.assert_allclose(residual[~hidden], np.broadcast_to(1 / expected, data.shape)[~hidden])


@pytest.mark.parametrize("sky", ["flat", pytest.param("sphere", marks=pytest.mark.slow)])
def test_statistics_of_residuals_tell_e_from_b_modes(sky: str) -> None:
    """They are 1 for noise, and where the components are turned by 45 degrees the power of one is that of the other."""
    forward, shape, half, count, bias = shear_of(), (16, 16), 72, 500, 0.0
    if sky == "sphere":  # small multipoles of the convergence are larger than those of the shear
        cone = pmd.observe.SphericalLightCone(forward.config, EDGES, 4, shell_assignment="linear")
        forward, shape, half, count, bias = shear_of(cone), (192,), 4, 40, 0.25
    noise = infer.ShapeNoise(forward, 1.0)
    draws = jax.numpy.asarray(np.random.default_rng(4).standard_normal((count, 2, 2, *shape)))
    powers = jax.jit(lambda draws: jax.lax.map(noise.statistics, draws))(draws)
    assert set(powers) == {f"power of {x} modes of residuals at l {y} {half}" for x in "EB" for y in "<>"}
    for values in powers.values():
        np.testing.assert_allclose(values.mean(), 1, atol=4 * values.std() / count**0.5 + bias)
    turned = jax.numpy.stack([-draws[0, :, 1], draws[0, :, 0]], axis=1)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    axes = P(None, None, "x", "y") if sky == "flat" else P(None, None, ("x", "y"))
    turned = noise.statistics(jax.device_put(turned, NamedSharding(mesh, axes)))
    for name, value in turned.items():
        other = name.replace("E modes", "X").replace("B modes", "E modes").replace("X", "B modes")
        np.testing.assert_allclose(value, powers[other][0], rtol=1e-9)


@pytest.mark.slow
def test_the_check_of_the_fit_passes_with_the_truth_and_fails_with_another_n_z() -> None:
    forward = shear_of(pixels=16)
    model = infer.Model(forward.config, forward, PRIORS, infer.ShapeNoise(forward, 1e5, mask=np.eye(16) == 0))
    position = model.draw(jax.random.key(0), sigma8=0.85)
    data = model.mock(jax.random.key(1), position)
    nearer = eqx.tree_at(lambda m: m.forward.sources, model, ((Z, BINS[0][1]), (Z, BINS[1][1][::-1].copy())))
    noise, parameters = jax.numpy.stack([position["noise"]] * 2), {"sigma8": jax.numpy.full(2, 0.85)}
    for own, fine in ((model, True), (nearer, False)):
        checks = infer.check_fit(own.condition(data), noise, parameters, jax.random.key(2))
        of_maps = {name: check.p for name, check in checks.items() if "initial" not in name}
        assert len(of_maps) == 7
        assert (min(of_maps.values()) > 0.01 / len(of_maps)) == fine
        b_modes = [p for name, p in of_maps.items() if "B modes" in name]
        assert min(b_modes) > 0.01 / len(of_maps)  # lensing has none


@pytest.mark.slow
def test_the_check_of_divided_maps_is_the_one_of_one_device(one_device: Any) -> None:
    of_one, position = one_device
    divided, _ = posterior(maps((2, 2)))
    noise: Any = np.stack([position["noise"]] * 2)
    parameters: Any = {"sigma8": np.full(2, 0.85)}
    ours, expected = (infer.check_fit(x, noise, parameters, jax.random.key(0)) for x in (divided, of_one))
    assert ours.keys() == expected.keys()
    for name, check in ours.items():
        np.testing.assert_allclose(check, expected[name], rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_maps_agree_with_a_run_of_the_parameters(one_device: Any, seen: Any) -> None:
    of_one, position = one_device
    forward = of_one.model.forward
    cosmo = jax_cosmo.Planck15(sigma8=0.85)
    modes = pmd.linear_modes(position["noise"], cosmo, forward.config)
    particles = pmd.lpt(modes, cosmo, forward.config)
    mass = pmd.nbody(particles, cosmo, forward.config, accumulate=forward.cone).accumulated
    expected = pmd.observe.convergence(mass, cosmo, forward.cone, source=0.05, **VIEW)
    np.testing.assert_allclose(seen[0][1], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_divided_chains_are_differences_on_one_device(groups: int, one_device: Any, seen: Any) -> None:
    """By noise and parameters, of two chains: a batch on pencils, and groups of two devices."""
    of_one, position = one_device
    mesh = Mesh(np.array(jax.devices()).reshape(groups, 2, 2 // groups), ("chains", "x", "y"))
    divided, _ = posterior(maps(pmd.Decomposition(mesh=mesh, spec=P("x", "y"))))
    along, h = jax.tree.map(lambda x: np.random.default_rng(2).standard_normal(x.shape), position), 1e-5
    low, high = (jax.tree.map(lambda x, u, t=t: x + t * u, position, along) for t in (-h, h))
    chains = jax.tree.map(lambda *x: np.stack(x), position, high)
    gradient = jax.vmap(jax.value_and_grad(divided.logdensity), spmd_axis_name="chains" if groups == 2 else None)
    values, slopes = jax.jit(gradient)(chains)
    ends = [program(of_one, z)[2] for z in (low, high)]
    np.testing.assert_allclose(values, [seen[2], ends[1]], rtol=1e-11)
    slope = sum(np.sum(g[0] * u) for g, u in zip(*map(jax.tree.leaves, (slopes, along)), strict=True))
    np.testing.assert_allclose((ends[1] - ends[0]) / (2 * h), slope, rtol=1e-6)


def sphere_of(forward: infer.Convergence) -> Any:
    return pmd.observe.SphericalLightCone(forward.config, EDGES, 4, assignment="nearest", shell_assignment="linear")


def of_cone(forward: infer.Convergence, cone: Any) -> infer.Convergence:
    return infer.Convergence(forward.config, jax_cosmo.Planck15(), cone, (0.02, 0.05), **VIEW)


def test_lensing_weight_outside_the_shells_is_named(one_device: Any) -> None:
    forward = one_device[0].model.forward
    with pytest.warns(UserWarning, match=r"leave out \d+% of the lensing weight"):
        infer.Convergence(forward.config, jax_cosmo.Planck15(), forward.cone, [0.09], **VIEW)


@pytest.mark.parametrize("hidden", [np.nan, -1e30, -1.6375e30])  # the last is HEALPix's UNSEEN
def test_hidden_pixels_enter_no_arithmetic(hidden: float, one_device: Any) -> None:
    model = one_device[0].model
    data, field = (np.random.default_rng(i).standard_normal((2, 4, 4)).astype(np.float32) for i in range(2))

    def evaluate(value: float) -> Any:
        there, predicted = (jax.numpy.asarray(np.where(np.eye(4) > 0, x, np.float32(value))) for x in (data, field))
        model.likelihood.check(there, model.config)
        return jax.value_and_grad(lambda f: model.likelihood.logdensity(there, f, {}, model.config))(predicted)

    assert all(np.isfinite(x).all() for x in evaluate(hidden))
    jax.tree.map(np.testing.assert_array_equal, evaluate(hidden), evaluate(1.0))


def test_noise_follows_the_number_of_galaxies_in_a_pixel(one_device: Any) -> None:
    model = one_device[0].model
    noise = infer.ShapeNoise(model.forward, (1e-4, 4e-4))
    field = np.zeros((2, 4, 4))
    draws = jax.vmap(lambda key: noise.draw(key, jax.numpy.asarray(field), {}, model.config))
    found = np.asarray(draws(jax.random.split(jax.random.key(0), 500))).std(axis=(0, 2, 3))
    np.testing.assert_allclose(found, 0.26 / np.sqrt(np.array([1e-4, 4e-4]) * 300**2), rtol=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda f: of_cone(f, sphere_of(f)),
            'from pixel to pixel.* make it with assignment="bilinear"',
        ),
        (
            lambda f: of_cone(f, pmd.observe.FlatSkyLightCone(f.config, EDGES, pixels=8)),
            'edges, where the log density jumps.* make it with shell_assignment="linear"',
        ),
        (lambda f: of_cone(f, 3), "cone=3 must be a FlatSkyLightCone"),
        (lambda f: maps((1, 1), sources=()), r"sources=\(\) must hold the sources of each map"),
        (lambda f: maps((1, 1), sources=(0.0,)), "is nearer than the nearest shell"),
        (lambda f: maps((1, 1), sources=[([0.05, 0.02], [1.0, 1.0])]), "must ascend from 0 or more"),
        (lambda f: maps((1, 1), pixels=None), "field=20.0 and pixels are needed"),
        (lambda f: maps((1, 1), offsets=np.full((2, 2), np.nan)), "offsets must be a finite number"),
        (lambda f: maps((1, 1), field=jax.numpy.asarray(-3.0)), "field=-3.0 must be a finite number from 0.001"),
        (lambda f: maps((1, 1), solver="euler"), "solver='euler' must be a solver"),
        (lambda f: infer.ShapeNoise(f, -1.0), "density=-1.0 must be a finite number, 1e-30 or more"),
        (lambda f: infer.ShapeNoise(f, 1.0, ellipticity=np.nan), "ellipticity=nan must be a finite number"),
        (lambda f: infer.ShapeNoise(f), "density=None must be given, or counts; pass one of them"),
        (lambda f: infer.ShapeNoise(f, 1.0, counts=np.ones((4, 4))), "density=1.0 must be given, or counts"),
        (
            lambda f: infer.ShapeNoise(f, counts=np.ones((3, 4))),
            r"counts.shape=\(3, 4\) must be \(4, 4\) or \(2, 4, 4\)",
        ),
        (
            lambda f: infer.ShapeNoise(shear_of(), counts=np.ones((2, 2, 4, 4))),
            r"counts.shape=\(2, 2, 4, 4\) must be \(4, 4\) or \(2, 4, 4\)$",
        ),
        (
            lambda f: infer.ShapeNoise(shear_of(), 1.0, mask=np.ones((2, 2, 3))),
            r"must be \(4, 4\) or \(2, 4, 4\) or \(2, 2, 4, 4\)$",
        ),
        (
            lambda f: infer.Model(f.config, f, {"A_IA": infer.Normal(0.0, 1.0)}, infer.ShapeNoise(f, 1.0)).condition(
                np.random.default_rng(0).standard_normal(f.shape)
            ),
            r"alignment needs sources with a distribution; pass \(z, n\)",
        ),
        (lambda f: infer.ShapeNoise(f, counts=-np.ones((4, 4))), "counts must be a finite number, 0 or more"),
        (
            lambda f: infer.ShapeNoise(f, counts=1 - np.eye(4), mask=np.eye(4)),
            "counts are 0 in all pixels that the mask",
        ),
        (lambda f: infer.ShapeNoise(3, 1.0), "maps must be a Convergence"),  # type: ignore[arg-type]
        (lambda f: infer.ShapeNoise(f, (1.0, 2.0, 3.0)), "one for each of 2 maps"),
        (lambda f: infer.ShapeNoise(f, 1.0, mask=np.ones((3, 3))), r"mask.shape=\(3, 3\) must be"),
        (lambda f: infer.ShapeNoise(f, 1.0).check(np.ones((4, 4)), f.config), r"data.shape=\(4, 4\) must be \(2, 4"),
        (lambda f: infer.ShapeNoise(f, 1.0).check(np.full((2, 4, 4), np.nan), f.config), "no finite numbers"),
        (
            lambda f: infer.ShapeNoise(f, 1.0).check([np.ma.masked_less(np.eye(4), 1)] * 2, f.config),
            "data is a masked array of NumPy",
        ),
    ],
)
def test_wrong_arguments_are_refused(one_device: Any, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(one_device[0].model.forward)


@eqx.filter_jit
def chains(of_maps: infer.Posterior, position: Any, keys: Any) -> Any:
    """Log densities and parameters of chains of MCLMC, step by step."""

    def step(state: Any, key: Any) -> Any:
        state, _ = infer.mclmc.step(key, state, of_maps.logdensity, step_size=0.5, L=5.0)
        return state, (state.logdensity, state.position["parameters"]["sigma8"])

    def one(key: Any) -> Any:
        # A gradient of the prior is compiled faster, and is as good before the first step.
        start = infer.mclmc.init(key, position, lambda x: -0.5 * sum(jax.numpy.sum(y**2) for y in jax.tree.leaves(x)))
        return jax.lax.scan(step, start, jax.random.split(key, 6))[1]

    return jax.vmap(one)(keys)


def main() -> None:
    """Under mpirun: two chains of a light cone that is divided over two processes."""
    pmd.distributed.initialize()
    found = pmd.distributed.to_host(chains(*posterior(maps((2, 1))), jax.random.split(jax.random.key(3), 2)))
    if pmd.distributed.is_main():
        print(json.dumps(np.asarray(found).tolist()))


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(400)
def test_chains_of_two_processes_are_those_of_one(tmp_path: Path, one_device: Any) -> None:
    done = mpirun(2, tmp_path, __file__, limit=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    expected = chains(*one_device, jax.random.split(jax.random.key(3), 2))
    assert np.ptp(expected[1]) > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-8)


if __name__ == "__main__":
    main()
