"""Two processes under mpirun give the numbers of one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from processes import mpirun

import pmwd_dist as pmd
from pmwd_dist.parallel import distributed, launcher

SETTINGS = {"box_size": 24.0, "mesh_shape": (8, 8, 6), "steps": 2, "halo": 4, "lpt_order": 1}

# The user's own messages: a receive of anything from anyone, and a collective, both open while ours go on.
MESSAGES = """
import numpy as np
from mpi4py import MPI

class Messages:
    def __init__(self, world):
        self.world, self.other = world, 1 - world.Get_rank()
        self.inbox, self.one, self.total = np.zeros(3), np.ones(1), np.zeros(1)
        self.message = world.Irecv(self.inbox, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
        self.collective = world.Iallreduce(self.one, self.total)

    def check(self, ours):
        assert MPI.Comm.Compare(ours, self.world) == MPI.CONGRUENT
        assert not self.message.Test(), "a message of ours came to the user"
        ours.Barrier()
        self.world.Send(np.full(3, float(self.world.Get_rank())), dest=self.other, tag=7)
        self.message.Wait()
        self.collective.Wait()
        assert (self.inbox == self.other).all() and self.total == 2, (self.inbox, self.total)
"""

# Each process takes itself for the only one on its node: they meet by the name of a host, as on a cluster. MPI is
# initialised by us.
SCRIPT = """
import atexit, os, pathlib, sys
import mpi4py
mpi4py.rc.initialize = False
MESSAGES
atexit.register(os.write, 2, b"lines of JAX")
import jax
import numpy as np
import pmwd_dist as pmd
from pmwd_dist.parallel import distributed, launcher
import test_processes

class OnNodesOfTheirOwn:
    def __init__(self, comm):
        self.comm = comm

    def Split_type(self, kind):
        return self.comm.Split(self.comm.Get_rank())

    def __getattr__(self, name):
        return getattr(self.comm, name)

assert not MPI.Is_initialized()
world = distributed.communicator()
messages = Messages(MPI.COMM_WORLD)
distributed._communicator = OnNodesOfTheirOwn(world)
address, local_rank, _ = launcher.coordinator(distributed._communicator)
assert local_rank == 0 and address == world.bcast(address, root=0)
distributed.initialize()
distributed.initialize()  # a second call does nothing
assert jax.process_count() == 2 and jax.local_device_count() == 1 and jax.device_count() == 2
assert distributed.is_main() == (jax.process_index() == 0) == (world.Get_rank() == 0)
layout = pmd.Decomposition(mesh=jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,)))
with jax.set_mesh(layout.mesh):
    power, gradient = test_processes.simulate(layout)
whole = np.arange(8.0**3).reshape(8, 8, 8)
gathered = distributed.gather(jax.jit(lambda: jax.numpy.asarray(whole), out_shardings=layout.sharding)())
assert (gathered == whole).all() if distributed.is_main() else gathered is None
halos = test_processes.find_halos(layout)
sums = distributed.gather(jax.jit(lambda: jax.numpy.ones(3), out_shardings=layout.replicated)())
assert sums.shape == (3,) if distributed.is_main() else sums is None
distributed.barrier()
distributed.check_shared(pathlib.Path("."), "output")
own = pathlib.Path(f"folder_{jax.process_index()}")
own.mkdir()
try:
    distributed.check_shared(own, "output")
except distributed.SharedError as error:
    refused = str(error)
assert "process 1: output='folder_1' is not the folder of process 0; name one folder for all" in refused, refused
assert not list(own.iterdir())
messages.check(world)
if distributed.is_main():
    np.savez("result.npz", power=power, gradient=gradient, **halos)
sys.stderr.write("rest")
"""

# MPI is initialised by the user, before anything of ours.
TRAFFIC = """
MESSAGES
import jax
jax.config.update("jax_disable_jit", MPI.COMM_WORLD.Get_rank() == 1)  # ignored: process 0 would wait
assert MPI.Is_initialized()
messages = Messages(MPI.COMM_WORLD)
import pmwd_dist as pmd
from pmwd_dist.parallel import distributed
distributed.initialize()
assert distributed.communicator() is distributed.communicator()
layout = pmd.Decomposition()
field = jax.jit(lambda: jax.numpy.ones((4, 4, 4)), out_shardings=layout.sharding)()
spectrum = pmd.prfft3d(field, layout)
distributed.barrier()
messages.check(distributed.communicator())
if not distributed.is_main():
    raise ValueError("of one process")
distributed.barrier()
"""


def simulate(decomposition: pmd.Decomposition) -> tuple[np.ndarray, np.ndarray]:
    """Density power spectrum and its gradient with respect to the white noise, whole on every process."""
    config, cosmo = pmd.Config(**SETTINGS, decomposition=decomposition), problems.cosmology()
    table = pmd.growth_table(cosmo)

    def spectrum(noise: jax.Array) -> Any:
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), table, config)
        solution = pmd.nbody(particles, table, config)
        power = pmd.power_spectrum(pmd.density(solution.particles, config), config).power
        return jnp.log(power).sum(), (power, solution.status.code)

    noise = pmd.white_noise(jax.random.key(0), config)
    gradient, (power, code) = jax.jit(jax.grad(spectrum, has_aux=True), out_shardings=decomposition.replicated)(noise)
    assert code == 0
    return np.asarray(power), np.asarray(gradient)


def find_halos(decomposition: pmd.Decomposition) -> dict[str, np.ndarray]:
    """Columns of the halos of points on borders, and of a clump beside a process without any, with masses."""
    points, sides = problems.friends_on_borders()
    clump = problems.lattice((8, 8, 4), sides).reshape(-1, 3)
    clump[:100] = np.random.default_rng(0).normal((6.1, 2.1, 1.1), 0.03, (100, 3))
    columns = halos_at(points, sides, decomposition)
    of_clump = halos_at(clump, sides, decomposition)
    assert (of_clump["halo_m200m"] > 0).all() and len(of_clump["halo_m200m"]) == 1
    return columns | {f"clump {name}": values for name, values in of_clump.items()}


def halos_at(points: np.ndarray, sides: np.ndarray, decomposition: pmd.Decomposition) -> dict[str, np.ndarray]:
    config = pmd.Config(tuple(sides), (8, 8, 4), halo=4, decomposition=decomposition)
    disp = points.reshape(8, 8, 4, 3) - problems.lattice((8, 8, 4), sides)
    fields = (distributed.to_devices(x, decomposition.sharding) for x in (disp, disp / 100))
    particles, cosmo = pmd.Particles(*fields), problems.cosmology()
    halos = pmd.observe.friends_of_friends(particles, cosmo, config, linking_length=0.25, a=1.0)
    return pmd.observe.overdensity_masses(halos, particles, cosmo, config).columns


def launch(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes."""
    pytest.importorskip("mpi4py")
    return mpirun(2, tmp_path, "-c", script.replace("MESSAGES", MESSAGES))


def test_two_processes_on_nodes_of_their_own_agree_with_one(tmp_path: Path) -> None:
    """On Explicit axes, while messages of the user are open, which do not meet ours. They leave in silence."""
    done = launch(tmp_path, SCRIPT)
    assert (done.returncode, done.stderr) == (0, "restrest"), done.stdout
    power, gradient = simulate(pmd.Decomposition(pdims=(1, 1)))
    with np.load(tmp_path / "result.npz") as theirs:
        np.testing.assert_allclose(theirs["power"], power, rtol=1e-11)
        np.testing.assert_allclose(theirs["gradient"], gradient, rtol=0, atol=1e-11 * np.abs(gradient).max())
        for name, values in find_halos(pmd.Decomposition(pdims=(1, 1))).items():
            np.testing.assert_array_equal(theirs[name], values)


@pytest.mark.slow
def test_messages_of_the_user_who_initialises_mpi_do_not_meet_ours(tmp_path: Path) -> None:
    """Up to an exception of one process, which ends both; the other one has nothing to say."""
    done = launch(tmp_path, TRAFFIC)
    assert "MPI_ABORT was invoked on rank 1" in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "ValueError: of one process" in done.stderr


def test_a_process_that_can_not_join_or_leaves_alone_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former at once, the latter after a time in which the others may leave, too."""
    monkeypatch.setattr(distributed, "_communicator", Node(3, 3, 2))
    monkeypatch.setattr(distributed, "abort", sys.exit)
    with pytest.raises(SystemExit, match="2"):
        distributed.leave(2)
    aborted = threading.Event()
    monkeypatch.setattr(distributed, "abort", lambda code: aborted.set())
    monkeypatch.setattr(distributed, "_END_TIMEOUT", 0.1)
    monkeypatch.setattr(distributed, "silence", lambda stream: None)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: aborted.wait(10))  # until the others shut down, too
    monkeypatch.setattr(distributed, "_free", lambda **options: None)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="1"):
        distributed.leave(1)
    assert aborted.is_set()


class Node:
    """A communicator of processes of which so many are on this node."""

    def __init__(self, size: int, here: int, rank: int):
        self.size, self.here, self.rank = size, here, rank

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return self.rank

    def Split_type(self, kind: Any) -> Node:
        del kind
        return Node(self.here, self.here, self.rank % self.here)

    def Free(self) -> None:
        pass

    def allgather(self, one: Any) -> list[Any]:
        return [one]

    def bcast(self, value: Any, root: int) -> Any:
        return value if self.rank == root else ("from the root", "key")


def test_processes_on_several_nodes_meet_and_choose_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setattr("socket.gethostbyname", lambda name: "10.0.0.7")
    address, local_rank, key = launcher.coordinator(Node(8, 4, 0))
    assert address.startswith("10.0.0.7:")
    assert (local_rank, key) == (0, None)
    assert launcher.coordinator(Node(8, 4, 6)) == ("from the root", 2, "key")
    assert len({launcher.coordinator(Node(4, 4, 0))[2] for _ in range(2)} - {None}) == 2
    monkeypatch.setattr("socket.gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert launcher.coordinator(Node(8, 4, 0))[0].startswith("node7:")
    assert launcher.coordinator(Node(4, 4, 0))[0].startswith("127.0.0.1:")

    def unknown(name: str) -> str:
        raise OSError(f"{name} is not known")

    monkeypatch.setattr("socket.gethostbyname", unknown)
    assert launcher.coordinator(Node(8, 4, 0))[0].startswith("node7:")
    assert launcher.coordinator(Node(4, 4, 0))[0].startswith("127.0.0.1:")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launcher.local_device(2) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # each process sees its own alone
    assert launcher.local_device(2) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert launcher.local_device(2) == 2
    with pytest.raises(RuntimeError, match="process 4 of this node finds 4 GPUs in CUDA_VISIBLE_DEVICES"):
        launcher.local_device(4)


def test_processes_with_other_options_of_jax_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers, for example, would be others, silently; places of logs and caches may differ."""

    class Two(Node):
        def allgather(self, one: Any) -> list[Any]:
            assert not any("cache" in name for name in one)
            return [one, one | {"jax_random_seed_offset": "7"}]

    monkeypatch.setattr(distributed, "launched_size", lambda: 2)
    monkeypatch.setattr(distributed, "_problem_of_mpi", lambda: "")
    monkeypatch.setattr(distributed, "_abort_after_exceptions", lambda: None)
    monkeypatch.setattr(distributed, "communicator", lambda: Two(2, 2, 0))
    with pytest.raises(RuntimeError, match="option jax_random_seed_offset of JAX is '7' in process 1, and '0' in pro"):
        distributed.initialize()


SHELL = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PTY_PORT": "40000"}  # the environment of `srun --pty`
MPI_IN_SHELL = SHELL | {"SLURM_STEP_ID": "0", "PMI_SIZE": "8"}
# Environment, whether standard input is a terminal and the process leads its session, and the number of processes.
LAUNCHES: list[tuple[dict[str, str], bool, bool, int]] = [
    ({}, True, False, 1),
    ({"SLURM_NTASKS": "8"}, False, False, 1),  # a batch script, outside srun
    ({"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, True, False, 1),  # salloc, a step of one task
    ({"SLURM_STEP_NUM_TASKS": "8"}, True, False, 8),
    (SHELL, False, False, 8),  # a program that srun or mpirun starts in this shell
    (SHELL, True, True, 8),  # the first task of `srun --pty pmwd-dist`
    (SHELL, True, False, 1),
    (MPI_IN_SHELL | {"OMPI_COMM_WORLD_SIZE": "4"}, True, False, 4),
    (MPI_IN_SHELL | {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, True, False, 2),
    ({"SLURM_STEP_NUM_TASKS": "8", "PMWD_ALONE": "1"}, False, False, 1),
]


@pytest.mark.parametrize(("environment", "terminal", "leader", "size"), LAUNCHES)
def test_processes_are_counted_as_launchers_started_them(
    environment: dict[str, str], terminal: bool, leader: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in launcher.SIZES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "isatty", lambda fd: terminal and fd == 0)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid() if leader else os.getppid())
    assert distributed.launched_size() == size
    if size == 1:
        distributed.warn_if_apart.cache_clear()
        pmd.Decomposition()  # does not warn
        distributed.initialize()
        distributed.barrier()
    assert not jax.distributed.is_initialized()
    assert distributed.is_main()


def test_in_the_shell_of_srun_one_process_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    monkeypatch.setattr(os, "getsid", lambda pid: os.getppid())
    distributed.initialize()
    assert "one process runs, as this is the shell of `srun --pty`" in capsys.readouterr().err


@pytest.mark.slow
def test_waiting_for_processes_is_said_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal at once, and by its own bound before JAX aborts with a stack trace."""
    tasks = {"NTASKS": "8", "STEP_NUM_TASKS": "8", "PROCID": "0", "LOCALID": "0", "STEP_ID": "0"}
    tasks |= {"STEP_NODELIST": "localhost", "STEP_NUM_NODES": "1"}
    for name, value in tasks.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    started = []
    for job, (end, bound) in enumerate([(signal.SIGINT, 200), (signal.SIGTERM, 200), (None, 2)]):
        lines = ["from pmwd_dist import distributed", f"import {distributed.__name__} as module"]
        lines += [f"module._NOTICE, module._START_TIMEOUT = 1, {bound}", "distributed.initialize()"]
        process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(lines)],
            env=os.environ | {"SLURM_JOB_ID": str(os.getpid() + job)},  # JAX's port
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((end, process))
    for end, process in started:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            assert "waiting for 8 processes to start, on localhost; PMWD_ALONE=1" in first
            if end is not None:
                process.send_signal(end)
            with process.stderr as stream:
                rest = stream.read()  # `communicate` would leave out what `readline` has read ahead
            process.wait(timeout=20)
        finally:
            process.kill()
        if end is None:
            assert (process.returncode, rest) == (
                1,
                "pmwd-dist: gave up waiting for 8 processes to start, on localhost\n",
            )
        else:
            assert (process.returncode, rest) == (-end, "")


@pytest.mark.parametrize("name", launcher.SIZES)
def test_processes_that_jax_does_not_know_are_a_warning_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Else all of them would run the whole program and write the same files."""
    monkeypatch.setenv(name, "2")
    distributed.warn_if_apart.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"2 processes were started, but JAX knows 1: .*distributed.initialize\(\)"):
        pmd.Decomposition()
    pmd.Decomposition((2, 2))


def test_alone_a_whole_array_is_gathered(parallel: pmd.Decomposition) -> None:
    field = np.arange(8.0**3).reshape(8, 8, 8)
    np.testing.assert_array_equal(distributed.gather(jax.device_put(field, parallel.sharding)), field)


@pytest.mark.parametrize("mpi4py", ["missing", "apart"])
def test_under_srun_jax_starts_by_itself_where_mpi_does_not_join(monkeypatch: pytest.MonkeyPatch, mpi4py: str) -> None:
    """Else every process would run the whole program."""
    methods, hook = [], sys.excepthook

    def join(**how: Any) -> None:
        assert sys.excepthook is not hook  # an error in here ends all processes
        methods.append(how["cluster_detection_method"])

    monkeypatch.setattr(jax.distributed, "initialize", join)
    monkeypatch.setattr(sys, "excepthook", hook)  # which `initialize` replaces
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    if mpi4py == "missing":
        monkeypatch.setitem(sys.modules, "mpi4py", None)
        monkeypatch.setattr(distributed, "_communicator", None)
    else:
        monkeypatch.setattr(distributed, "_communicator", Node(1, 1, 0))
    monkeypatch.setattr(distributed, "_host_key", None)
    distributed.initialize()
    assert (methods, distributed.host_key()) == (["slurm"], None)
    for name, value in (("SLURM_JOB_ID", "12"), ("SLURM_STEP_NUM_NODES", "1")):
        monkeypatch.setenv(name, value)
    distributed.initialize()
    assert distributed.host_key() == "12-0"


def test_different_numbers_of_devices_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process: [None] * (process + 1))
    with pytest.raises(RuntimeError, match="process 1 has 2 devices, and process 0 1; give each the same number"):
        distributed.first_collective()


def test_the_mpirun_of_another_mpi_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shell of srun too: it does not wait for Slurm."""
    for name, value in (MPI_IN_SHELL | {"OMPI_COMM_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "_communicator", Node(1, 1, 0))
    with pytest.raises(RuntimeError, match="2 processes were started, but mpi4py counts 1: .* another MPI than mpi4py"):
        distributed.initialize()


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match="2 processes were started, but mpi4py does not load .*pip install mpi4py"):
        distributed.initialize()


@pytest.mark.parametrize(
    ("bound", "cores", "said"),
    [
        ([{0}, {1}], 32, "may use 1 core of 32"),
        ([{0, 16}, {1, 17}], 32, "may use 2 cores of 32"),
        ([{0}, {1}], 2, None),
        ([set(range(8)), set(range(8, 16))], 64, None),
        ([set(), set()], 32, None),  # a system that does not tell
    ],
)
def test_a_launcher_that_binds_processes_to_few_cores_is_named(bound, cores, said):
    note = launcher.narrow_binding(bound, cores)
    assert (note is None) if said is None else said in note and "mpirun --bind-to none" in note


# Both processes talk to each other all the time, until one of them sends itself a signal.
TALK = """
import os, signal, sys
from pmwd_dist.cli import commands, main
from pmwd_dist.parallel import distributed

def talk(folder):
    for i in range(10**9):
        distributed.all_processes(True)
        if i == 20 and not distributed.is_main():
            os.kill(os.getpid(), int(sys.argv[1]))

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which mpirun ends the others, perhaps before they speak
distributed.initialize(heartbeat_timeout=3)
commands.report_lines = talk
main(["doctor"])
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_where_one_is_killed_or_stopped(number: int, tmp_path: Path) -> None:
    """At once and in one line after a kill; within the time of the heartbeats where a process does not answer."""
    began = time.perf_counter()
    done = mpirun(2, tmp_path, "-c", TALK, str(int(number)))
    assert done.returncode != 0
    assert "internal error" not in done.stderr
    if number == signal.SIGKILL:
        line = r"^pmwd-dist: process 0: the run failed: the connection to another process is lost .*resume DIR`$"
        assert re.search(line, done.stderr, re.MULTILINE), done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert "stopped sending heartbeats" in done.stderr
        assert time.perf_counter() - began < 60  # nearly all of it for the start
