"""Two processes under mpirun give the numbers of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist import distributed

SETTINGS = {"box_size": 24.0, "mesh_shape": (8, 8, 6), "steps": 2, "halo": 4}

SCRIPT = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
jax.config.update("jax_enable_x64", True)
from pmwd_dist import distributed
distributed.initialize()
distributed.initialize()  # a second call does nothing
assert jax.process_count() == 2 and jax.local_device_count() == 1 and jax.device_count() == 2
assert distributed.is_main() == (jax.process_index() == 0)
import numpy as np
import pmwd_dist as pmd
import test_processes
power, gradient = test_processes.simulate(pmd.Decomposition())
distributed.barrier()
if distributed.is_main():
    np.savez(sys.argv[1], power=power, gradient=gradient)
"""


def simulate(layout: pmd.Decomposition) -> tuple[np.ndarray, np.ndarray]:
    """Density power spectrum and its gradient with respect to the white noise, whole on every process."""
    config, cosmo = pmd.Config(**SETTINGS, decomposition=layout), problems.cosmology()

    def spectrum(noise: jax.Array) -> Any:
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        solution = pmd.nbody(particles, cosmo, config)
        power = pmd.power_spectrum(pmd.density(solution.particles, config), config).power
        return jnp.log(power).sum(), (power, solution.status.code)

    noise = pmd.white_noise(jax.random.key(0), config)
    gradient, (power, code) = jax.jit(jax.grad(spectrum, has_aux=True), out_shardings=layout.replicated)(noise)
    assert code == 0
    return np.asarray(power), np.asarray(gradient)


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    pytest.importorskip("mpi4py")
    script, result = tmp_path / "script.py", tmp_path / "result.npz"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(Path(pmd.__file__).parents[1])])
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [mpirun, "-n", "2", "--oversubscribe", sys.executable, str(script), str(result)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    power, gradient = simulate(pmd.Decomposition(pdims=(1, 1)))
    with np.load(result) as theirs:
        np.testing.assert_allclose(theirs["power"], power, rtol=1e-11)
        np.testing.assert_allclose(theirs["gradient"], gradient, rtol=0, atol=1e-11 * np.abs(gradient).max())


def test_alone_there_is_nothing_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert distributed.launched_size() == 1
    distributed.initialize()
    assert not jax.distributed.is_initialized()
    assert distributed.is_main()
    distributed.barrier()
    monkeypatch.setenv("SLURM_NTASKS", "8")  # a batch script, outside srun
    assert distributed.launched_size() == 1
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert distributed.launched_size() == 8


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match="2 processes were started, but mpi4py does not load .*pip install mpi4py"):
        distributed.initialize()
