# %% [markdown]
# # Light cone and lensing
#
# Light from far away set out long ago. A light cone collects each piece of matter at the moment when its light passes.
# From it follow the convergence and the shear of the images of galaxies.

# %%
from functools import partial

import jax
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd

cosmo = pmd.growth_table(jax_cosmo.Planck15())
config = pmd.Config(box_size=256.0, mesh_shape=64, steps=12, decomposition=(1, 1))
SOURCE, FIELD = 0.7, 6.0  # redshift of the sources, side of the field of view [degrees]

# %% [markdown]
# ## Shells
#
# The observer looks along z through repetitions of the box. Matter between two distances is projected onto one plane,
# here every half box up to the sources.

# %%
farthest = float(pmd.comoving_distance(1 / (1 + SOURCE), cosmo))
edges = np.arange(0, farthest + 128, 128.0)
cone = pmd.observe.FlatSkyLightCone(config, edges, pixels=128)
print(len(edges) - 1, "shells to", round(farthest), "Mpc/h")

# %% [markdown]
# ## Simulation
#
# `accumulate` adds what the light meets in each step to the planes, so that no snapshots are stored. The first steps
# happen long before the light of the sources sets out, and add nothing.

# %%
noise = pmd.white_noise(jax.random.key(0), config)


@jax.jit
def light_cone(noise):
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    solution = pmd.nbody(particles, cosmo, config, accumulate=cone)
    return solution.accumulated, solution.status


mass, status = light_cone(noise)
status.raise_if_failed()
overdensity = cone.overdensity(mass)
figure, axes = plt.subplots(1, 3, figsize=(13, 3.6))
for panel, shell in zip(axes, (1, 6, 12), strict=True):
    pmd.plot.density(1 + overdensity[shell], config.box_size, axes=panel)
    panel.set_title(f"{edges[shell]:.0f} to {edges[shell + 1]:.0f} Mpc/h")

# %% [markdown]
# Near shells are seen late: they are more clumpy.
#
# ## Convergence
#
# Undeflected rays add up the overdensity with the lensing weight. For sources at the distance $x_s$ in a flat universe
#
# $$ \kappa = \frac{3}{2} \Omega_m \left( \frac{H_0}{c} \right)^2
# \int \mathrm{d}x\, \frac{x (x_s - x)}{x_s}\, \frac{\delta(x)}{a(x)} , $$
#
# largest for matter halfway. Every repetition of the box is shifted at random, so that a ray does not meet the same
# structure twice.

# %%
repetition = np.arange(len(edges) - 1) // 2
shifts = np.random.default_rng(0).uniform(0, 256, (repetition[-1] + 1, 2))[repetition]
view = {"source": SOURCE, "field": FIELD, "pixels": 128, "offsets": shifts}
kappa = pmd.observe.convergence(mass, cosmo, cone, **view)
print("rms convergence:", f"{float(kappa.std()):.4f}")

# %% [markdown]
# ## Shear
#
# The tidal field stretches images around structures. Sticks show the direction in which a round galaxy is stretched.

# %%
gamma = pmd.observe.shear(mass, cosmo, cone, **view)
pmd.plot.convergence(kappa, shear=gamma, field=FIELD)

# %% [markdown]
# ## Power spectrum of the map
#
# In Limber's approximation each multipole $\ell$ sees the matter at $k = (\ell + 1/2) / x$:
#
# $$ C_\ell = \int \mathrm{d}x\, \frac{w^2(x)}{x^2}\, P\!\left( \frac{\ell + 1/2}{x}, x \right) . $$

# %%
found = pmd.observe.angular_power(kappa, side=FIELD, bins=12)
linear = partial(pmd.linear_power, cosmo=cosmo)
theory = pmd.observe.limber_power(found.ell, linear, cosmo, edges, SOURCE, cone=cone)
pmd.plot.angular_power([found], [theory], labels=[f"sources at z = {SOURCE}"])

# %% [markdown]
# With `cone`, theory has the window of the cells and the waves that the particles hold. The map lies above it where
# structures are nonlinear. Six degrees hold few long modes, which scatter.
#
# The map is differentiable by the noise and the cosmology, like everything else:

# %%
slope = jax.jit(
    jax.grad(lambda noise: (pmd.observe.convergence(light_cone(noise)[0], cosmo, cone, **view) ** 2).mean())
)(noise)
print(slope.shape, bool(np.isfinite(np.asarray(slope)).all()))

# %% [markdown]
# HEALPix maps of the whole sky and light cones from a config file are in [Light cones](../howto/lightcone.md).
