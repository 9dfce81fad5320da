"""The interface of a communication backend."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact, Num, Real

from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist.parallel.division import Division, Shape3


class Addition(NamedTuple):
    """Addition of halos: the sum of two arrays, and a function of the final sums, cell by cell."""

    add: Callable[[Array, Array], Array] = jnp.add
    finish: Callable[[Array], Array] = lambda x: x


PLAIN = Addition()


class Backend(abc.ABC):
    """Transforms and halos, which move blocks of fields between devices. Hashable; part of a `Decomposition`.

    Methods take and return local blocks, inside shard_map. A block of a real field has shape (bx, by, nz), a block of
    its spectrum (nx, bky, bkz), in the layouts of `parallel.fft`.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()  # arguments of `Decomposition` for this backend
    needs_mesh: ClassVar[bool] = False  # whether its ops need a shard_map, which names their devices
    needs_opening: ClassVar[bool] = False  # if so, "auto" excludes this backend, and `open` reports missing parts

    @classmethod
    def create(cls, options: Mapping[str, str]) -> Self:
        """The backend with options by name."""
        return cls(**options)

    @classmethod
    def candidates(cls, division: Division) -> Sequence[Backend]:
        """The variants of this backend that `autotune` measures for a division, if available. Collective."""
        backend = cls()
        return [] if backend.unavailable_reason(division) else [backend]

    @property
    def options(self) -> dict[str, str]:
        """The options of this backend, as `create` takes them."""
        return {}

    @property
    def is_open(self) -> bool:
        """Whether `open` was called and `close` was not."""
        return False

    @abc.abstractmethod
    def unavailable_reason(self, division: Division) -> str | None:
        """Reason why the backend is not available for these devices, a phrase that follows its name, or None."""

    def open(self, division: Division, shapes: Sequence[Shape3], *, halo: int = 0) -> None:  # noqa: B027  optional
        """Prepare libraries, communicators and work areas, before any tracing. Collective."""

    def close(self) -> None:  # noqa: B027  optional
        """Release the resources of `open`, once the devices are done. Collective."""

    @abc.abstractmethod
    def rfft(self, block: Real[Array, "x y z"], division: Division) -> Complex[Array, "kx ky kz"]:
        """Transform a real field; kz is padded with zeros to a multiple of pdims[1]."""

    @abc.abstractmethod
    def irfft(self, block: Complex[Array, "kx ky kz"], nz: int, division: Division) -> Real[Array, "x y z"]:
        """Invert `rfft`, for a field with nz cells along z."""

    def filtered(
        self, block: Float[Array, "x y z"], response: Callable[[], Float[Array, "#kx #ky #kz"]], division: Division
    ) -> Float[Array, "x y z"]:
        """Multiply the spectrum of a real field by a real filter, even along kx and along ky.

        `response` returns the filter on the local block of the spectrum.
        """
        return self.irfft(scaled(self.rfft(block, division), response()), block.shape[2], division)

    @abc.abstractmethod
    def fft(self, block: Inexact[Array, "x y z"], division: Division) -> Complex[Array, "kx ky kz"]:
        """Transform a complex field."""

    @abc.abstractmethod
    def ifft(self, block: Inexact[Array, "kx ky kz"], division: Division) -> Complex[Array, "x y z"]:
        """Invert `fft`."""

    @abc.abstractmethod
    def halo_pad(self, block: Num[Array, "x y z"], halo: int, division: Division) -> Num[Array, "mx my z"]:
        """Add `halo` cells of the neighbours on each side of each divided axis."""

    @abc.abstractmethod
    def halo_reduce(
        self, block: Num[Array, "mx my z"], halo: int, division: Division, addition: Addition = PLAIN
    ) -> Num[Array, "x y z"]:
        """Add the halos onto the cells of the neighbours: the transpose of `halo_pad`."""
