"""Models of data, and their posteriors over white noise and parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.program import filter_jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.parameters import Parameters
from pmwd_dist.cosmology.sampled import COSMOLOGY, parameters_at
from pmwd_dist.cosmology.transfer import check_usable, expected_error, transfer_warnings
from pmwd_dist.infer import trees
from pmwd_dist.infer.cosmological import CosmologicalModel, SimulatedModel
from pmwd_dist.infer.forward import ForwardModel, Function, of_shape
from pmwd_dist.infer.gaussian import Gaussian
from pmwd_dist.infer.likelihoods import Likelihood, data_warning, masked, template_warnings
from pmwd_dist.infer.precondition import Adaptation, Observations, Preconditioner, wiener_draw
from pmwd_dist.infer.priors import Prior, check_priors, unwhiten, whiten
from pmwd_dist.infer.simulation import Simulation
from pmwd_dist.parallel.distributed import to_devices, to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import numbers
from pmwd_dist.pm.inputs import check_config, lattice_field
from pmwd_dist.pm.modes import wavenumber_range
from pmwd_dist.pm.noise import check_key, white_noise
from pmwd_dist.pm.status import Code, Status

Position = dict[str, Any]
_SITE = "position/"  # sites of NumPyro's model (Phan et al. 2019, 1912.11554)


class Model(eqx.Module):
    """A model of data: a forward model, priors of its parameters and a likelihood.

    A position is a pytree {"noise": white noise on the particle lattice, "parameters": {name: u}}, all standard normal
    a priori: u is a whitened parameter (`priors`). The white noise is in real space, an orthonormal basis that is
    divided over devices like every field. It has no planes of conjugate modes, which would have to stay equal across
    devices. A filter for preconditioning is two transforms.

    Args:
      config: configuration of the simulation.
      forward: function (noise, parameters) -> field on the mesh in units of its mean, or (field, status); a
        `ForwardModel` may also predict maps and have a linear response.
      priors: priors of the sampled parameters, by name.
      likelihood: `Gaussian`, `Poisson`, `ShapeNoise`, or another `Likelihood`.

    Raises:
      ValueError: a parameter of the likelihood or the forward model without a prior, or parameters that exclude each
        other, or a prior that reaches far from the parameters of the transfer function.

    Warns:
      UserWarning: a prior reaches 0 for a positive parameter, an early time of dark energy, or cosmologies for which
        the transfer function was not compared with CAMB; or templates are huge, or the same up to a factor.

    Examples:
      >>> model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5)}, infer.Gaussian(sigma=0.3))
      >>> posterior = model.condition(data)
    """

    config: Config = eqx.field(static=True)
    forward: ForwardModel
    likelihood: Likelihood
    items: tuple[tuple[str, Prior], ...] = eqx.field(static=True)

    def __init__(
        self,
        config: Config,
        forward: Callable[[Array, Mapping[str, ArrayLike]], Any],
        priors: Mapping[str, Prior],
        likelihood: Likelihood,
    ):
        check_config(config)
        if not callable(forward):
            raise ArgumentError("forward", forward, "must be a function of (noise, parameters)")
        if not isinstance(likelihood, Likelihood):
            remedy = "use infer.Gaussian or Poisson, or a subclass of infer.Likelihood"
            raise ArgumentError("likelihood", likelihood, "is no likelihood", remedy)
        forward = forward if isinstance(forward, ForwardModel) else Function(config, forward)
        if forward.config != config:
            remedy = "make it with the config of the model"
            raise ArgumentError("forward", forward, "is of another simulation", remedy, show_value=False)
        check_priors(priors, likelihood.positive)
        self.config, self.forward, self.items = config, forward, tuple(priors.items())
        self.likelihood = jax.tree.map(self._place, likelihood)
        for name in self._declared:
            if name in likelihood.names and name in (*forward.names, *forward.optional):
                raise ArgumentError("likelihood", name, "is the name of a parameter of the forward model", "rename it")
            if name not in priors:
                raise ArgumentError("priors", list(priors), f"lacks {name!r}", f"add a prior of {name}")
        for one, other in (("Omega_m", "Omega_c"), ("sigma8", "A_s")):
            if one in priors and other in priors:
                raise ArgumentError("priors", list(priors), f"has both {one} and {other}", "leave one of them out")
        self._check_cosmologies()
        if not any(isinstance(x, Tracer) for x in jax.tree.leaves(likelihood)):
            for text in template_warnings(likelihood, self.priors):
                warnings.warn(text, stacklevel=3)  # equinox calls __init__

    @property
    def priors(self) -> dict[str, Prior]:
        """Priors of the parameters, by name."""
        return dict(self.items)

    def _check_cosmologies(self) -> None:
        """Warn of priors that reach cosmologies without an early time of matter, or whose P(k) is not known.

        Raises:
          ValueError: the cosmology, or a prior, is far from the parameters of the transfer function.
        """
        if not isinstance(self.forward, CosmologicalModel):
            return
        power, table, config = self.forward.of_cosmology, self.forward.table, self.forward.config
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(table)):
            return
        known = unlikely_cosmology(power, table.cosmo, config)
        for name, prior in self.items:
            for u in (-2.0, 2.0) if name in COSMOLOGY else ():
                value = prior.forward(u)
                where = f"{float(value):.4g}, within two deviations of its median,"
                try:
                    found = unlikely_cosmology(power, parameters_at({name: value}, table.cosmo), config)
                except ArgumentError as error:
                    constraint = f"allows {where} and linear_power={error.value!r} {error.constraint}"
                    raise ArgumentError(
                        f"priors[{name!r}]", prior, constraint, "bound it, or " + error.remedy
                    ) from None
                for text in found:
                    if text not in known:
                        warnings.warn(f"priors[{name!r}]: at {where} {text}", stacklevel=4)  # equinox calls __init__

    @property
    def _declared(self) -> list[str]:
        """Names of the parameters that the forward model and the likelihood declare."""
        return [*self.forward.names, *self.likelihood.names]

    def draw(self, key: Array, **values: Any) -> Position:
        """White noise and whitened parameters drawn from the prior, with some parameters given.

        Raises:
          ValueError: a value that its prior excludes, or a parameter without a prior.
        """
        check_key(key)
        return self.draw_around(key, whiten(values, self.priors))

    @on_auto_axes
    @filter_jit
    def draw_around(self, key: Array, given: dict[str, Array]) -> Position:
        """White noise and whitened parameters drawn from the prior, with some of these given."""
        noise_key, key = jax.random.split(key)
        drawn = trees.normal_like(key, {name: jnp.zeros(()) for name in self.priors})
        # On every device, the sharding after a step, so that steps compile once.
        numbers = jax.lax.with_sharding_constraint(drawn | given, self.config.decomposition.replicated)
        return {"noise": white_noise(noise_key, self.config), "parameters": numbers}

    def parameters(self, position: Position) -> dict[str, Array]:
        """Parameters of a draw."""
        return unwhiten(position["parameters"], self.priors)

    @on_auto_axes
    def predict(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> tuple[Array, Array]:
        """The predicted field, and whether the forward model succeeded."""
        out = self.forward(noise, parameters)
        field, status = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
        field = of_shape(field, self.forward.layout[0], "forward", "a field")
        if status is None:
            return field, jnp.ones((), bool)
        return field, (status.code if isinstance(status, Status) else status) == Code.SUCCESSFUL

    def failure(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> str:
        """Message of a simulation that fails; empty where it does not, and for other forward models. Collective."""
        if not isinstance(self.forward, SimulatedModel):
            return ""
        status: Status = to_host(filter_jit(lambda model, *x: model.status(*x))(self.forward, noise, parameters))
        message = status.message()
        if not message and self.config.decomposition.size > 1 and isinstance(self.forward, Simulation):
            return (
                f"the largest displacement is {float(status.max_displacement):.2f} cells, and redshift distortions may "
                f"exceed the halo of {float(status.halo):.0f} cells; use a wider halo, or one device"
            )
        return message

    def mock(self, key: Array, position: Position) -> Array:
        """Data drawn from the likelihood, given the noise and parameters of a draw; NaN if the simulation failed."""
        return self.mock_and_field(key, position)[0]

    @on_auto_axes
    @filter_jit
    def mock_and_field(self, key: Array, position: Position) -> tuple[Array, Array]:
        """Data as of `mock`, and the predicted field."""
        parameters = self.parameters(position)
        field, fine = self.predict(position["noise"], parameters)
        data = self.likelihood.draw(key, field, parameters, self.config)
        data = of_shape(data, field.shape, "likelihood.draw", "data")
        both = jnp.where(fine, data, jnp.nan), field
        return jax.lax.with_sharding_constraint(both, self.forward.layout[1])

    @on_auto_axes
    def condition(self, data: Any) -> Posterior:
        """The posterior, given data on the mesh, or maps.

        Raises:
          ValueError: data that are impossible under the likelihood or beyond 1e12 of its sigma, or a prior of an unused
            parameter.

        Warns:
          UserWarning: constant data, or other units than the model's: a contrast for a density, or counts whose mean is
            not near the expected one.
        """
        likelihood, given = to_host((self.likelihood, data))
        with np.errstate(over="ignore"):  # marks of missing data
            likelihood.check(given, self.config)
            density = isinstance(self.forward, CosmologicalModel) and isinstance(likelihood, Gaussian)
            warning = data_warning(given, likelihood, density=density)
            data = self._place(jnp.asarray(numbers(data, "data"), float))
        data = masked(jnp.where(jnp.isfinite(data), data, 1), self.likelihood.mask, 1)
        if unused := self._unused(data):
            constraint = f"holds {', '.join(unused)}, which neither the forward model nor the likelihood uses"
            remedy = "leave it out, or look at how it is spelled"
            raise ArgumentError("priors", list(self.priors), constraint, remedy)
        if warning:
            warnings.warn(f"data {warning}", stacklevel=4)  # equinox calls methods
        return Posterior(self, data, Preconditioner(self))

    def _unused(self, data: Array) -> list[str]:
        """Names of the parameters that the density of the data does not use."""
        if self.priors.keys() <= {*self._declared, *self.forward.optional}:  # the usual case, without a trace
            return []

        def density(noise: Array, parameters: dict[str, Array]) -> Array:
            field, fine = self.predict(noise, parameters)
            return jnp.where(fine, self.likelihood.logdensity(data, field, parameters, self.config), 0)

        noise = jax.ShapeDtypeStruct(self.config.particle_shape, data.dtype)
        numbers = {name: jax.ShapeDtypeStruct((), jnp.result_type(float)) for name in sorted(self.priors)}
        jaxpr = jax.make_jaxpr(density)(noise, numbers)
        needed = set(map(id, jaxpr.outvars))
        for equation in reversed(jaxpr.eqns):
            if needed & set(map(id, equation.outvars)):
                needed |= set(map(id, equation.invars))
        return [name for name, variable in zip(numbers, jaxpr.invars[1:], strict=True) if id(variable) not in needed]

    def _place(self, x: Any) -> Any:
        shape, sharding = self.forward.layout
        return to_devices(x, sharding) if getattr(x, "shape", None) == shape else x


class Posterior(eqx.Module):
    """The posterior of a model, given data: a log density of positions, and draws to start from.

    Positions have the structure of `Model`'s, in the coordinates of a preconditioner: it shifts and scales the noise
    mode by mode, and scales the parameters. It begins with linear theory, or with the prior without a linear response
    or with a mesh other than the lattice, and `sample` adapts it to the posterior (`from_latent`, `to_latent`).

    Args:
      model: model of the data.
      data: data on the mesh, or maps.
      preconditioner: preconditioner of noise and parameters.
      weight: power of the likelihood: 1 for the posterior itself, less in the first stage of a tuning.
    """

    model: Model
    data: Array
    preconditioner: Preconditioner
    weight: Array = eqx.field(default_factory=lambda: as_array(1.0))  # an array, so that nothing compiles again

    @on_auto_axes
    def logdensity(self, position: Position) -> Array:
        """Logarithm of the posterior density, up to a constant; -inf where the simulation failed."""
        noise, parameters, log_volume = self._from_latent(position)
        field, fine = self.model.predict(noise, parameters)
        value = self.model.likelihood.logdensity(self.data, field, parameters, self.model.config)
        value = jnp.asarray(of_shape(value, (), "likelihood.logdensity", "a number"))
        white = self.whitened(position)
        value = self.weight.astype(value.dtype) * value + log_volume
        value = value - 0.5 * trees.dot(noise, noise) - 0.5 * trees.dot(white, white)
        return jnp.where(fine & jnp.isfinite(value), value, -jnp.inf)

    @on_auto_axes
    @filter_jit
    def from_latent(self, position: Position) -> tuple[Array, dict[str, Array]]:
        """White noise of unit variance a priori, and parameters, of a position."""
        return self._from_latent(position)[:2]

    def parameters(self, position: Position) -> dict[str, Array]:
        """Parameters of a position."""
        return unwhiten(self.whitened(position), self.model.priors)

    def whitened(self, position: Position) -> dict[str, Array]:
        """Whitened parameters of a position."""
        return self.preconditioner.whitened(position["parameters"])

    def _from_latent(self, position: Position) -> tuple[Array, dict[str, Array], Array]:
        noise, parameters = position["noise"], self.parameters(position)
        noise = lattice_field(noise, self.model.config, "position['noise']")
        noise, log_volume = self.preconditioner.noise(self, position | {"noise": noise}, parameters)
        return noise, parameters, log_volume

    @on_auto_axes
    @filter_jit
    def to_latent(self, noise: Array, white: Mapping[str, ArrayLike]) -> Position:
        """The position of white noise and whitened parameters."""
        return self.preconditioner.position(self, noise, {k: jnp.asarray(x) for k, x in white.items()})

    def adapted(self, adaptation: Adaptation) -> Posterior:
        """The posterior with another adaptation of its positions."""
        return eqx.tree_at(lambda p: p.preconditioner.adaptation, self, adaptation)

    def weighted(self, weight: float | Array) -> Posterior:
        """The posterior with another power of the likelihood: 0 for the prior, 1 for the posterior itself.

        Raises:
          ValueError: a weight that is negative or not finite.
        """
        check_number(weight, "weight", 0, remedy="use 1 for the posterior itself", constant=True)
        return eqx.tree_at(lambda p: p.weight, self, as_array(weight, self.weight.dtype))

    def numpyro_model(self) -> None:
        """The posterior as a model of NumPyro: `numpyro.infer.NUTS(posterior.numpyro_model)`.

        Its sites are "position/noise" and "position/NAME" of each parameter, standard normal with a factor. Each
        parameter itself is a deterministic site. `numpyro_position` turns samples into positions.

        Raises:
          ImportError: numpyro is not installed.
        """
        import numpyro
        from numpyro.distributions import Normal

        shapes = {"noise": self.model.config.particle_shape} | dict.fromkeys(self.model.priors, ())
        normal = {name: Normal(0, 1).expand(shape).to_event(len(shape)) for name, shape in shapes.items()}
        drawn: Any = {name: numpyro.sample(_SITE + name, distribution) for name, distribution in normal.items()}
        position = {"noise": drawn.pop("noise"), "parameters": drawn}
        numpyro.factor("posterior", self.logdensity(position) + 0.5 * trees.dot(position, position))
        for name, value in self.parameters(position).items():
            numpyro.deterministic(name, value)

    @on_auto_axes
    def observe(self, position: Position, slope: Position) -> tuple[Observations, Array]:
        """Observations of a gradient for the adaptation (`Preconditioner.observe`)."""
        return self.preconditioner.observe(self, position, slope)

    def moved(self, position: Position, other: Posterior) -> Position:
        """The position in another adaptation with the same noise and parameters."""
        return other.to_latent(self.from_latent(position)[0], self.whitened(position))

    @on_auto_axes
    @filter_jit
    def initial(self, key: Array, **values: Any) -> Position:
        """A first position: given parameters and others from a narrower prior, and the noise given these.

        Chains from the tails of wide priors can be stuck in other maxima. Whitened parameters are therefore half as far
        from the medians of their priors as those of a draw. The noise is drawn from its posterior in linear theory
        (Hoffman & Ribak 1991), and from its prior without a linear response.
        """
        model, given = self.model, whiten(values, self.model.priors)
        draw_key, key = jax.random.split(key)
        position = model.draw_around(draw_key, given)
        noise, numbers = position["noise"], {name: 0.5 * u for name, u in position["parameters"].items()} | given
        if self.preconditioner.linear:
            noise = wiener_draw(key, noise, self, unwhiten(numbers, model.priors))
        return self.to_latent(noise, numbers)


def unlikely_cosmology(power: Any, cosmo: Parameters, config: Config) -> list[str]:
    """Warnings about a cosmology whose dark energy dominates early, or whose P(k) was not compared with CAMB.

    Raises:
      ValueError: it is far from the parameters of the transfer function.
    """
    found, state = list[str](), float(cosmo.w0 + cosmo.wa)
    if cosmo.w_table is None and state >= 0:
        found.append(f"w0 + wa = {state:.3g} must be less than 0, or dark energy dominates early")
    if isinstance(power, str):
        check_usable(power, cosmo)
        found += transfer_warnings(power, cosmo)
        least, _ = k = wavenumber_range(config.particle_shape, config.box_size)
        if not found and expected_error(power, cosmo, k) is None:
            found.append(f"P(k) was not compared with CAMB at wavenumbers of the box, from {least:.2g} h/Mpc on")
    return found


def numpyro_position(sites: Mapping[str, Any]) -> Position:
    """The position, or a batch of positions, from samples of the sites of `Posterior.numpyro_model`."""
    position = {name.removeprefix(_SITE): x for name, x in sites.items() if name.startswith(_SITE)}
    return {"noise": position.pop("noise"), "parameters": position}
