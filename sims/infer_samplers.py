"""Sample initial modes and a bias with the samplers of this package, and the loop in one's own hands.

python sims/infer_samplers.py        # 30 s of CPU time
"""

from functools import partial

import jax
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer import mclmc

pmd.enable_compilation_cache()
config = pmd.Config(box_size=80.0, mesh_shape=8, a_stop=0.5, decomposition=(1, 1))
forward = infer.LinearField(config, jax_cosmo.Planck15(), bias="b1", line_of_sight="z")
model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5, low=0.1)}, infer.Gaussian(sigma=0.5))
truth = model.draw(jax.random.key(0), b1=1.8)
posterior = model.condition(model.mock(jax.random.key(1), truth))

dimensions = 8**3 + 1
step = partial(mclmc.step, logdensity=posterior.logdensity, L=dimensions**0.5, step_size=0.7 * dimensions**0.5)


@jax.jit
@jax.vmap
def chain(key):
    """Bias and energy error of 1000 steps."""
    start, direction, key = jax.random.split(key, 3)
    state = mclmc.init(direction, posterior.initial(start), posterior.logdensity)

    def once(state, key):
        state, info = step(key, state)
        return state, (posterior.parameters(state.position)["b1"], info.energy_change)

    return jax.lax.scan(once, state, jax.random.split(key, 1000))[1]


b1, energy = chain(jax.random.split(jax.random.key(2), 4))
b1, energy = np.asarray(b1)[:, 200:], np.asarray(energy)[:, 200:]
print({name: round(value, 4) for name, value in infer.summary({"b1": b1})["b1"].items()}, "truth 1.8")
print("energy error a dimension:", infer.energy_errors(energy, dimensions)["variance"])
