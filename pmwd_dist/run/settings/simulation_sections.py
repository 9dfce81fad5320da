"""The sections of the TOML file, with their defaults, bounds and units."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from pmwd_dist.cosmology.linear_power import DEFAULT, TRANSFERS
from pmwd_dist.cosmology.parameters import LARGEST_W, NODES
from pmwd_dist.io.snapshot.base import Precision
from pmwd_dist.io.snapshot.writer import Compression, Format
from pmwd_dist.parallel.defaults import BackendName, HaloComm, TransposeComm
from pmwd_dist.pm.solvers import SolverName
from pmwd_dist.run.settings.section import (
    Counts,
    File,
    Listed,
    Parts,
    Section,
    Sides,
    about,
    absolute,
    ascending,
    duration,
    one_or_several,
)


def _halo(value: object) -> object:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError('must be a whole number of mesh cells, 0 or more, or "auto"')
    return value


def _interval(value: object) -> object:
    if isinstance(value, str):
        duration(value)
    elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('must be a whole number of steps, 0 or more, or a duration, such as "10 min"')
    return value


def _distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    labels = [redshift_label(z) for z in values]
    if len(set(labels)) < len(labels):
        raise ValueError("must differ by 0.001 or more, as the names of their files do")
    return values


def redshift_label(z: float) -> str:
    """Part of a file name for a redshift, such as z0.500."""
    return f"z{z:.3f}".replace("z-0.000", "z0.000")


def _of_dark_energy(pairs: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if len(pairs) < 2:
        raise ValueError("must hold two or more pairs [a, w]")
    if pairs[0][1] >= 0:
        raise ValueError(f"must begin with w < 0, as with w = {pairs[0][1]:g} dark energy dominates early")
    return pairs


_A = Annotated[float, Field(ge=NODES[0], le=NODES[1])]
_AW = Annotated[tuple[_A, Annotated[float, Field(ge=-LARGEST_W, le=LARGEST_W)]], Listed]
_Table = Annotated[tuple[_AW, ...], Listed, AfterValidator(ascending), AfterValidator(_of_dark_energy)]
_Power = Annotated[str, AfterValidator(lambda name, info: name if name in TRANSFERS else absolute(name, info))]
Redshift = Annotated[float, Field(gt=-1)]
Redshifts = Annotated[tuple[Redshift, ...], BeforeValidator(one_or_several), AfterValidator(_distinct)]


class Box(Section):
    """The periodic box, its mesh and its particles."""

    size: Sides = about("side of the box [Mpc/h]; one number, or three", example=256.0)
    mesh: Counts = about("cells of the force mesh along a side; one number, or three", example=128)
    particles: Counts | None = about(
        "particles along a side; default: as many as mesh cells; mesh and particles must be n, 1/n or 3/2 to 1",
        None,
        128,
    )


class Time(Section):
    """The time span and its steps."""

    a_start: float = about("scale factor of the initial conditions", 0.1, ge=1e-3, lt=2)
    a_stop: float = about("scale factor at the end", 1.0, gt=1e-3, le=2)
    steps: int = about(
        "number of time steps, uniform in the growth factor; outputs, at which steps end, may add some",
        20,
        ge=1,
        le=100_000,
    )
    solver: SolverName = about(" or ".join(", ".join(get_args(SolverName)).rsplit(", ", 1)), "bullfrog")
    lpt_order: int = about("order of the initial conditions: 1 (Zel'dovich), 2 or 3", 3, ge=1, le=3)


class Cosmology(Section):
    """The cosmology; the defaults are Planck 2015."""

    omega_m: float = about(
        "matter density today, baryons and massive neutrinos included, per critical density", 0.3075, gt=0, le=2
    )
    omega_b: float = about("baryon density today, per critical density", 0.0486, gt=0, le=1)
    h: float = about("Hubble constant today [100 km/s/Mpc]", 0.6774, gt=0.1, lt=3)
    n_s: float = about("spectral index of the primordial power", 0.9667, gt=-1, lt=3)
    sigma8: float = about("rms of the linear density today in spheres of 8 Mpc/h", 0.8159, gt=0, le=5)
    omega_k: float = about("curvature density today, per critical density", 0.0, gt=-1, lt=1)
    w0: float = about("dark-energy equation of state today", -1.0, gt=-3, lt=0)
    wa: float = about("its derivative: w(a) = w0 + wa (1 - a)", 0.0, gt=-5, lt=3)
    w_table: _Table | None = about(
        "dark-energy equation of state as pairs [a, w], linear in a between them, in place of w0 and wa",
        None,
        [[0.3, -0.8], [0.6, -0.95], [1.0, -1.0]],
    )
    A_s: float | None = about(
        "amplitude of the primordial power at k = 0.05/Mpc, in place of sigma8", None, 2.1e-9, gt=0, lt=1e-7
    )
    n_eff: float | None = about(
        "effective number of neutrino species: adds photons and neutrinos; default: no radiation, or 3.044 with m_nu",
        None,
        3.044,
        gt=0,
    )
    m_nu: float = about("sum of the masses of three degenerate neutrinos, a part of omega_m [eV]", 0.0, ge=0, le=3)
    f_nl: float = about("local primordial non-Gaussianity; of an inference, with a prior", 0.0, ge=-1e6, le=1e6)
    linear_power: _Power = about(
        f"transfer function of the linear P(k): {' or '.join(TRANSFERS)}; or a text file with P(k) at a = 1 in two "
        "columns, k [h/Mpc] and P [(Mpc/h)^3], path relative to this file",
        DEFAULT,
        "planck.txt",
    )
    normalise: bool = about("scale the P(k) of the file to sigma8", False)

    @property
    def table(self) -> str | None:
        """File of the linear P(k), if it is one."""
        return None if self.linear_power in TRANSFERS else self.linear_power


class Noise(Section):
    """The random numbers; the keys after the seed are of the initial conditions, in an inference of a mock's."""

    seed: int = about("seed of the white noise; the same on any number of devices", 0, ge=0, lt=2**32)
    nested: bool = about("keep the long waves when box.particles changes, in the same box", False)
    fixed: bool = about("give each mode its rms amplitude, with a random phase", False)
    paired: bool = about("reverse the sign of the noise: the second run of a pair", False)
    file: File | None = about(
        'file with the noise in place of a seed, of unit variance and shape box.particles: .npy or "file.h5:/dataset"',
        None,
        "noise.npy",
    )


class SimulationStart(Section):
    """Initial conditions of another code."""

    snapshot: File | None = about(
        "particles to start from, in place of noise and LPT: a file, or a set of files, in the HDF5 format of Gadget "
        "or SWIFT, as MUSIC and monofonIC write it; its box, lattice, scale factor and cosmology must be those of this "
        "file",
        None,
        "ics.hdf5",
    )
    check_motion: bool = about("refuse a snapshot whose velocities are off linear growth by 10 %", True)


class Force(Section):
    """The gravity of the mesh."""

    gradient: Literal["finite-difference", "spectral"] = about(
        "gradient of the potential: finite-difference (fourth order, CIC window deconvolved) or spectral",
        "finite-difference",
    )
    compensated: bool = about(
        "make up for what finite differences and aliases take from the force of waves up to half the mesh's Nyquist "
        "frequency; docs/explanation/accuracy.md says what P(k) gains or loses",
        False,
    )
    correction: Literal["auto", "none"] | File | None = about(
        'trained correction of the force on small scales: "auto", one of this package, which docs/howto/force.md '
        'lists, a file from ForceCorrection.save, or "none"; default: in a run with two cells a particle, the '
        "one that was trained for its spacing, steps, start and cosmology, if any",
        None,
        "auto",
    )


class Devices(Section):
    """The division over devices."""

    pdims: Parts | None = about("devices along x and y; default: all, as slabs along x where they fit", None, [2, 1])
    backend: BackendName = about(
        "communication backend: peer (GPUs of one host), xla, cudecomp (one process a GPU) or auto", "auto"
    )
    transpose_comm: TransposeComm | None = about("cudecomp's communication for transposes; default: nccl", None, "nccl")
    halo_comm: HaloComm | None = about("cudecomp's communication for halos; default: nccl", None, "nccl")
    halo: Annotated[int | Literal["auto"], BeforeValidator(_halo)] = about(
        'cells that a displacement may reach over the edge of a block; "auto" widens it as needed', "auto"
    )


class OutputSection(Section):
    """Outputs and their redshifts."""

    redshifts: Redshifts | None = about(
        "redshifts of the outputs: P(k), density slice and snapshot at each; default: the end of the run",
        None,
        [1.0, 0.0],
    )
    snapshot: Literal["none", Format] = about("format of the snapshots: gadget or swift, or none", "gadget")
    precision: Precision | None = about(
        "precision of positions in snapshots: single or double; default: single in gadget, double in swift",
        None,
        "double",
    )
    compression: Compression | None = about(
        "compression of snapshots: zstd, which needs hdf5plugin, also to read them; default: none", None, "zstd"
    )
    figures: bool = about("draw figures; `pmwd-dist report` draws them later", True)
    slice_thickness: float = about(
        "thickness of the projected density slice [Mpc/h], at most the box; 0 for none", 8.0, ge=0
    )
    checkpoint_every: Annotated[int | str, BeforeValidator(_interval)] = about(
        'steps between checkpoints, or a duration, such as "10 min"; 0: only when interrupted or failed', 0
    )
