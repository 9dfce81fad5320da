"""A likelihood of one's own: Student's t, which outliers in the data don't disturb.

python sims/infer_own_likelihood.py        # 1 min of CPU time
"""

import tempfile

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer


class StudentT(infer.Likelihood):
    """Noise with four degrees of freedom; the parameter `width` is its width in a cell."""

    name = "width"

    def logdensity(self, data, field, parameters, config):
        """Logarithm of the density of the data, up to a constant."""
        t = (data - field) / parameters["width"]
        return -2.5 * jnp.sum(jnp.log1p(t**2 / 4)) - data.size * jnp.log(parameters["width"])

    def draw(self, key, field, parameters, config):
        """Data at random."""
        return field + parameters["width"] * jax.random.t(key, 4.0, field.shape, field.dtype)

    def check(self, data, config):
        """Raise ValueError unless data are finite."""
        if not np.isfinite(data).all():
            raise ValueError("data hold values that are no finite numbers")

    def contrast(self, data, parameters):
        """The data as a density contrast, for preconditioning."""
        return data - 1

    def noise_variance(self, parameters, config):
        """Variance of a cell, for preconditioning."""
        return 2 * parameters["width"] ** 2


pmd.enable_compilation_cache()
config = pmd.Config(box_size=80.0, mesh_shape=8, a_stop=0.5, decomposition=(1, 1))
forward = infer.LinearField(config, jax_cosmo.Planck15(), bias="b1", line_of_sight="z")
priors = {"b1": infer.Normal(1.5, 0.5, low=0.1), "width": infer.LogNormal(1.0, 0.5)}
model = infer.Model(config, forward, priors, StudentT())
data = (
    model.mock(jax.random.key(1), model.draw(jax.random.key(0), b1=1.8, width=0.8)).at[2, 3, 4].set(50.0)
)  # an outlier
posterior = model.condition(data)
starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(2), 2))
with tempfile.TemporaryDirectory() as folder:
    chain = infer.sample(posterior, starts, key=jax.random.key(3), tuning_steps=1000, steps=4000, output=folder)
for name, truth in (("b1", 1.8), ("width", 0.8)):
    print(name, {key: round(value, 4) for key, value in chain.summary()[name].items()}, f"truth {truth}")
