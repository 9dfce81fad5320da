"""pmwd_dist: distributed, differentiable particle-mesh simulations for cosmology, on JAX."""

import typing as _typing

from pmwd_dist._jax.lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from pmwd_dist import config as config
    from pmwd_dist import infer as infer
    from pmwd_dist import observe as observe
    from pmwd_dist._jax.native import native_available as native_available
    from pmwd_dist.config import Config as Config
    from pmwd_dist.cosmology.distance import comoving_distance as comoving_distance
    from pmwd_dist.cosmology.growth import Growth as Growth
    from pmwd_dist.cosmology.growth import GrowthTable as GrowthTable
    from pmwd_dist.cosmology.growth import growth as growth
    from pmwd_dist.cosmology.growth import growth_rate as growth_rate
    from pmwd_dist.cosmology.growth import growth_table as growth_table
    from pmwd_dist.cosmology.linear_power import linear_power as linear_power
    from pmwd_dist.cosmology.parameters import with_dark_energy as with_dark_energy
    from pmwd_dist.cosmology.parameters import with_neutrinos as with_neutrinos
    from pmwd_dist.io.compilation_cache import enable_compilation_cache as enable_compilation_cache
    from pmwd_dist.io.snapshot.initial import load_initial_conditions as load_initial_conditions
    from pmwd_dist.io.snapshot.matter import snapshot_density as snapshot_density
    from pmwd_dist.io.snapshot.reader import load_snapshot as load_snapshot
    from pmwd_dist.io.snapshot.swift import save_groups as save_groups
    from pmwd_dist.io.snapshot.writer import save_snapshot as save_snapshot
    from pmwd_dist.observe.power import PowerSpectrum as PowerSpectrum
    from pmwd_dist.observe.power import power_spectrum as power_spectrum
    from pmwd_dist.ops.kernels import export_safety_checks as export_safety_checks
    from pmwd_dist.parallel import distributed as distributed
    from pmwd_dist.parallel.autotune import autotune as autotune
    from pmwd_dist.parallel.backends import cudecomp as cudecomp
    from pmwd_dist.parallel.decomposition import Decomposition as Decomposition
    from pmwd_dist.parallel.fft import fftfreq3d as fftfreq3d
    from pmwd_dist.parallel.fft import get_fft_output_sharding as get_fft_output_sharding
    from pmwd_dist.parallel.fft import pfft3d as pfft3d
    from pmwd_dist.parallel.fft import pifft3d as pifft3d
    from pmwd_dist.parallel.fft import pirfft3d as pirfft3d
    from pmwd_dist.parallel.fft import prfft3d as prfft3d
    from pmwd_dist.parallel.halo import halo_pad as halo_pad
    from pmwd_dist.parallel.halo import halo_reduce as halo_reduce
    from pmwd_dist.pm.diffrax_adjoint import ReversibleAdjoint as ReversibleAdjoint
    from pmwd_dist.pm.force_correction import ForceCorrection as ForceCorrection
    from pmwd_dist.pm.lpt import lpt as lpt
    from pmwd_dist.pm.modes import linear_modes as linear_modes
    from pmwd_dist.pm.nbody import Solution as Solution
    from pmwd_dist.pm.nbody import nbody as nbody
    from pmwd_dist.pm.noise import white_noise as white_noise
    from pmwd_dist.pm.paint import cic_paint as cic_paint
    from pmwd_dist.pm.paint import cic_read as cic_read
    from pmwd_dist.pm.paint import density as density
    from pmwd_dist.pm.particles import Particles as Particles
    from pmwd_dist.pm.solvers.diffrax_solvers import BullFrog as BullFrog
    from pmwd_dist.pm.solvers.diffrax_solvers import FastPM as FastPM
    from pmwd_dist.pm.solvers.diffrax_solvers import LeapFrog as LeapFrog
    from pmwd_dist.pm.solvers.diffrax_solvers import ParticleMesh as ParticleMesh
    from pmwd_dist.pm.status import SimulationError as SimulationError
    from pmwd_dist.pm.status import Status as Status
    from pmwd_dist.report import plot as plot
    from pmwd_dist.run.load import LoadedConfig as LoadedConfig
    from pmwd_dist.run.load import load_config as load_config

    __version__: str
else:
    _find, __dir__, __all__ = _lazy_names(__name__)

    def __getattr__(name: str) -> object:
        return _installed_version() if name == "__version__" else _find(name)


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pmwd-dist")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
