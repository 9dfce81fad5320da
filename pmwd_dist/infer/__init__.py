"""Field-level inference: posteriors of initial conditions and parameters, and samplers on divided fields."""

from pmwd_dist.infer.arviz import save_arviz as save_arviz
from pmwd_dist.infer.chains import Chain as Chain
from pmwd_dist.infer.chains import load_chain as load_chain
from pmwd_dist.infer.diagnostics import energy_errors as energy_errors
from pmwd_dist.infer.diagnostics import ess_bulk as ess_bulk
from pmwd_dist.infer.diagnostics import ess_mean as ess_mean
from pmwd_dist.infer.diagnostics import ess_tail as ess_tail
from pmwd_dist.infer.diagnostics import evaluations_per_ess as evaluations_per_ess
from pmwd_dist.infer.diagnostics import rhat as rhat
from pmwd_dist.infer.diagnostics import summary as summary
from pmwd_dist.infer.forward import LinearField as LinearField
from pmwd_dist.infer.forward import Simulation as Simulation
from pmwd_dist.infer.galaxies import LagrangianGalaxies as LagrangianGalaxies
from pmwd_dist.infer.likelihoods import Gaussian as Gaussian
from pmwd_dist.infer.likelihoods import Poisson as Poisson
from pmwd_dist.infer.model import Model as Model
from pmwd_dist.infer.model import Posterior as Posterior
from pmwd_dist.infer.optimise import maximise as maximise
from pmwd_dist.infer.priors import LogNormal as LogNormal
from pmwd_dist.infer.priors import Normal as Normal
from pmwd_dist.infer.priors import Uniform as Uniform
from pmwd_dist.infer.samplers import hmc as hmc
from pmwd_dist.infer.samplers import mclmc as mclmc
from pmwd_dist.infer.sampling import Progress as Progress
from pmwd_dist.infer.sampling import sample as sample
