"""Shared set-up: four virtual CPU devices, float64 unless a test says otherwise, and the layouts to test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import jax
import problems

# Before anything starts JAX: the platform, its devices and the precision are fixed from then on. Programs that are not
# optimised compile in half the time; here and in the processes that tests start.
os.environ["XLA_FLAGS"] = f"{problems.XLA_FLAGS} {os.environ.get('XLA_FLAGS', '')}".strip()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_traceback_in_locations_limit", 0)  # where each operation was written: a tenth of the time

# JAX traces and lowers into many small objects that live on: collecting them often takes a quarter of a test's time.
gc.set_threshold(100_000, 20, 20)

# mpirun ends its processes by itself, and before the limit of a test: nothing else does where it is killed.
os.environ.setdefault("MPIEXEC_TIMEOUT", "180")

import jax._src.compiler as jax_compiler  # noqa: E402
import jax_cosmo  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

import pmwd_dist as pmd  # noqa: E402
from pmwd_dist._jax import program  # noqa: E402
from pmwd_dist.io import compilation_cache  # noqa: E402
from pmwd_dist.pm import paint  # noqa: E402
from pmwd_dist.pm.gravity import acceleration  # noqa: E402


def _share_programs() -> None:
    """Keep compiled programs for the processes of this run and for later runs, on processors like this one.

    The key of an entry is the program, with JAX's version and XLA's flags. JAX writes entries in place: an entry that
    another process reads half is compiled there again.
    """
    folder = compilation_cache.default_folder()
    folder = folder.with_name(f"tests-{folder.name}")
    compilation_cache._prepare(folder)
    compilation_cache._prune(folder, compilation_cache.MAX_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)  # of processes that tests start
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def _keep_programs_of_one_device() -> None:
    """Compile programs of several devices in each process: read from the folder, they can hang.

    Devices then run the collectives of one program in different orders (jaxlib 0.10.2).
    """
    key = jax_compiler._get_cache_key

    def of_one_device(options: Any, backend: Any, computation: Any, devices: Any, *args: Any, **kwargs: Any) -> Any:
        return None if devices.size > 1 else key(options, backend, computation, devices, *args, **kwargs)

    jax_compiler._get_cache_key = of_one_device
    program._cache_settled[0] = True


_share_programs()
_keep_programs_of_one_device()

PROGRAMS = {"compiled": 0, "read": 0}  # by this process, and from the folder of compiled programs


def _count(event: str, *_: Any, **__: Any) -> None:
    PROGRAMS["compiled"] += event == "/jax/core/compile/backend_compile_duration"  # of those read, too
    if event == "/jax/compilation_cache/cache_hits":
        PROGRAMS["compiled"] -= 1
        PROGRAMS["read"] += 1


jax.monitoring.register_event_duration_secs_listener(_count)
jax.monitoring.register_event_listener(_count)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: processes that take tests from each other then end together."""
    items.sort(key=lambda item: item.get_closest_marker("mpi") is None and "test_readme" not in item.nodeid)


def pytest_collection_finish() -> None:
    """What is imported stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


LAYOUTS = ((1, 1), (4, 1), (1, 4), (2, 2))
PARALLEL = LAYOUTS[1:]


def _name(pdims: tuple[int, int]) -> str:
    return f"{pdims[0]}x{pdims[1]}"


@pytest.fixture(params=LAYOUTS, ids=_name)
def decomposition(request: pytest.FixtureRequest) -> pmd.Decomposition:
    """Every layout: one device, slabs either way, pencils."""
    return pmd.Decomposition(pdims=request.param)


@pytest.fixture(params=PARALLEL, ids=_name)
def parallel(request: pytest.FixtureRequest) -> pmd.Decomposition:
    """Every layout of several devices."""
    return pmd.Decomposition(pdims=request.param)


@pytest.fixture(scope="session")
def single() -> pmd.Decomposition:
    """One device."""
    return pmd.Decomposition(pdims=(1, 1))


@pytest.fixture(scope="session")
def cosmo() -> jax_cosmo.Cosmology:
    """A flat LCDM cosmology."""
    return jax_cosmo.Planck15()


@pytest.fixture(params=["jax", "native"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether paint and read run natively; both ways for every test that asks for it.

    PMWD_REQUIRE_NATIVE=1 turns the skip into a failure, where the native ops are meant to be installed.
    """
    wanted = request.param == "native"
    if wanted and not pmd.native_available():
        reason = "the native ops (jaxdecomp_ops) are not installed"
        if os.environ.get("PMWD_REQUIRE_NATIVE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    monkeypatch.setattr("pmwd_dist._jax.native.native_available", lambda: wanted)
    _forget()
    yield wanted
    _forget()


@pytest.fixture
def fuzz_count(request: pytest.FixtureRequest) -> int:
    """Number of damaged files to try."""
    return request.config.option.fuzz


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Arrays are not checked against their annotations: for errors of the package itself about arrays."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def _forget() -> None:
    """Functions that are jitted as a whole remember which ops they chose."""
    for function in (paint._paint, paint._read, acceleration):
        function.clear_cache()
