"""Field-level inference: posteriors of initial conditions and parameters, and samplers on divided fields."""

import typing as _typing

from pmwd_dist._jax.lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from pmwd_dist.infer.chain.chain import Chain as Chain
    from pmwd_dist.infer.chain.chain import Progress as Progress
    from pmwd_dist.infer.chain.diagnostics import energy_errors as energy_errors
    from pmwd_dist.infer.chain.diagnostics import ess_bulk as ess_bulk
    from pmwd_dist.infer.chain.diagnostics import ess_mean as ess_mean
    from pmwd_dist.infer.chain.diagnostics import ess_tail as ess_tail
    from pmwd_dist.infer.chain.diagnostics import evaluations_per_ess as evaluations_per_ess
    from pmwd_dist.infer.chain.diagnostics import rhat as rhat
    from pmwd_dist.infer.chain.diagnostics import step_bias as step_bias
    from pmwd_dist.infer.chain.diagnostics import summary as summary
    from pmwd_dist.infer.chain.export import as_arviz as as_arviz
    from pmwd_dist.infer.chain.export import as_getdist as as_getdist
    from pmwd_dist.infer.chain.folder import load_chain as load_chain
    from pmwd_dist.infer.forward import ForwardModel as ForwardModel
    from pmwd_dist.infer.forward import Observable as Observable
    from pmwd_dist.infer.galaxies import LagrangianGalaxies as LagrangianGalaxies
    from pmwd_dist.infer.gaussian import Gaussian as Gaussian
    from pmwd_dist.infer.lensing import Convergence as Convergence
    from pmwd_dist.infer.lensing import ShapeNoise as ShapeNoise
    from pmwd_dist.infer.lensing import Shear as Shear
    from pmwd_dist.infer.likelihoods import Likelihood as Likelihood
    from pmwd_dist.infer.model import Model as Model
    from pmwd_dist.infer.model import Posterior as Posterior
    from pmwd_dist.infer.model import numpyro_position as numpyro_position
    from pmwd_dist.infer.optimise import maximise as maximise
    from pmwd_dist.infer.poisson import Poisson as Poisson
    from pmwd_dist.infer.predictive_checks import Check as Check
    from pmwd_dist.infer.predictive_checks import check_fit as check_fit
    from pmwd_dist.infer.predictive_checks import check_prior as check_prior
    from pmwd_dist.infer.priors import LogNormal as LogNormal
    from pmwd_dist.infer.priors import Normal as Normal
    from pmwd_dist.infer.priors import Uniform as Uniform
    from pmwd_dist.infer.samplers import hmc as hmc
    from pmwd_dist.infer.samplers import mclmc as mclmc
    from pmwd_dist.infer.sampling import sample as sample
    from pmwd_dist.infer.simulation import LinearField as LinearField
    from pmwd_dist.infer.simulation import Simulation as Simulation
    from pmwd_dist.infer.tuning.loop import TuningProgress as TuningProgress
    from pmwd_dist.infer.tuning.saved import SavedTuning as SavedTuning
    from pmwd_dist.infer.tuning.saved import load_tuning as load_tuning
    from pmwd_dist.io.arrays import ArrayFileError as ArrayFileError
else:
    __getattr__, __dir__, __all__ = _lazy_names(__name__)
