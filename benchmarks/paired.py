"""Forward runs and gradients of two versions side by side: `python benchmarks/paired.py BASE_PYTHON HEAD_PYTHON`.

Each argument is an interpreter in whose environment a version is installed. Both processes compile first, then run by
turns, so that a change of the machine's load changes both. Ends with 1 if the head is slower than the limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

PAIRS, LIMIT = 15, 1.15
WORKER = """
import json, sys, time
import jax, jax_cosmo
import pmwd_dist as pmd

config = pmd.Config(box_size=128.0, mesh_shape=64, steps=5, decomposition=(1, 1))
cosmo = pmd.growth_table(jax_cosmo.Planck15())

def forward(noise):
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    return (pmd.density(pmd.nbody(particles, cosmo, config).particles, config) ** 2).mean()

programs = {"forward": jax.jit(forward), "gradient": jax.jit(jax.grad(forward))}
noise = pmd.white_noise(jax.random.key(0), config)
for program in programs.values():
    jax.block_until_ready(program(noise))
for _ in sys.stdin:
    times = {}
    for name, program in programs.items():
        began = time.perf_counter()
        jax.block_until_ready(program(noise))
        times[name] = time.perf_counter() - began
    print(json.dumps(times), flush=True)
"""


def main(base: str, head: str, pairs: int = PAIRS) -> int:
    """Print the median ratio of each program, head over base; 1 if one is over the limit."""
    workers = [
        subprocess.Popen([python, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for python in (base, head)
    ]
    rows = []
    for i in range(pairs):
        times = {}
        for j in (i % 2, 1 - i % 2):
            workers[j].stdin.write("\n")  # type: ignore[union-attr]
            workers[j].stdin.flush()  # type: ignore[union-attr]
            times[j] = json.loads(workers[j].stdout.readline())  # type: ignore[union-attr]
        rows.append({name: (times[0][name], times[1][name]) for name in times[0]})
    for worker in workers:
        worker.communicate()
    slower = False
    for name in rows[0]:
        ratio = median(after / before for before, after in (row[name] for row in rows))
        print(f"{name:10} base {1e3 * median(row[name][0] for row in rows):8.1f} ms   head/base {ratio:.3f}")
        slower |= ratio > LIMIT
    return int(slower)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
