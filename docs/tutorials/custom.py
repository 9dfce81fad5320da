# %% [markdown]
# # Custom model with NumPyro or blackjax
#
# A simulation is a JAX function, so any sampler for JAX can call it. This page writes a model in NumPyro's language,
# with a forward model that is not in the library, and then samples it with blackjax.

# %%
import blackjax
import jax
import jax.numpy as jnp
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model

import pmwd_dist as pmd

config = pmd.Config(box_size=200.0, mesh_shape=8, a_stop=1.0, lpt_order=2, decomposition=(1, 1))

# %% [markdown]
# ## A forward model
#
# Let the data be the logarithm of the smoothed density of matter, for an unknown $\sigma_8$. Particles by second-order
# LPT are enough for cells of 25 Mpc/h. The filter of 15 Mpc/h is one line in Fourier space.

# %%
kx, ky, kz = pmd.fftfreq3d(config.mesh_shape, config.decomposition, box_size=200.0)
window = jnp.exp(-(kx**2 + ky**2 + kz**2) * 15.0**2 / 2)


def predict(noise, sigma8):
    cosmo = pmd.growth_table(jax_cosmo.Planck15(sigma8=sigma8))
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config, a=1.0)
    modes = pmd.prfft3d(pmd.density(particles, config), config.decomposition)
    return jnp.log(jnp.maximum(pmd.pirfft3d(modes * window, config.mesh_shape, config.decomposition), 1e-3))


# %% [markdown]
# ## The model
#
# $$ n \sim \mathcal{N}(0, 1), \qquad \sigma_8 \sim \mathcal{U}(0.4, 1.4), \qquad
# d \sim \mathcal{N}(\ln \rho(n, \sigma_8),\, 0.05^2) $$


# %%
def model(data=None):
    noise = numpyro.sample("noise", dist.Normal(0.0, 1.0).expand(config.particle_shape).to_event(3))
    sigma8 = numpyro.sample("sigma8", dist.Uniform(0.4, 1.4))
    numpyro.sample("data", dist.Normal(predict(noise, sigma8), 0.05).to_event(3), obs=data)


true_noise = pmd.white_noise(jax.random.key(0), config)
data = predict(true_noise, 0.8) + 0.05 * jax.random.normal(jax.random.key(1), config.mesh_shape)

# %% [markdown]
# ## NumPyro
#
# NUTS needs gradients of the log density, which it takes through the simulation by itself.

# %%
kernel = NUTS(model, init_strategy=numpyro.infer.init_to_sample, max_tree_depth=5)
mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
mcmc.run(jax.random.key(2), data)
by_numpyro = np.asarray(mcmc.get_samples()["sigma8"])
print(f"sigma8 = {by_numpyro.mean():.3f} ± {by_numpyro.std():.3f}, truth 0.8")
print("divergences:", int(mcmc.get_extra_fields()["diverging"].sum()))

# %% [markdown]
# ## blackjax
#
# blackjax takes a log density of unconstrained variables. NumPyro derives it from the same model.

# %%
info = initialize_model(jax.random.key(3), model, model_args=(data,), init_strategy=numpyro.infer.init_to_sample)
start = info.param_info.z


def logdensity(position):
    return -info.potential_fn(position)


warmup = blackjax.window_adaptation(blackjax.nuts, logdensity, max_num_doublings=5)
(state, tuned), _ = jax.jit(warmup.run, static_argnums=2)(jax.random.key(4), start, 100)
step = blackjax.nuts(logdensity, **tuned).step


@jax.jit
def sample(state, keys):
    def once(state, key):
        state, _ = step(key, state)
        return state, info.postprocess_fn(state.position)["sigma8"]

    return jax.lax.scan(once, state, keys)


_, by_blackjax = sample(state, jax.random.split(jax.random.key(5), 200))
print(f"sigma8 = {by_blackjax.mean():.3f} ± {by_blackjax.std():.3f}, truth 0.8")

# %% [markdown]
# Two programs, one posterior: the histograms should agree within their sampling errors.

# %%
figure, panel = plt.subplots(figsize=(6, 3))
bins = np.linspace(by_numpyro.min(), by_numpyro.max(), 25)
panel.hist(by_numpyro, bins, histtype="step", label="NumPyro")
panel.hist(np.asarray(by_blackjax), bins, histtype="step", label="blackjax")
panel.axvline(0.8, color="k", ls="--", lw=1, label="truth")
panel.set(xlabel=r"$\sigma_8$", ylabel="draws")
panel.legend()

# %% [markdown]
# Both samplers join all variables in one array, on one device. The samplers of `pmd.infer` work on divided fields, take
# a [likelihood of your own](../howto/likelihood.md), and `posterior.numpyro_model` hands their models to NumPyro.
