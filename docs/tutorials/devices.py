# %% [markdown]
# # Several devices
#
# The same program runs on one device or on many. This page makes four devices of one CPU. On a machine with GPUs leave
# the first line out: JAX finds them.

# %%
import jax

jax.config.update("jax_num_cpu_devices", 4)
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np

import pmwd_dist as pmd

print(jax.devices())

# %% [markdown]
# ## A decomposition
#
# A `Decomposition` divides the box: here into 2 x 2 pencils along z. Without an argument it takes all devices, as
# slabs. A config carries it, and nothing else in the program needs to know.

# %%
pencils = pmd.Decomposition((2, 2))
config = pmd.Config(box_size=64.0, mesh_shape=32, steps=8, decomposition=pencils, halo=12)
noise = pmd.white_noise(jax.random.key(0), config)
print(noise.shape, "in blocks of", noise.addressable_shards[0].data.shape)

# %% [markdown]
# Each device holds one block of every field. The picture shows which device has which cells.

# %%
owner = np.zeros(config.mesh_shape[:2])
for shard in noise.addressable_shards:
    owner[shard.index[:2]] = shard.device.id
figure, panel = plt.subplots(figsize=(3.8, 3.2))
image = panel.imshow(owner.T, extent=(0, 64, 0, 64), cmap=plt.get_cmap("Set2", 4), vmin=-0.5, vmax=3.5)
panel.set(xlabel="x [Mpc/h]", ylabel="y [Mpc/h]", title="blocks of a field")
figure.colorbar(image, ticks=range(4), label="device")

# %% [markdown]
# ## A simulation
#
# The calls are those of the [first tutorial](simulation.md). A Fourier transform needs all cells, so the devices
# exchange blocks for it. Particles belong to the device of their lattice site, and paint into a halo around its block:
# here they may move by `halo=12` cells over its edge. By default each step chooses the halo that it needs.


# %%
def simulate(noise, config):
    cosmo = jax_cosmo.Planck15()
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    solution = pmd.nbody(particles, cosmo, config)
    return pmd.density(solution.particles, config), solution.status


density, status = simulate(noise, config)
status.raise_if_failed()
print(status)
print(density.sharding.spec)

# %% [markdown]
# ## The same result on one device
#
# The noise has the same bits for any division, so two divisions simulate the same universe. Painted meshes are sums of
# integers, whose order does not matter. What differs is the rounding of transforms.

# %%
alone = pmd.Config(box_size=64.0, mesh_shape=32, steps=8, decomposition=(1, 1))
same_noise = pmd.white_noise(jax.random.key(0), alone)
print("noise has the same bits:", bool((np.asarray(noise) == np.asarray(same_noise)).all()))
reference, _ = simulate(same_noise, alone)
print("rms difference of the density:", f"{np.std(np.asarray(density) - np.asarray(reference)):.1e}")
print("rms of the density:           ", f"{np.std(np.asarray(reference)):.1e}")

# %% [markdown]
# ## A gradient
#
# Derivatives need no annotation. The gradient by the noise is divided like the noise.

# %%
loss = jax.jit(lambda noise: (simulate(noise, config)[0] ** 2).mean())
gradient = jax.grad(loss)(noise)
print(gradient.shape, gradient.sharding.is_equivalent_to(noise.sharding, 3))

# %% [markdown]
# ## Transforms and filters of your own
#
# A spectrum stays where it was computed, and `fftfreq3d` gives wavevectors in the same layout. A filter is one line:

# %%
kx, ky, kz = pmd.fftfreq3d(density.shape, pencils, box_size=64.0)
window = jax.numpy.exp(-(kx**2 + ky**2 + kz**2) * 4.0**2 / 2)
smooth = pmd.pirfft3d(pmd.prfft3d(density, pencils) * window, density.shape, pencils)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
for panel, field, title in zip(axes, (density, smooth), ("density", "smoothed over 4 Mpc/h"), strict=True):
    pmd.plot.density(field, config.box_size, thickness=16.0, axes=panel)
    panel.set_title(title)

# %% [markdown]
# Programs of many processes are the same programs, after `pmd.distributed.initialize()`: see
# [Clusters](../howto/clusters.md). How the exchange works is in [Decomposition](../explanation/decomposition.md).
