# %% [markdown]
# # First field-level inference with its checks
#
# Data on a mesh constrain all initial modes and the parameters together. This page makes a mock survey, samples its
# posterior, and checks the result: did the chains mix, does the truth lie where the posterior says, and does the model
# fit the data.

# %%
import tempfile

import jax
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer

config = pmd.Config(box_size=120.0, mesh_shape=12, a_stop=0.5, decomposition=(1, 1))

# %% [markdown]
# ## Model
#
# The unknowns are white noise $n$ in $12^3$ cells and the bias $b_1$. The posterior density is
#
# $$ p(n, b_1 \mid d) \propto p(d \mid f(n, b_1))\; p(n)\; p(b_1) , $$
#
# with a forward model $f$. Here $f$ is linear theory in redshift space, $1 + (b_1 + f \mu^2) D_1 \delta$, and the data
# have Gaussian noise of 1 in each cell. A parameter is sampled if it has a prior.

# %%
forward = infer.LinearField(config, jax_cosmo.Planck15(), bias="b1", line_of_sight="z")
model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5, low=0.1)}, infer.Gaussian(sigma=1.0))

# %% [markdown]
# ## Mock data
#
# The truth is a draw from the prior with a bias that we choose.

# %%
truth = model.draw(jax.random.key(0), b1=1.8)
data = model.mock(jax.random.key(1), truth)

# %% [markdown]
# ## Chains
#
# Every chain needs a start of its own. Each mode is rescaled, first by its width in linear theory and then by what the
# tuning sees, so that the posterior becomes round for the sampler. Tuning also finds the step size, then the chains
# run. A result that you publish takes more steps than these.

# %%
posterior = model.condition(data)
starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(2), 4))
with tempfile.TemporaryDirectory() as folder:
    sizes = {"tuning_steps": 1000, "steps": 1000, "chunk": 100}
    chain = infer.sample(posterior, starts, key=jax.random.key(3), output=folder, keep_noise=True, **sizes)

# %% [markdown]
# ## Check 1: did the chains mix?
#
# R-hat compares the scatter between chains with the scatter within them. Near 1 (below 1.01 for a result) they agree.
# The effective sample size is the number of independent draws with the same error of the mean.

# %%
row = chain.summary()["b1"]
print({name: round(float(value), 3) for name, value in row.items()})
pmd.plot.traces(chain, truth={"b1": 1.8})

# %% [markdown]
# The traces of all chains cover the same range, without a trend. The modes of the field must mix, too, at every
# wavenumber:

# %%
pmd.plot.mixing(chain, r_hat=1.01)

# %% [markdown]
# ## Check 2: does the truth lie where the posterior says?
#
# The true value should lie within about two standard deviations of the mean. The data, not the prior, should have made
# the posterior narrow.

# %%
pull = (row["mean"] - 1.8) / row["sd"]
print("deviation from the truth [sd]:", round(float(pull), 1))
pmd.plot.corner(chain, priors=model.priors, truth={"b1": 1.8})

# %% [markdown]
# Now the field. The mean of the samples is a filtered map of the initial density. Where the data say little, samples
# differ and the mean is small.

# %%
noises = np.asarray(chain.noise).reshape(-1, 12, 12, 12)
linear = jax.jit(jax.vmap(lambda n: pmd.pirfft3d(pmd.linear_modes(n, jax_cosmo.Planck15(), config), (12,) * 3, (1, 1))))
fields = np.asarray(linear(noises))
true_field = np.asarray(linear(truth["noise"][None])[0])
titles = ("data", "true linear density", "mean of samples", "sd of samples")
planes = [np.asarray(field)[:, :, 0] for field in (data - 1, true_field, fields.mean(0), fields.std(0))]
pmd.plot.planes(list(zip(titles, planes, strict=True)), config.box_size, alike=(1, 2))

# %% [markdown]
# The correlation coefficient with the truth shows the scales that the data constrain. Samples scatter about the mean,
# so each alone correlates less.

# %%
figure, panel = plt.subplots(figsize=(6, 3))
for field, label in ((fields.mean(0), "mean of samples"), (fields[-1], "one sample")):
    cross = pmd.observe.cross_power(field, true_field, config, deconvolve=False)
    panel.plot(cross.k, cross.correlation, ".-", label=label)
panel.set(xlabel="k [h/Mpc]", ylabel="r(k) with the truth", ylim=(0, 1))
panel.legend()

# %% [markdown]
# ## Check 3: does the model fit?
#
# `check_fit` compares statistics of the residuals with replicated data of the model. `z` is the deviation in standard
# deviations: beyond 3 or so, the model does not describe the data.

# %%
shape = chain.noise.shape[:2]
parameters = {"b1": np.asarray(chain.parameters["b1"])[:, 99::100].T[: shape[0]].ravel()}
checks = infer.check_fit(posterior, noises, parameters, jax.random.key(4))
worst = max(checks, key=lambda name: abs(checks[name].z))
print(len(checks), "statistics; the largest deviation is", f"{checks[worst].z:.1f} sd in {worst!r}")

# %% [markdown]
# A wrong model fails. Here the data get noise of 1.1, while the model assumes 1:

# %%
noisy = data + 0.46 * jax.random.normal(jax.random.key(5), data.shape)
wrong = model.condition(noisy)
checks = infer.check_fit(wrong, noises, parameters, jax.random.key(4))
worst = max(checks, key=lambda name: abs(checks[name].z))
print("the largest deviation is", f"{checks[worst].z:.1f} sd in {worst!r}")

# %% [markdown]
# For galaxies of a simulation replace the forward model by `infer.Simulation`, as in [First
# survey](../start/survey.md). Runs from a config file do all these checks and write a verdict: see [Inference
# from data](../howto/inference.md).
