"""Time pmwd_dist side by side with its peers, on one and the same work: `python -m benchmarks`, in a source tree.

The work: n^3 particles and a mesh of n^3, box 2n Mpc/h, flat LCDM, 2LPT at a = 0.1, ten steps to a = 1, float32,
one device.

  forward   the ten steps, particles to particles [ms a step]
  gradient  mean((1 + delta)^2) at a = 1 and its gradient in the white noise, initial conditions included [s in all]
  paint     the mesh of the particles at a = 1 [ms]
  force     paint, solve and read at the particles at a = 1 [ms]

Every (code, case, size) runs in a process of its own. Its inputs come from a file, so that nothing else counts. It
compiles (reported separately) and runs once to warm up. On a CPU, each round then has a turn of every code, so that a
busy machine is equally busy for all; on a GPU, where they would share its memory, they run one after the other. Times
are medians.

P(k) of each code at a = 1 is compared with ours for k < 0.15 h/Mpc; how far it may differ stands in `codes`.

Peak bytes are counted in the warm-up run, inputs and outputs included; in the forward case codes may put their results
where their inputs were (the inputs are donated). On a GPU: the allocator's peak_bytes_in_use.
On a CPU: the high-water mark of the resident memory (reset just before the run), less the resident memory after
imports and compilation, freed memory returned, before the inputs were loaded.

The floor of a step is `benchmarks.problem.FLOOR_BYTES` a particle over the bandwidth of a large copy,
measured in the same invocation, bytes read plus bytes written.
"""

from benchmarks.driver import CASES as CASES
from benchmarks.driver import run as run
from benchmarks.table import markdown as markdown
