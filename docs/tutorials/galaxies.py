# %% [markdown]
# # Galaxies in redshift space
#
# Surveys see galaxies, not matter, and measure redshifts, not distances. This page goes from particles to the
# multipoles of galaxies in redshift space, and compares them with linear theory.

# %%
import jax
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd

config = pmd.Config(box_size=512.0, mesh_shape=64, a_stop=0.6, steps=8, decomposition=(1, 1))
cosmo = pmd.growth_table(jax_cosmo.Planck15())
modes = pmd.linear_modes(pmd.white_noise(jax.random.key(1), config), cosmo, config)
solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config).raise_if_failed()
matter = pmd.density(solution.particles, config)

# %% [markdown]
# ## Redshift space
#
# The peculiar velocity along the line of sight adds to the redshift. A galaxy at $\mathbf{x}$ appears at
#
# $$ \mathbf{s} = \mathbf{x} + \frac{\mathbf{u} \cdot \mathbf{n}}{a H}\, \mathbf{n} . $$
#
# Matter falls towards overdensities, which look flattened on large scales (Kaiser 1987).

# %%
moved = pmd.observe.redshift_space(solution.particles, cosmo, config, line_of_sight="x")
in_redshift_space = pmd.density(moved, config)
figure, axes = plt.subplots(1, 2, figsize=(10, 4))
for panel, field, title in zip(axes, (matter, in_redshift_space), ("real space", "redshift space"), strict=True):
    pmd.plot.density(field, config.box_size, thickness=32.0, axes=panel)
    panel.set(title=title, xlabel="x [Mpc/h], line of sight")

# %% [markdown]
# ## Multipoles
#
# The power now depends on the cosine $\mu$ between $\mathbf{k}$ and the line of sight. Its multipoles are
#
# $$ P_\ell(k) = (2\ell + 1)\, \langle L_\ell(\mu)\, P(k, \mu) \rangle , \qquad
# P(k, \mu) = (b + f \mu^2)^2 D_1^2 P_L(k) $$
#
# in linear theory, with the growth rate $f$ and the bias $b$, which is 1 for matter.


# %%
def linear_power(k):
    return pmd.linear_power(k, cosmo)


sight = {"line_of_sight": "x", "poles": (0, 2)}
poles = pmd.observe.power_multipoles(in_redshift_space, config, **sight)
theory = pmd.observe.kaiser_multipoles(linear_power, cosmo, config, **sight)
pmd.plot.multipoles(poles, theory)

# %% [markdown]
# Random velocities also smear structures along the line of sight, which lowers the quadrupole. Long modes scatter,
# because the box has few of them.
#
# ## Galaxies
#
# Galaxies prefer overdensities of the initial field. A Lagrangian bias gives each particle the weight
# $w = 1 + b_1 \delta_L + b_2 (\delta_L^2 - \langle \delta_L^2 \rangle)$ with the linear density at its site. Particles
# carry their weights along, and on large scales the galaxies have the Eulerian bias $b = 1 + b_1$.

# %%
bias = pmd.observe.LagrangianBias(b1=0.9, b2=0.1)
weights = pmd.observe.bias_weights(modes, bias, cosmo, config, smoothing=8.0)
galaxies = pmd.observe.tracer_density(moved, weights, config)
poles = pmd.observe.power_multipoles(galaxies, config, **sight)
theory = pmd.observe.kaiser_multipoles(linear_power, cosmo, config, bias=1.9, **sight)
pmd.plot.multipoles(poles, theory)

# %% [markdown]
# The smoothing of 8 Mpc/h removes bias on small scales, so the galaxies' monopole falls below linear theory there.
#
# ## A survey
#
# A survey counts galaxies in cells. The counts are Poisson numbers around the expected ones,
# $\lambda = \bar n V_\mathrm{cell}\, S (1 + \delta_g)$, with a selection $S$ that falls with the distance.

# %%
selection = np.linspace(1.0, 0.2, 64)[:, None, None] * np.ones((64, 64, 64))
rate = pmd.observe.expected_counts(galaxies, config, number_density=3e-3, selection=selection)
counts = jax.random.poisson(jax.random.key(2), rate)
figure, panel = plt.subplots(figsize=(4.6, 3.8))
image = panel.imshow(np.asarray(counts)[:, :, :4].sum(-1).T, extent=(0, 512, 0, 512), cmap="magma", vmax=30)
panel.set(xlabel="x [Mpc/h], line of sight", ylabel="y [Mpc/h]", title=f"{int(counts.sum())} galaxies")
figure.colorbar(image, label="galaxies")

# %% [markdown]
# `weighted_overdensity` takes counts over their expected number without clustering, and gives a field whose power is
# the galaxies' power plus shot noise, $\bar S / (\bar n\, \overline{S^2})$. Counts that are drawn in cells have shot
# noise without a window: `cell_noise` subtracts it before the window of the galaxies is divided out.

# %%
observed = pmd.observe.weighted_overdensity(counts / (3e-3 * 8.0**3 * selection), selection, config)
noise = np.mean(selection) / (3e-3 * np.mean(selection**2))
pmd.plot.multipoles(pmd.observe.power_multipoles(observed, config, cell_noise=noise, **sight), theory)

# %% [markdown]
# [Measure spectra](../howto/observables.md) has masks, interlacing and bispectra.
