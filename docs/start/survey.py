# %% [markdown]
# # First survey
#
# This page goes through a survey from end to end: a cosmology, a mock catalogue of galaxies, counts of them in cells,
# the posterior of the initial density and the parameters, and its figures. The settings stand in
# `sims/first_survey.toml`.

# %%
import tempfile

import jax
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer, observe

FILE = "sims/first_survey.toml"  # a box of 160 Mpc/h with 16^3 cells, at z = 1
run = pmd.load_config(FILE, ["noise.nested=true"])
config, cosmo = run.config, pmd.growth_table(run.cosmo)

# %% [markdown]
# ## A universe
#
# The mock is an N-body simulation, with finer particles than the model below. Nested noise has the same long
# waves on both lattices.

# %%
mock = pmd.load_config(FILE, ["box.mesh=64", "noise.nested=true", "time.steps=10"])
modes = pmd.linear_modes(mock.noise, cosmo, mock.config)
start = pmd.lpt(modes, cosmo, mock.config)
particles = pmd.nbody(start, cosmo, mock.config).raise_if_failed().particles
pmd.plot.density(pmd.density(particles, mock.config), config.box_size, thickness=10.0)

# %% [markdown]
# ## A catalogue
#
# Galaxies have the bias 1 + b1 on large scales. The survey sees them in redshift space, fewer of the distant ones, and
# none behind a mask.

# %%
bias = observe.LagrangianBias(b1=0.8)
weights = observe.bias_weights(modes, bias, cosmo, mock.config, smoothing=10.0)
galaxies = observe.galaxy_catalogue(
    particles, cosmo, mock.config, key=jax.random.key(1), number_density=5e-4, weights=weights
)
positions = galaxies.columns["RedshiftSpacePosition"]  # [Mpc/h], redshifts along z


def completeness(x, y, z):
    return np.where((x > 105) & (y > 105), 0.0, 1 - z / 250)


seen = np.random.default_rng(2).random(len(positions)) < completeness(*positions.T)
positions = positions[seen]
figure, panel = plt.subplots(figsize=(4.8, 4))
near = positions[:, 0] < 40
panel.plot(positions[near, 2], positions[near, 1], ".", ms=3)
panel.set(xlabel="z [Mpc/h], line of sight", ylabel="y [Mpc/h]", title=f"{len(positions)} galaxies")
panel.set_aspect("equal")

# %% [markdown]
# ## Data
#
# Counts in cells are the data, with the selection and the mask of the survey.

# %%
cells = np.indices(config.mesh_shape) * 10.0  # centres of the cells that count the nearest galaxies
selection = completeness(*cells)
mask = selection > 0
counts = observe.counts_from_catalogue(positions, config)
pmd.plot.planes([("counts", counts.sum(2)), ("selection", selection.mean(2))], config.box_size)

# %% [markdown]
# ## Posterior
#
# Counts are Poisson numbers around $\bar n\, S\, (1 + \delta_g)$, with the selection S and a density of galaxies
# $\delta_g$ from Lagrangian perturbation theory. Chains start far apart, are tuned together, and draw the initial noise
# with all parameters that have a prior.

# %%
model = infer.Model(
    config,
    infer.Simulation(
        config,
        cosmo,
        gravity="lpt",
        observable=infer.LagrangianGalaxies(b1="b1", smoothing=10.0, line_of_sight="z", window="nearest"),
    ),
    {"sigma8": infer.Normal(0.8, 0.15, low=0.1), "b1": infer.Normal(0.5, 0.7, low=-0.5)},
    infer.Poisson(0.5, selection=selection, mask=mask),
)
posterior = model.condition(counts)
starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(3), 4))
with tempfile.TemporaryDirectory() as folder:
    sizes = {"tuning_steps": 800, "steps": 4000, "thin": 4, "chunk": 100}
    chain = infer.sample(posterior, starts, key=jax.random.key(4), output=folder, keep_noise=True, **sizes)
for name, row in chain.summary().items():
    print(name, {key: round(float(value), 3) for key, value in row.items()})

# %% [markdown]
# The truth lies within the contours:

# %%
pmd.plot.corner(chain, priors=model.priors, truth={"sigma8": 0.8102, "b1": 0.8})

# %% [markdown]
# R-hat above 1.01 asks for more steps: [Infer initial conditions](../howto/inference.md#what-to-check) has all checks.
# With four times as many galaxies this posterior misses the truth by more than 3 sd: the counts are then more precise
# than Lagrangian perturbation theory in cells of 10 Mpc/h, and the model needs finer particles.
#
# The initial density, in a plane of cells, is known where the survey sees galaxies:

# %%
linear = jax.jit(jax.vmap(lambda x: pmd.pirfft3d(pmd.linear_modes(x, cosmo, config), (16,) * 3, (1, 1))))
fields = np.asarray(linear(np.asarray(chain.noise).reshape(-1, 16, 16, 16)))
truth = linear(run.noise[None])[0]
titles = ("true linear density", "mean of samples", "sd of samples")
planes = [np.asarray(field)[:, :, 4] for field in (truth, fields.mean(0), fields.std(0))]
pmd.plot.planes(list(zip(titles, planes, strict=True)), config.box_size, alike=(0, 1))

# %% [markdown]
# ## From the command line
#
# The file draws a mock of its own. Counts of a survey take its place by keys that name files: `data.file`,
# `data.selection` and `data.mask`.
#
# ```bash
# pmwd-dist infer sims/first_survey.toml --output runs/survey
# ```
#
# The run ends with a verdict, and `runs/survey/report.html` shows these figures. Next: [galaxies on the light
# cone](../tutorials/survey.md), [data of a survey](../howto/inference.md#data-of-a-survey).
