"""The posterior of this package, sampled by NumPyro's NUTS: `pip install '.[numpyro]'`.

python sims/infer_numpyro.py        # 24 s of one core, most of it compilation
"""

import jax
import jax_cosmo
import numpyro
from numpyro.infer import MCMC, NUTS

import pmwd_dist as pmd
from pmwd_dist import infer

pmd.enable_compilation_cache()
config = pmd.Config(box_size=80.0, mesh_shape=8, a_stop=0.5, decomposition=(1, 1))
forward = infer.LinearField(config, jax_cosmo.Planck15(), bias="b1", line_of_sight="z")
priors = {"b1": infer.Normal(1.5, 0.5, low=0.1)}
model = infer.Model(config, forward, priors, infer.Gaussian(sigma=0.5))
truth = model.draw(jax.random.key(0), b1=1.8)
posterior = model.condition(model.mock(jax.random.key(1), truth))

# Its sites are standard normal but for a factor, and a sample of them is where the noise is likely to be: NumPyro's own
# starts may be where the simulation fails. dense_mass stays False: the preconditioner has done that.
kernel = NUTS(posterior.numpyro_model, init_strategy=numpyro.infer.init_to_sample)
mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
mcmc.run(jax.random.key(2))

b1 = mcmc.get_samples()["b1"]  # and infer.numpyro_position(mcmc.get_samples()) are positions
print(f"b1 {b1.mean():.3f} ± {b1.std():.3f}, truth 1.8, by NumPyro {numpyro.__version__}")
print("divergences:", int(mcmc.get_extra_fields()["diverging"].sum()))
