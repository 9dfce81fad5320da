"""The sections of the TOML file about observables: each is measured where the file has its section."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from pmwd_dist.run.settings.section import File, Listed, Pairs, Section, Three, about, one_or_several

Axis = Literal["x", "y", "z"]
MASK = "observe.galaxies.mask"


def _selection(pairs: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if not pairs or any(a[0] >= b[0] for a, b in itertools.pairwise(pairs)):
        raise ValueError("must be pairs [distance, share] whose distances ascend")
    if min(distance for distance, _ in pairs) < 0:
        raise ValueError("must have distances of 0 or more")
    if not all(0 <= share <= 1 for _, share in pairs):
        raise ValueError("must have shares from 0 to 1")
    return pairs


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) < 2 or any(a >= b for a, b in itertools.pairwise(values)):
        raise ValueError("must be two or more numbers that ascend")
    return values


Selection = Annotated[Pairs, AfterValidator(_selection)]
Distance = Annotated[float, Field(ge=0, le=1e6)]
Edges = Annotated[tuple[Distance, ...], Listed, AfterValidator(_ascending)]
Source = Annotated[float, Field(gt=0, le=1000)]
Sources = Annotated[tuple[Source, ...], BeforeValidator(one_or_several)]
Place = Annotated[tuple[Distance, Distance, Distance], Three]


_BIAS: Any = {"ge": -1e4, "le": 1e4}
# Interlaced spectra are right to 0.4 % of the monopole up to there.
_K_MAX: Any = about(
    "largest wavenumber of the table [h/Mpc]; default: 0.95 of the Nyquist frequency of the mesh", None, 0.5, gt=0
)


class Multipoles(Section):
    """Multipoles of the power of matter in redshift space, at each output."""

    line_of_sight: Axis = about("axis along which redshifts move the particles: x, y or z", "z")
    k_max: float | None = _K_MAX


class Galaxies(Section):
    """Galaxies by Lagrangian bias, at each output: multipoles of their power, and their counts in cells."""

    b1: float = about("linear bias; on large scales galaxies have (1 + b1)^2 times the power of matter", 1.0, **_BIAS)
    b2: float = about("bias of delta^2", 0.0, **_BIAS)
    bs2: float = about("bias of the squared tidal field s^2", 0.0, **_BIAS)
    bnabla2: float = about("bias of the Laplacian of delta [(Mpc/h)^2]", 0.0, **_BIAS)
    smoothing: float | None = about(
        "radius of a Gaussian filter on the linear field [Mpc/h]; needed by b2, bs2 and bnabla2",
        None,
        4.0,
        gt=0,
        le=1e5,
    )
    redshift_space: bool = about("move the galaxies by their redshifts", True)
    line_of_sight: Axis = about("axis of the redshifts and of the selection: x, y or z", "z")
    number_density: float | None = about(
        "mean number of galaxies where the selection is 1 [(h/Mpc)^3]: counts in cells are drawn; default: none",
        None,
        1e-3,
        gt=0,
        le=1e6,
    )
    selection: Selection | None = about(
        "shares that a survey sees, [distance, share] with the distance from the lower side of the box along the line "
        "of sight [Mpc/h]; linear in between, constant beyond; default: all",
        None,
        [[0.0, 1.0], [200.0, 0.3]],
    )
    mask: File | None = about(
        'file with the share of each cell that a survey sees, .npy or "file.h5:/dataset", of the shape of the mesh; '
        "path relative to this file; default: all",
        None,
        "survey.h5:/mask",
    )
    k_max: float | None = _K_MAX


class Bispectrum(Section):
    """Bispectrum of the density in real space, at each output."""

    shells: int = about(
        "number of shells of wavenumbers, of equal width, in which sides of triangles lie", 8, ge=1, le=64
    )
    k_max: float | None = about(
        "largest wavenumber of a side [h/Mpc]; default: 2/3 of the Nyquist frequency of the mesh, beyond which "
        "triangles would close by aliases",
        None,
        0.3,
        gt=0,
    )
    triangles: Literal["all", "isosceles", "equilateral"] = about("all, isosceles or equilateral", "all")


class Cross(Section):
    """Correlation r(k) and transfer function T(k) of the density with its linear field, at each output."""


class PDF(Section):
    """One-point distribution of the density, at each output."""

    smoothing: float = about("radius of a Gaussian filter on the density [Mpc/h]; 0 for none", 0.0, ge=0, le=1e5)
    low: float = about("lowest density, in units of the mean", 0.01, gt=0)
    high: float = about("highest density", 100.0, gt=0)
    bins: int = about("number of densities, equidistant in their logarithm", 60, ge=2, le=10_000)


class LightCone(Section):
    """The past light cone, filled during the run, and the lensing by it, at the end of the run."""

    sky: Literal["flat", "sphere"] = about("flat: the observer looks along an axis; sphere: in all directions", "flat")
    line_of_sight: Axis = about("axis along which the observer looks on a flat sky", "z")
    sources: Sources = about("redshifts of lensed sources; one or several", (1.0,), 1.0)
    edges: Edges | None = about(
        "comoving distances between which the shells lie [Mpc/h]; default: shells of half a box, out to the sources",
        None,
        [0.0, 500.0, 1000.0],
    )
    observer: Place | None = about(
        "place of the observer in the box [Mpc/h]; default: the lower side along the line of sight, or the centre for "
        "a sphere",
        None,
        [0.0, 0.0, 0.0],
    )
    pixels: int | None = about("pixels along a side of a plane of a flat sky; default: twice the mesh", None, 256, ge=1)
    field: float | None = about(
        "side of the field of view on a flat sky [degrees]; default: the box at the last shell, at most 10",
        None,
        5.0,
        ge=1e-3,
        le=90,
    )
    rays: int = about("rays along each side of the field of view", 256, ge=4, le=1 << 15)
    shift: bool = about("shift each repetition of the box at random on a flat sky, for the lensing", True)
    nside: int = about("pixels along the side of a HEALPix base pixel, of a sphere", 128, ge=1, le=1 << 13)


class Observe(BaseModel):
    """The observables; None for those that are not measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    multipoles: Multipoles | None = None
    galaxies: Galaxies | None = None
    bispectrum: Bispectrum | None = None
    cross: Cross | None = None
    pdf: PDF | None = None
    light_cone: LightCone | None = None


SECTIONS: dict[str, type[Section]] = {
    name: get_args(field.annotation)[0] for name, field in Observe.model_fields.items()
}
