"""Observables of particles and fields."""

from pmwd_dist._jax.lazy import lazy_names as _lazy_names
from pmwd_dist.observe.angular_power import AngularPower as AngularPower
from pmwd_dist.observe.angular_power import angular_power as angular_power
from pmwd_dist.observe.angular_power import limber_power as limber_power
from pmwd_dist.observe.assignment import counts_from_catalogue as counts_from_catalogue
from pmwd_dist.observe.assignment import with_window as with_window
from pmwd_dist.observe.bias import LagrangianBias as LagrangianBias
from pmwd_dist.observe.bias import bias_weights as bias_weights
from pmwd_dist.observe.bias import eulerian_bias as eulerian_bias
from pmwd_dist.observe.bias import tracer_density as tracer_density
from pmwd_dist.observe.bispectrum import Bispectrum as Bispectrum
from pmwd_dist.observe.bispectrum import bispectrum as bispectrum
from pmwd_dist.observe.bispectrum import bispectrum_edges as bispectrum_edges
from pmwd_dist.observe.bispectrum import tree_bispectrum as tree_bispectrum
from pmwd_dist.observe.catalogue import Catalogue as Catalogue
from pmwd_dist.observe.catalogue import galaxy_catalogue as galaxy_catalogue
from pmwd_dist.observe.counts import expected_counts as expected_counts
from pmwd_dist.observe.counts import weighted_overdensity as weighted_overdensity
from pmwd_dist.observe.filters import smoothed as smoothed
from pmwd_dist.observe.flat_sky import FlatSkyLightCone as FlatSkyLightCone
from pmwd_dist.observe.halo_masses import overdensity_masses as overdensity_masses
from pmwd_dist.observe.halos import HaloCatalogue as HaloCatalogue
from pmwd_dist.observe.halos import friends_of_friends as friends_of_friends
from pmwd_dist.observe.interlacing import interlaced_density as interlaced_density
from pmwd_dist.observe.lensing import convergence as convergence
from pmwd_dist.observe.lensing import lensing_weights as lensing_weights
from pmwd_dist.observe.lensing import shear as shear
from pmwd_dist.observe.mass_function import MassFunction as MassFunction
from pmwd_dist.observe.mass_function import mass_function as mass_function
from pmwd_dist.observe.mass_function import tinker_mass_function as tinker_mass_function
from pmwd_dist.observe.multipoles import Multipoles as Multipoles
from pmwd_dist.observe.multipoles import kaiser_multipoles as kaiser_multipoles
from pmwd_dist.observe.multipoles import power_multipoles as power_multipoles
from pmwd_dist.observe.pdf import OnePointPDF as OnePointPDF
from pmwd_dist.observe.pdf import one_point_pdf as one_point_pdf
from pmwd_dist.observe.power import CrossPower as CrossPower
from pmwd_dist.observe.power import PowerSpectrum as PowerSpectrum
from pmwd_dist.observe.power import cross_power as cross_power
from pmwd_dist.observe.power import power_spectrum as power_spectrum
from pmwd_dist.observe.power import shot_noise as shot_noise
from pmwd_dist.observe.redshift_space import redshift_space as redshift_space
from pmwd_dist.observe.sphere import SphericalLightCone as SphericalLightCone

__dir__, __all__ = _lazy_names(__name__)[1:]
