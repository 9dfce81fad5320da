# %% [markdown]
# # A galaxy survey on the light cone
#
# A survey sees galaxies on its past light cone: each at the time when its light left, in a direction, at a redshift.
# This page makes such a catalogue during an N-body run, and then turns the way around: it predicts the counts of the
# survey, and compares cosmologies with them.

# %%
import jax
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer, observe

config = pmd.Config(box_size=320.0, mesh_shape=32, a_start=0.2, steps=10, decomposition=(1, 1))
cosmo = pmd.growth_table(jax_cosmo.Planck15())
noise = pmd.white_noise(jax.random.key(0), config)
modes = pmd.linear_modes(noise, cosmo, config)

# %% [markdown]
# ## The survey
#
# A survey has a number density by redshift, n(z), a mask on the sky, and errors. This one sees half of the galaxies on
# the whole sky.

# %%
survey = observe.Survey(n_z=([0.01, 0.03, 0.05], [2e-2, 2e-2, 4e-3]), completeness=0.5)


def weights(a):
    bias = observe.LagrangianBias(b1=0.5)
    return observe.bias_weights(modes, bias, cosmo, config, smoothing=16.0, a=a)


particles = pmd.lpt(modes, cosmo, config)
galaxies = observe.galaxy_light_cone(particles, cosmo, config, survey, key=jax.random.key(1), weights=weights)
print(len(galaxies), "galaxies,", round(survey.number(cosmo)), "expected on average")

# %% [markdown]
# The columns are `RA`, `DEC`, the observed redshift `Z`, which holds peculiar velocities, and `Z_COSMO`, which does
# not. The observer is in the centre of the box.

# %%
pmd.plot.wedge(galaxies.columns, thickness=20.0)

# %% [markdown]
# ## Randoms
#
# Random points with the same selection show what is structure and what is the survey.

# %%
randoms = observe.random_catalogue(survey, cosmo, key=jax.random.key(2), number=20 * len(galaxies))
figure, panel = plt.subplots(figsize=(5.4, 3.8))
bins = np.linspace(0.01, 0.05, 24)
for columns, name, weight in ((galaxies.columns, "galaxies", 1.0), (randoms.columns, "randoms / 20", 0.05)):
    panel.hist(columns["Z"], bins, weights=np.full(len(columns["Z"]), weight), histtype="step", label=name)
panel.set(xlabel="Z", ylabel="number")
panel.legend()

# %% [markdown]
# ## Counts on a mesh
#
# Distances follow from redshifts in a fiducial cosmology. They place the galaxies in cells around the observer, and
# give each cell the selection of the survey. Here the survey observes one galaxy in a hundred.

# %%
sparse = observe.Survey(survey.n_z, completeness=0.01)
galaxies = observe.galaxy_light_cone(particles, cosmo, config, sparse, key=jax.random.key(3), weights=weights)
observer = (160.0, 160.0, 160.0)
positions = observe.comoving_positions(galaxies.columns, cosmo, observer=observer)
counts = observe.counts_from_catalogue(positions, config)
selection = observe.survey_selection(sparse, cosmo, config, observer=observer)
nbar = float(sparse.n_z[1].max()) * sparse.completeness * np.prod(config.cell_size)

# %% [markdown]
# ## The same as a forward model
#
# `Simulation` with an observer predicts these counts. Particles are painted when light passes them, where the
# *fiducial* distance of their redshift puts them: with another $\Omega_m$ the same redshifts mean other places, which
# is the Alcock-Paczynski effect. The prediction is differentiable in the noise and in all parameters.

# %%
options = {"b1": "b1", "smoothing": 16.0, "window": "nearest"}
forward = infer.Simulation(config, cosmo, observable=infer.LagrangianGalaxies(**options), observer=observer)
likelihood = infer.Poisson(nbar, selection=selection, mask=selection > 0)  # cells at the edges may hold some galaxies


@jax.jit
def log_probability(Omega_m, b1):
    field, _ = forward(noise, {"Omega_m": Omega_m, "b1": b1})
    return likelihood.logdensity(counts, field, {}, config)


Omega_m = float(cosmo.cosmo.Omega_m)
figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.6), sharey=True)
for panel, values, name in (
    (axes[0], Omega_m + np.linspace(-0.05, 0.05, 7), r"$\Omega_m$"),
    (axes[1], np.linspace(0.2, 0.8, 7), "$b_1$"),
):
    curve = [log_probability(x, 0.5) if panel is axes[0] else log_probability(Omega_m, x) for x in values]
    panel.plot(values, np.array(curve) - np.max(curve), "o-")
    panel.axvline(Omega_m if panel is axes[0] else 0.5, color="0.6", ls=":")
    panel.set_xlabel(name)
axes[0].set_ylabel("log probability")

# %% [markdown]
# The noise of this survey hides that the nearest cell has aliases, which the model's window lacks. In a denser one
# these shift $\Omega_m$, and cells must be smaller. The initial noise is known here. In a real survey it is sampled
# together with the parameters: [Infer initial conditions](../howto/inference.md) has `model.light_cone = true` in a
# config file, and [Make light cones](../howto/lightcone.md) has masks, redshift errors and losses.
