"""The table of the reference says under which transforms the public functions work."""

from __future__ import annotations

import csv
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compatibility
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import mpirun

import pmwd_dist as pmd

PATH = Path(__file__).parent.parent / "docs" / "reference" / "transforms.csv"
with PATH.open(encoding="utf-8") as file:
    TABLE = {row.pop("function"): row for row in csv.DictReader(file)}
# Functions of files, chains, halos and settings, which work outside of all transforms.
HOST = {
    *("autotune", "enable_compilation_cache", "export_safety_checks", "native_available"),
    *("fftfreq3d", "get_fft_output_sharding", "observe.shot_noise", "observe.bispectrum_edges"),
    *("load_config", "load_initial_conditions", "load_snapshot", "save_groups", "save_snapshot", "snapshot_density"),
    *("observe.halo_galaxies", "observe.mass_function", "observe.overdensity_masses", "observe.tree_bispectrum"),
    *("observe.galaxy_light_cone", "observe.galaxy_maps", "observe.halo_light_cone", "observe.random_catalogue"),
    "observe.power_spectrum",
    *(f"infer.{name}" for name in ("as_arviz", "as_getdist", "check_fit", "check_prior", "energy_errors", "ess_bulk")),
    *(
        f"infer.{name}"
        for name in ("ess_mean", "ess_tail", "evaluations_per_ess", "load_chain", "load_tuning", "maximise", "rhat")
    ),
    *(f"infer.{name}" for name in ("numpyro_position", "sample", "step_bias", "summary")),
}
SLOW = ("infer", "observe.FlatSky", "observe.Spherical")  # to trace
NAMES = [pytest.param(name, marks=pytest.mark.slow if name.startswith(SLOW) else ()) for name in TABLE]


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return compatibility.cases(compatibility.inputs())


@pytest.fixture(scope="module")
def divided() -> dict[str, Any]:
    return compatibility.cases(compatibility.inputs((2, 2)))


def test_the_table_has_all_public_functions(cases: dict[str, Any]) -> None:
    public = {
        prefix + name
        for prefix, module in (("", pmd), ("observe.", pmd.observe), ("infer.", pmd.infer))
        for name in module.__all__
        if inspect.isroutine(getattr(module, name))
    }
    assert not public - (HOST | set(TABLE))
    assert set(TABLE) == set(cases)
    assert not HOST & set(TABLE)
    assert public >= HOST


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_traced_as_the_table_says(name: str, cases: dict[str, Any]) -> None:
    said = dict.fromkeys(("jit", "grad", "jvp", "vmap"), "")
    for transform, (function, x) in compatibility.transforms(*cases[name]).items():
        try:
            jaxpr = jax.make_jaxpr(function)(*x)
        except ValueError as error:
            said[transform] = "no" if "is for the host" in str(error) else str(error)
        else:
            said[transform] = "yes"
            assert set(precisions(jaxpr)) <= {jax.lax.Precision.HIGHEST}, transform
    assert said == {transform: TABLE[name][transform] for transform in said}


def precisions(jaxpr: Any) -> Iterator[Any]:
    """Precision of each product of matrices; the default one is that of TF32 on some GPUs."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield from equation.params["precision"] or [None]
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from precisions(inner)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_transforms_give_the_same_numbers(name: str, cases: dict[str, Any], divided: dict[str, Any]) -> None:
    """Those that the table says work, on one device and on four."""
    function, x = cases[name]
    row, expected = TABLE[name], leaves(function(*x))
    found = {
        transform: jax.jit(f)(*y)
        for transform, (f, y) in compatibility.transforms(function, x).items()
        if row[transform] == "yes"
    }
    if "jit" in found:
        assert_close(leaves(found["jit"]), expected)
    if "vmap" in found:
        assert_close(leaves(found["vmap"]), [np.stack([leaf, leaf]) for leaf in expected])
    if "grad" in found:
        slope = sum(
            np.sum(g * y).real for g, y in zip(leaves(found["grad"]), leaves(compatibility.tangents(x)), strict=True)
        )
        assert_close([slope], [np.asarray(found["jvp"])])
        assert np.abs(slope) > 0
    if name.startswith("halo"):  # their blocks depend on the division: test_halo.py compares them with NumPy's
        return
    on_four, arguments = divided[name]
    assert_close(leaves(on_four(*arguments)), expected)
    if "grad" in found:
        slopes = jax.jit(compatibility.transforms(on_four, arguments)["grad"][0])(*arguments)
        assert_close(leaves(slopes), leaves(found["grad"]))
    assert row["devices"] == "yes"


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    for x, y in zip(found, expected, strict=True):
        own = x[tuple(map(slice, y.shape))]  # a divided spectrum may be padded
        np.testing.assert_allclose(own, y, rtol=1e-7, atol=1e-9 * max(np.max(np.abs(y)), 1e-30))


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(400)
def test_functions_work_on_two_processes(tmp_path: Path, cases: dict[str, Any]) -> None:
    done = mpirun(2, tmp_path, compatibility.__file__, limit=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    slabs = compatibility.cases(compatibility.inputs((2, 1)))
    assert found.keys() == {name for name in TABLE if not name.startswith("infer.")}
    for name in found:
        function, x = (slabs if name.startswith("halo") else cases)[name]
        np.testing.assert_allclose(found[name], compatibility.square(function)(*x), rtol=1e-9, err_msg=name)
        assert TABLE[name]["processes"] == "yes"
