"""Observables of particles and fields."""

from pmwd_dist.observe.flat_sky import FlatSkyLightCone as FlatSkyLightCone
from pmwd_dist.observe.lensing import convergence as convergence
from pmwd_dist.observe.lensing import lensing_weights as lensing_weights
from pmwd_dist.observe.lensing import shear as shear
