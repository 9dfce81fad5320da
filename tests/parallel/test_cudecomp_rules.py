"""cuDecomp without a GPU: errors that say what to do, the rules of its primitives. See also gpu/test_programs.py."""

from __future__ import annotations

import itertools
import sys
import types
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import pmwd_dist as pmd
from pmwd_dist._jax import native
from pmwd_dist.parallel.backends import cudecomp
from pmwd_dist.parallel.backends.cudecomp import CuDecomp
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.division import device_groups

SHAPE = (8, 16, 24)
SPECS = {"z": jax.P("x", "y"), "y": jax.P("x", None, "y"), "x": jax.P(None, "x", "y")}
STEPS = ("z_to_y", "y_to_x", "x_to_y", "y_to_z")


@pytest.fixture
def opened(parallel: pmd.Decomposition, monkeypatch: pytest.MonkeyPatch) -> pmd.Decomposition:
    """A layout that passes for opened, so that programs can be traced and lowered, if not run."""
    decomposition = pmd.Decomposition(pdims=parallel.pdims, backend="cudecomp")
    monkeypatch.setattr(cudecomp, "_opened", {(decomposition, decomposition.backend)})
    monkeypatch.setattr(native, "cudecomp_ops", lambda: SimpleNamespace(cudecomp_scratch=lambda *_: 100))
    return decomposition


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MPI of one process, made up: the real one would start its daemons."""
    world = SimpleNamespace(Get_size=lambda: 1, allgather=lambda value: [value], Free=lambda: None)
    world.Dup = lambda: world
    module = types.ModuleType("mpi4py")
    module.MPI = SimpleNamespace(COMM_WORLD=world)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "mpi4py", module)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, mpi: None) -> Any:
    """A layout of one device that passes for a GPU, and native ops that pass for complete."""
    ops = SimpleNamespace(cudecomp_probe=lambda library: None)
    monkeypatch.setattr(native, "cudecomp_ops", lambda: ops)
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform="gpu")]))
    return SimpleNamespace(mesh=mesh), ops


def mapped(body: Any, decomposition: pmd.Decomposition, before: Any, after: Any) -> Any:
    return decomposition.shard_map(body, before, after)


def transposed(decomposition: pmd.Decomposition, step: Any) -> Any:
    before, after = step.split("_to_")
    body = partial(decomposition.backend.transpose, division=decomposition, step=step)
    return mapped(body, decomposition, SPECS[before], SPECS[after])


# --- what is missing ------------------------------------------------------------------------------------------


def test_what_is_missing_is_said(on_a_gpu: Any, single: pmd.Decomposition, monkeypatch: pytest.MonkeyPatch) -> None:
    decomposition, ops = on_a_gpu
    monkeypatch.delenv("PMWD_CUDECOMP_LIBRARY", raising=False)

    def probe(library: str) -> None:
        raise OSError(f"cannot open {library}")

    def reason(target: Any, name: Any, value: Any, layout: Any = decomposition) -> str:
        with monkeypatch.context() as patch:
            (patch.setitem if isinstance(target, dict) else patch.setattr)(target, name, value)
            return str(cudecomp.unavailable_reason(layout))

    assert cudecomp.unavailable_reason(decomposition) is None
    assert "pip install ./rust/jaxdecomp-ops" in reason(native, "cudecomp_ops", lambda: None)
    on_cpus = reason(native, "cudecomp_ops", lambda: ops, single)
    assert "NVIDIA GPUs, but the devices are cpu; use backend='xla'" in on_cpus
    several = reason(jax, "local_device_count", lambda: 4)
    assert "one process a GPU, but this one has 4; start 4 with mpirun" in several
    assert "needs mpi4py, which does not load" in reason(sys.modules, "mpi4py", None)
    expected = "libcudecomp.so.0 does not load (cannot open libcudecomp.so.0); set PMWD_CUDECOMP_LIBRARY to the path"
    assert expected in reason(ops, "cudecomp_probe", probe)
    monkeypatch.setenv("PMWD_CUDECOMP_LIBRARY", "/opt/libcudecomp.so")
    assert "cannot open /opt/libcudecomp.so" in reason(ops, "cudecomp_probe", probe)


def test_the_library_that_is_asked_for_is_the_one_that_is_loaded() -> None:
    ops = native.cudecomp_ops()
    if ops is None:
        pytest.skip("the native ops (jaxdecomp_ops) are not installed, or have no cuDecomp")
    with pytest.raises(OSError, match="/nowhere/libcudecomp.so"):
        ops.cudecomp_probe("/nowhere/libcudecomp.so")
    with pytest.raises(ValueError, match="cuDecomp is not open"):
        ops.cudecomp_scratch(SHAPE, (2, 2), (4, 3))
    with pytest.raises(ValueError, match="/nowhere/libcudecomp.so"):
        ops.cudecomp_open("/nowhere/libcudecomp.so", 0, 0, 0, 1)
    assert set(ops.targets("CUDA")) >= {"jaxdecomp_ops_cudecomp_transpose", "jaxdecomp_ops_cudecomp_halo"}


# --- opening --------------------------------------------------------------------------------------------------


def test_numbers_of_backends_are_those_of_cudecomp() -> None:
    transposes = ("mpi_p2p", "mpi_p2p_pl", "mpi_a2a", "nccl", "nccl_pl", "nvshmem", "nvshmem_pl", "nvshmem_sm")
    halos = ("mpi", "mpi_blocking", "nccl", "nvshmem", "nvshmem_blocking")
    for (number, transpose), (halo_number, halo) in itertools.product(enumerate(transposes, 1), enumerate(halos, 1)):
        assert CuDecomp(transpose, halo).comms == (number, halo_number)  # type: ignore[arg-type]


def test_every_process_learns_what_one_lacks(mpi: None) -> None:
    single = pmd.Decomposition((1, 1), backend="cudecomp")
    with pytest.raises(RuntimeError, match="cuDecomp cannot be used: on process 0, it needs"):
        cudecomp.open_backend(single, [SHAPE])
    assert not single.backend.is_open
    cudecomp.close_backend()  # nothing to do


def test_a_decomposition_of_xla_is_not_opened(single: pmd.Decomposition) -> None:
    with pytest.raises(ValueError, match="does not use cuDecomp; make it with backend='cudecomp'"):
        cudecomp.open_backend(single, [SHAPE])


def test_ranks_follow_the_blocks() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    for names, expected in ((("a", "b"), [0, 1, 2, 3]), (("b", "a"), [0, 2, 1, 3])):
        (row,) = device_groups(mesh, names)
        assert row == [jax.devices()[i] for i in expected]


# --- transposes -----------------------------------------------------------------------------------------------


def test_one_device_needs_no_library() -> None:
    single = pmd.Decomposition((1, 1), backend="cudecomp")
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    np.testing.assert_allclose(pmd.prfft3d(x, single), np.fft.rfftn(x), atol=1e-14)
    np.testing.assert_array_equal(pmd.halo_pad(x, 5, single), x)


def test_before_opening_the_error_says_what_to_call(parallel: pmd.Decomposition) -> None:
    decomposition = pmd.Decomposition(parallel.pdims, backend="cudecomp")
    step = "y_to_x" if parallel.pdims[0] > 1 else "z_to_y"
    with pytest.raises(ValueError, match="is not open; call cudecomp.open_backend on every process"):
        jax.eval_shape(transposed(decomposition, step), jnp.ones(SHAPE))


def bound(jaxpr: Any, name: str) -> list[dict[str, Any]]:
    """Parameters of the primitives of this name."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            found.append(eqn.params)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            found += bound(inner, name) if hasattr(inner, "eqns") else []
    return found


@pytest.mark.parametrize(("step", "number", "back"), [("z_to_y", 2, 1), ("y_to_x", 3, 0)])
def test_the_transpose_of_a_step_is_the_step_back(opened: pmd.Decomposition, step: str, number: int, back: int) -> None:
    if opened.pdims[1 if "z" in step else 0] == 1:
        return
    run, x = transposed(opened, step), jnp.ones(SHAPE)
    vjp = jax.make_jaxpr(lambda ct: jax.linear_transpose(run, x)(ct))(x)
    assert [params["step"] for params in bound(vjp, "cudecomp_transpose")] == [back]
    jvp = jax.make_jaxpr(lambda t: jax.jvp(run, (x,), (t,))[1])(x)
    assert {params["step"] for params in bound(jvp, "cudecomp_transpose")} == {number}


@pytest.mark.parametrize("step", STEPS)
def test_a_program_for_gpus_says_which_grid_it_needs(opened: pmd.Decomposition, step: str) -> None:
    batched = jax.vmap(partial(opened.backend.transpose, division=opened, step=step))
    before, after = (jax.P(None, *SPECS[axis]) for axis in step.split("_to_"))
    run = jax.jit(mapped(batched, opened, before, after))
    text = run.trace(jnp.ones((3, *SHAPE), jnp.float32)).lower(lowering_platforms=("cuda",)).as_text()
    if opened.pdims[1 if "z" in step else 0] == 1:
        assert "custom_call @jaxdecomp_ops" not in text
        return
    assert text.count("custom_call @jaxdecomp_ops_cudecomp_transpose") == 1
    assert "shape = dense<[8, 16, 24]>" in text and "comms = dense<[4, 3]>" in text
    number = {"x_to_y": 0, "y_to_z": 1, "z_to_y": 2, "y_to_x": 3}[step]
    assert f"step = dense<{number}>" in text and "tensor<100xf32>" in text


def test_transforms_order_their_axes_alike(opened: pmd.Decomposition, monkeypatch: pytest.MonkeyPatch) -> None:
    """With XLA's exchanges in place of cuDecomp's, the transforms of the package give the same numbers."""

    def exchange(self: Any, block: jax.Array, division: pmd.Decomposition, step: Any) -> jax.Array:
        split, whole, along_y = {"z_to_y": (2, 1, 1), "y_to_x": (1, 0, 0), "x_to_y": (0, 1, 0), "y_to_z": (1, 2, 1)}[
            step
        ]
        names, _ = division.axis_groups[along_y]
        return jax.lax.all_to_all(block, names, split, whole, tiled=True)

    monkeypatch.setattr(CuDecomp, "transpose", exchange)
    plain = pmd.Decomposition(pdims=opened.pdims)
    x = np.random.default_rng(0).standard_normal(SHAPE)
    for own in (opened, plain):
        spectrum = pmd.prfft3d(x, own)
        np.testing.assert_allclose(spectrum[..., : SHAPE[2] // 2 + 1], np.fft.rfftn(x), atol=1e-11)
        np.testing.assert_allclose(pmd.pirfft3d(spectrum, SHAPE, own), x, atol=1e-13)
        np.testing.assert_allclose(pmd.pifft3d(pmd.pfft3d(x + 0j, own), own), x, atol=1e-13)


# --- halos ----------------------------------------------------------------------------------------------------


def test_halos_have_the_shapes_and_the_transpose_of_xlas(opened: pmd.Decomposition) -> None:
    pads = [partial(backend.halo_pad, halo=2, division=opened) for backend in (opened.backend, XLA())]
    ours, theirs = (mapped(pad, opened, opened.spec, opened.spec) for pad in pads)
    x = jnp.zeros(SHAPE)
    assert jax.eval_shape(ours, x) == jax.eval_shape(theirs, x)
    # The transpose is XLA's, so that it runs here; small integers add up exactly in any order.
    padded = jax.eval_shape(theirs, x).shape
    ct = jnp.asarray(np.random.default_rng(0).integers(-9, 9, padded), x.dtype)
    transposed = jax.jit(lambda ct: [jax.linear_transpose(pad, x)(ct)[0] for pad in (ours, theirs)])
    np.testing.assert_array_equal(*transposed(ct))


def halo_program(decomposition: pmd.Decomposition, halo: int) -> str:
    """A program for GPUs that fills halos."""
    run = jax.jit(partial(pmd.halo_pad, halo=halo, decomposition=decomposition))
    return run.trace(jnp.ones(SHAPE)).lower(lowering_platforms=("cuda",)).as_text()


def test_halos_wider_than_a_block_are_filled_by_xla(opened: pmd.Decomposition) -> None:
    block = opened.block(SHAPE)
    width = min(n for n, shards in zip(block, opened.pdims, strict=False) if shards > 1)
    assert "jaxdecomp_ops_cudecomp_halo" in halo_program(opened, width)
    assert "jaxdecomp_ops_cudecomp_halo" not in halo_program(opened, width + 1)


def test_halos_are_filled_in_place(opened: pmd.Decomposition) -> None:
    text = halo_program(opened, 1)
    call = next(line for line in text.splitlines() if "jaxdecomp_ops_cudecomp_halo" in line)
    assert "output_operand_alias" in call and "halo = dense<1>" in call
