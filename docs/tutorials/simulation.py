# %% [markdown]
# # Simulation and its pictures
#
# A simulation starts from Gaussian noise. Perturbation theory moves the particles first, then a particle mesh takes
# them to today. This page runs one and looks at its density, its power spectrum and its growth.

# %%
import jax
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd

config = pmd.Config(box_size=128.0, mesh_shape=64, steps=15, decomposition=(1, 1))
cosmo = jax_cosmo.Planck15()
print(config)

# %% [markdown]
# ## Initial conditions
#
# White noise $n(\mathbf{q})$ has unit variance in every cell. Its transform, multiplied by the root of the linear power
# spectrum, is the linear density contrast today:
#
# $$ \delta_L(\mathbf{k}) = \sqrt{P_L(k)}\; n(\mathbf{k}) . $$

# %%
noise = pmd.white_noise(jax.random.key(0), config)
modes = pmd.linear_modes(noise, cosmo, config)
print(noise.shape, modes.shape)

# %% [markdown]
# Lagrangian perturbation theory moves each particle from its site $\mathbf{q}$ on a lattice to
# $\mathbf{x} = \mathbf{q} + D_1 \boldsymbol{\psi}_1 + D_2 \boldsymbol{\psi}_2$. The growth factors $D$ are small at
# $a = 0.1$, so the particles have hardly left their sites.

# %%
particles = pmd.lpt(modes, cosmo, config)
print("rms displacement [Mpc/h]:", round(float(np.std(particles.disp)), 2))

# %% [markdown]
# ## Evolution
#
# `nbody` takes the particles from `a_start` to `a_stop`. `saveat` asks for snapshots on the way.

# %%
times = [0.2, 0.5, 1.0]
solution = pmd.nbody(particles, cosmo, config, saveat=times)
solution.raise_if_failed()
print(solution)

# %% [markdown]
# The density of a snapshot is $1 + \delta$ on the mesh. We average a slice of 16 Mpc/h: structures form where there was
# a little more matter at the start.

# %%
densities = [pmd.density(snapshot, config) for snapshot in solution.snapshots]
figure, axes = plt.subplots(1, 3, figsize=(13, 3.6))
for panel, a, density in zip(axes, times, densities, strict=True):
    pmd.plot.density(density, config.box_size, thickness=16.0, axes=panel)
    panel.set_title(f"a = {a}")

# %% [markdown]
# ## Power spectrum
#
# On large scales modes grow alike, $P(k, a) = D_1^2(a) P_L(k)$. On small scales gravity couples them, and power rises
# above linear theory.

# %%
spectra = [pmd.power_spectrum(density, config) for density in densities]
today = pmd.linear_power(spectra[0].k, cosmo)
linear = [pmd.growth(a, cosmo) ** 2 * today for a in times]
pmd.plot.power(spectra, linear, labels=[f"a = {a}" for a in times])

# %% [markdown]
# The lowest bins scatter, because a box has few long modes: the relative error of a bin with $N$ modes is
# $\sqrt{2/N}$.
#
# ## The linear field itself
#
# The linear field of the same noise shares this scatter. `cross_power` compares two fields mode by mode. Their
# correlation coefficient $r(k)$ shows how much of the initial conditions survives.

# %%
linear_field = pmd.pirfft3d(modes, config.mesh_shape, config.decomposition)
figure, panel = plt.subplots(figsize=(6, 3))
for a, density in zip(times, densities, strict=True):
    cross = pmd.observe.cross_power(density, linear_field, config, deconvolve=(True, False))
    panel.semilogx(cross.k, cross.correlation, label=f"a = {a}")
panel.set(xlabel="k [h/Mpc]", ylabel="r(k) with the linear field")
panel.legend()

# %% [markdown]
# Particles leave their sites by several Mpc/h, and small structures move with them. That is why reconstruction of the
# initial conditions is an inference problem: see the [fifth tutorial](inference.md). The settings that make a
# simulation accurate are in [Accuracy](../explanation/accuracy.md).
