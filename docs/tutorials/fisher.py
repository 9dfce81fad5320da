# %% [markdown]
# # Derivatives and a Fisher matrix
#
# A simulation is a function of its parameters. JAX differentiates it, and the derivatives of a summary forecast how
# well the summary measures the parameters.

# %%
import jax
import jax.numpy as jnp
import jax_cosmo
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

import pmwd_dist as pmd

config = pmd.Config(box_size=256.0, mesh_shape=32, steps=8, decomposition=(1, 1))
noise = pmd.white_noise(jax.random.key(0), config)

# %% [markdown]
# ## From parameters to a spectrum
#
# The parameters are $\theta = (\Omega_m, \sigma_8)$. The noise stays fixed, so that the scatter of the box cancels in
# differences. `growth_table` is made once and takes the place of the cosmology.
#
# A mass of neutrinos would be a third one: `pmd.with_neutrinos(cosmo, m_nu=theta[2], omega_m=theta[0])` is its
# derivative at fixed total $\Omega_m$. Without `omega_m=` cold matter is fixed, and the total grows with the mass.


# %%
def spectrum(theta):
    cosmo = jax_cosmo.Planck15(Omega_c=theta[0] - 0.0486, sigma8=theta[1])
    table = pmd.growth_table(cosmo)
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
    solution = pmd.nbody(particles, table, config)
    found = pmd.power_spectrum(pmd.density(solution.particles, config), config)
    return found.power, found


fiducial = jnp.array([0.31, 0.82])

# %% [markdown]
# ## Derivatives
#
# There are two parameters and many bins: forward mode is the cheap one. `jax.jacfwd` pushes two tangents through the
# simulation at once.

# %%
derivatives, found = jax.jit(jax.jacfwd(spectrum, has_aux=True))(fiducial)
figure, panel = plt.subplots(figsize=(6, 3.2))
for i, name in enumerate((r"$\Omega_m$", r"$\sigma_8$")):
    panel.semilogx(found.k, derivatives[:, i] / found.power, label=name)
panel.axhline(2 / 0.82, color="gray", lw=0.8, ls=":", label=r"linear theory, $2/\sigma_8$")
panel.set(xlabel="k [h/Mpc]", ylabel=r"$\partial \ln P / \partial \theta$")
panel.legend()

# %% [markdown]
# Linear power is proportional to $\sigma_8^2$, hence the dotted line. Small scales respond more: they are nonlinear.
#
# A derivative should be checked once, by a difference of two simulations:

# %%
step = jnp.array([0.0, 0.01])
power = jax.jit(lambda theta: spectrum(theta)[0])
difference = (power(fiducial + step) - power(fiducial - step)) / 0.02
error = np.abs(difference / derivatives[:, 1] - 1)
print("median relative difference:", f"{np.median(error):.1e}")

# %% [markdown]
# ## Fisher matrix
#
# For Gaussian modes, a bin with $N$ modes (conjugates included) has the variance $2 P^2 / N$. Then
#
# $$ F_{ij} = \sum_k \frac{N_k}{2}\, \frac{\partial \ln P_k}{\partial \theta_i}\,
# \frac{\partial \ln P_k}{\partial \theta_j} , $$
#
# and $F^{-1}$ is the smallest covariance that an unbiased estimate can have.


# %%
def fisher(largest_k):
    slopes = np.asarray(derivatives / found.power[:, None])
    weights = np.where(found.k < largest_k, found.modes / 2, 0)
    return np.einsum("k,ki,kj->ij", weights, slopes, slopes)


for largest_k in (0.15, 0.3):
    errors = np.sqrt(np.diag(np.linalg.inv(fisher(largest_k))))
    print(f"k < {largest_k} h/Mpc: sd of Omega_m {errors[0]:.3f}, of sigma8 {errors[1]:.3f}")

# %% [markdown]
# The ellipses contain 68 % of the probability of both parameters.

# %%
figure, panel = plt.subplots(figsize=(4.5, 4))
for largest_k, colour in ((0.15, "C0"), (0.3, "C1")):
    values, vectors = np.linalg.eigh(np.linalg.inv(fisher(largest_k)))
    width, height = 2 * np.sqrt(2.30 * values)
    angle = np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0]))
    panel.add_patch(Ellipse(fiducial, width, height, angle=angle, alpha=0.4, color=colour, label=f"k < {largest_k}"))
panel.plot(*fiducial, "k+")
panel.autoscale_view()
panel.locator_params(axis="x", nbins=5)
panel.set(xlabel=r"$\Omega_m$", ylabel=r"$\sigma_8$")
panel.legend()

# %% [markdown]
# More modes shrink the ellipse, and nonlinear scales turn it. A volume of 256 Mpc/h on a side is small: errors fall
# with the root of the volume.
#
# ## By the initial conditions
#
# There are as many initial conditions as cells. For them, reverse mode gives the gradient of one number in the time of
# a few simulations, and in the [memory of one step](../explanation/adjoint.md).


# %%
def peak(noise):
    cosmo = pmd.growth_table(jax_cosmo.Planck15())
    particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    return pmd.density(pmd.nbody(particles, cosmo, config).particles, config)[16, 16, 16]


gradient = jax.jit(jax.grad(peak))(noise)
figure, panel = plt.subplots(figsize=(4.2, 3.5))
bound = float(jnp.abs(gradient).max())
image = panel.imshow(gradient[:, :, 16].T, extent=(0, 256, 0, 256), cmap="RdBu_r", vmin=-bound, vmax=bound)
panel.set(xlabel="x [Mpc/h]", ylabel="y [Mpc/h]", title="response of the density of one cell")
figure.colorbar(image)

# %% [markdown]
# The density of a cell today depends on the noise around the place from which its matter came.
