"""Models of data, and their posteriors over white noise and parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.infer import trees
from pmwd_dist.infer.data_checks import constant, unused
from pmwd_dist.infer.forward import COSMOLOGY, of_shape
from pmwd_dist.infer.likelihoods import Likelihood, seen
from pmwd_dist.infer.numpyro import numpyro_sites
from pmwd_dist.infer.precondition import Preconditioner, wiener_draw
from pmwd_dist.infer.preconditioner_adaptation import Adaptation
from pmwd_dist.infer.priors import Prior, check_priors, unwhiten, whiten
from pmwd_dist.parallel.inputs import numbers
from pmwd_dist.pm.inputs import check_config, lattice_field
from pmwd_dist.pm.modes import white_noise
from pmwd_dist.pm.status import Code, Status

Position = dict[str, Any]
POSITIVE = ("Omega_m", "Omega_c", "Omega_b", "h", "sigma8")


class Model(eqx.Module):
    """A model of data: a forward model, priors of its parameters and a likelihood.

    A position is a pytree {"noise": white noise on the particle lattice, "parameters": {name: u}}, all standard normal
    a priori: u is a whitened parameter (`priors`). The modes are the white noise itself, in real space: that basis is
    orthonormal, divided over devices like every field, the same on any number of them, and has no planes of conjugates
    to keep equal across devices, as Fourier modes of a real field have. A filter per mode, for preconditioning, is two
    transforms.

    Args:
      config: the simulation.
      forward: function (noise, parameters) -> field on the mesh in units of its mean, or (field, status). Maps of
        another `shape` say so, and their `sharding`, as `Convergence` does.
      priors: of the parameters that are sampled, by name.
      likelihood: `Gaussian`, `Poisson`, or an object with their methods.

    Raises:
      ValueError: a parameter of the likelihood or the forward model without a prior, or parameters that exclude each
        other.
    """

    config: Config = eqx.field(static=True)
    forward: Callable[..., Any]
    likelihood: Any
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
        if not all(callable(getattr(likelihood, method, None)) for method in ("logdensity", "draw", "check")):
            remedy = "use infer.Gaussian or Poisson, or an object with the methods logdensity, draw and check"
            raise ArgumentError("likelihood", likelihood, "is no likelihood", remedy)
        if getattr(forward, "config", config) != config:
            remedy = "make it with the config of the model"
            raise ArgumentError("forward", forward, "is of another simulation", remedy, show_value=False)
        positive = [*POSITIVE, getattr(likelihood, "name", None)]
        check_priors(priors, [name for name in positive if name is not None])
        self.config, self.forward, self.items = config, forward, tuple(priors.items())
        self.likelihood = jax.tree.map(self._place, likelihood)
        observable = getattr(forward, "observable", None)
        named = [getattr(forward, "bias", None), getattr(likelihood, "name", None), *getattr(observable, "names", ())]
        for name in named:
            if isinstance(name, str) and name not in priors:
                raise ArgumentError("priors", list(priors), f"lacks {name!r}", f"add a prior of {name}")
        if "Omega_m" in priors and "Omega_c" in priors:
            raise ArgumentError("priors", list(priors), "has both Omega_m and Omega_c", "leave one of them out")

    @property
    def priors(self) -> dict[str, Prior]:
        """Priors of the parameters, by name."""
        return dict(self.items)

    @property
    def cosmology(self) -> tuple[str, ...]:
        """Names of the parameters of the cosmology that are sampled."""
        return tuple(name for name in self.priors if name in COSMOLOGY)

    def draw(self, key: Array, **values: Any) -> Position:
        """A position drawn from the prior, with some parameters given.

        Raises:
          ValueError: a value that its prior excludes, or of a parameter without a prior.
        """
        return self.draw_around(key, whiten(values, self.priors))

    @eqx.filter_jit
    def draw_around(self, key: Array, given: dict[str, Array]) -> Position:
        """A position drawn from the prior, with some whitened parameters given."""
        noise_key, key = jax.random.split(key)
        drawn = trees.normal_like(key, {name: jnp.zeros(()) for name in self.priors})
        return self._replicate({"noise": white_noise(noise_key, self.config), "parameters": drawn | given})

    def parameters(self, position: Position) -> dict[str, Array]:
        """Parameters of a position."""
        return unwhiten(position["parameters"], self.priors)

    def predict(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> tuple[Array, Array]:
        """The field that the forward model predicts, and whether it succeeded."""
        out = self.forward(noise, parameters)
        field, status = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
        field = of_shape(field, self._layout_of_data()[0], "forward", "a field")
        if status is None:
            return field, jnp.ones((), bool)
        return field, (status.code if isinstance(status, Status) else status) == Code.SUCCESSFUL

    @eqx.filter_jit
    def mock(self, key: Array, position: Position) -> Array:
        """Data drawn from the likelihood at a position; not a number where the simulation failed."""
        parameters = self.parameters(position)
        field, fine = self.predict(position["noise"], parameters)
        data = of_shape(
            self.likelihood.draw(key, field, parameters, self.config), field.shape, "likelihood.draw", "data"
        )
        return jax.lax.with_sharding_constraint(jnp.where(fine, data, jnp.nan), self._layout_of_data()[1])

    def condition(
        self, data: Any, *, precondition: str | None = None, fiducial: Mapping[str, float] | None = None
    ) -> Posterior:
        """The posterior, given data.

        Args:
          data: on the mesh.
          precondition: "conditional": the noise of a position is counted mode by mode from its mean, in units of its
            standard deviation, in linear theory given data and the parameters of the position; "adapted": the same,
            or the noise itself where the forward model has no linear response, and `sample` adapts it to the posterior
            in its tuning; None: it is the noise itself.
          fiducial: parameters at which those of the position are scaled; default: medians of the priors.

        Raises:
          ValueError: data that can't have come from the likelihood, a prior of a parameter that the model never uses,
            or "conditional" and a forward model without a response, or on another mesh than the lattice.

        Warns:
          UserWarning: data that are the same everywhere.
        """
        mask = getattr(self.likelihood, "mask", None)
        with np.errstate(over="ignore"):  # of what marks missing data
            self.likelihood.check(data, self.config)
            odd = constant(data, mask)
            data = self._place(jnp.asarray(numbers(data, "data"), float))
        data = seen(jnp.where(jnp.isfinite(data), data, 1), mask, 1)
        if unused := self._unused(data):
            constraint = f"holds {', '.join(unused)}, which neither the forward model nor the likelihood uses"
            remedy = "leave it out, or look at how it is spelled"
            raise ArgumentError("priors", list(self.priors), constraint, remedy)
        white = dict.fromkeys(self.priors, jnp.zeros(())) | whiten(fiducial or {}, self.priors)
        if precondition not in ("conditional", "adapted", None):
            raise ArgumentError("precondition", precondition, 'must be "conditional", "adapted" or None')
        of_model = self.forward, self.likelihood, white, self.priors, self.config
        adapted, without = precondition == "adapted", precondition is None
        preconditioner = None if without else Preconditioner(data, *of_model, adapted=adapted)
        if odd:
            warnings.warn(f"data {odd}", stacklevel=3)  # equinox calls methods
        return Posterior(self, data, preconditioner)

    def _unused(self, data: Array) -> list[str]:
        """Names of the parameters on which the density of the data can't depend."""
        known = {getattr(self.likelihood, "name", None), getattr(self.forward, "bias", None)}
        known |= {*getattr(getattr(self.forward, "observable", None), "names", ())}
        if hasattr(self.forward, "tabulated"):  # one of this package
            known |= set(COSMOLOGY)
        if self.priors.keys() <= known:  # as nearly always: tracing a simulation takes a second
            return []
        noise = jax.ShapeDtypeStruct(self.config.particle_shape, data.dtype)

        def density(noise: Array, parameters: dict[str, Array]) -> Array:
            field, fine = self.predict(noise, parameters)
            return jnp.where(fine, self.likelihood.logdensity(data, field, parameters, self.config), 0)

        return unused(density, noise, self.priors)

    def _layout_of_data(self) -> tuple[tuple[int, ...], Any]:
        """Shape and sharding of the data: those of a field on the mesh, unless the forward model has its own."""
        default = self.config.mesh_shape, self.config.decomposition.sharding
        return getattr(self.forward, "shape", default[0]), getattr(self.forward, "sharding", default[1])

    def _place(self, x: Any) -> Any:
        shape, sharding = self._layout_of_data()
        return jax.device_put(x, sharding) if getattr(x, "shape", None) == shape else x

    def _replicate(self, position: Position) -> Position:
        """The position, its parameters on every device: where steps return them, so that these compile once."""
        replicated = self.config.decomposition.replicated
        numbers = {k: jax.lax.with_sharding_constraint(x, replicated) for k, x in position["parameters"].items()}
        return {"noise": position["noise"], "parameters": numbers}


class Posterior(eqx.Module):
    """The posterior of a model, given data: a log density of positions, and draws to start from.

    Positions are as those of `Model`, but for the noise, which the preconditioner, if there is one, moves and scales
    mode by mode, and the parameters, which it scales too.

    Args:
      model, data: that it is of.
      preconditioner: of the noise and the parameters; None: none.
      weight: power of the likelihood: 1 for the posterior itself; less than that while chains come to it.
    """

    model: Model
    data: Array
    preconditioner: Preconditioner | None
    weight: Array = eqx.field(default_factory=lambda: jnp.ones(()))  # an array, so that nothing compiles again

    def logdensity(self, position: Position) -> Array:
        """Logarithm of the posterior density, up to a constant; -inf where the simulation failed."""
        noise, parameters, log_volume = self._unwhiten(position)
        field, fine = self.model.predict(noise, parameters)
        value = self.model.likelihood.logdensity(self.data, field, parameters, self.model.config)
        value = jnp.asarray(of_shape(value, (), "likelihood.logdensity", "a number"))
        white = self._white(position)
        value = self.weight.astype(value.dtype) * value + log_volume
        value = value - 0.5 * trees.dot(noise, noise) - 0.5 * trees.dot(white, white)
        return jnp.where(fine & jnp.isfinite(value), value, -jnp.inf)

    def unwhiten(self, position: Position) -> tuple[Array, dict[str, Array]]:
        """White noise of unit variance a priori, and parameters, of a position."""
        return self._unwhiten(position)[:2]

    def parameters(self, position: Position) -> dict[str, Array]:
        """Parameters of a position."""
        return unwhiten(self._white(position), self.model.priors)

    def _white(self, position: Position) -> dict[str, Array]:
        return self.preconditioner.white(position["parameters"]) if self.preconditioner else position["parameters"]

    def _unwhiten(self, position: Position) -> tuple[Array, dict[str, Array], Array | float]:
        noise, parameters = position["noise"], self.parameters(position)
        noise = lattice_field(noise, self.model.config, "position['noise']")
        if self.preconditioner is None:
            return noise, parameters, 0.0
        noise, log_volume = self.preconditioner.noise(noise, position["parameters"], parameters, self.model.config)
        return noise, parameters, log_volume

    def whiten(self, noise: Array, white: Mapping[str, ArrayLike]) -> Position:
        """The position of white noise and whitened parameters."""
        if self.preconditioner is None:
            return {"noise": noise, "parameters": dict(white)}
        scaled = self.preconditioner.scaled({k: jnp.asarray(x) for k, x in white.items()})
        noise = self.preconditioner.position(noise, scaled, unwhiten(white, self.model.priors), self.model.config)
        return {"noise": noise, "parameters": scaled}

    def adapted(self, adaptation: Adaptation | None) -> Posterior:
        """The posterior with other positions; the same one for None."""
        if adaptation is None:
            return self
        assert self.preconditioner is not None
        return eqx.tree_at(lambda p: p.preconditioner.adaptation, self, adaptation)

    def weighted(self, weight: float | Array) -> Posterior:
        """The posterior with another power of the likelihood.

        Args:
          weight: the power, a number: 0 leaves the prior, 1 is the posterior itself.

        Raises:
          ValueError: a weight that is negative or not finite.
        """
        if not 0 <= float(weight) < math.inf:
            raise ArgumentError("weight", weight, "must be finite and not negative", "use 1 for the posterior itself")
        return eqx.tree_at(lambda p: p.weight, self, jnp.asarray(weight, self.weight.dtype))

    def numpyro_model(self) -> None:
        """The posterior as a model of NumPyro: `numpyro.infer.NUTS(posterior.numpyro_model)`.

        Its sites are "position/noise" and "position/NAME" of each parameter, standard normal but for a factor; each
        parameter itself is a deterministic site, and `numpyro_position` makes positions of samples.
        """
        shapes = {"noise": self.model.config.particle_shape} | dict.fromkeys(self.model.priors, ())
        numpyro_sites(self.logdensity, self.parameters, shapes)

    def observe(self, position: Position, slope: Position) -> tuple[Array, Array]:
        """What the slope at a position shows, for adaptation; nothing if none is adapted."""
        if self.preconditioner is None:
            return jnp.zeros(0), jnp.zeros(0)
        return self.preconditioner.observe(position, slope, self.parameters(position), self.model.config)

    def moved(self, position: Position, other: Posterior) -> Position:
        """The position of another adaptation, for the same noise and parameters."""
        return other.whiten(self.unwhiten(position)[0], self._white(position))

    @eqx.filter_jit
    def initial(self, key: Array, **values: Any) -> Position:
        """A position to start from: parameters from the prior, but for those given, and the noise given them.

        The noise is a draw from its posterior in linear theory where a preconditioner knows it (Hoffman & Ribak 1991),
        and from its prior otherwise.
        """
        model = self.model
        draw_key, key = jax.random.split(key)
        position = model.draw_around(draw_key, whiten(values, model.priors))
        noise = position["noise"]
        if self.preconditioner is not None and self.preconditioner.linear:
            parameters = model.parameters(position)
            noise = wiener_draw(key, noise, self.data, parameters, model.forward, model.likelihood, model.config)
        return self.whiten(noise, position["parameters"])
