"""Figures of spectra, fields and chains. Each function returns a matplotlib Figure, or draws on given axes.

Matplotlib is imported when the first figure is drawn, and no window is opened.
"""

from pmwd_dist.report.catalogues import mass_function, wedge
from pmwd_dist.report.chains import corner, mixing, traces
from pmwd_dist.report.fields import convergence, density, planes
from pmwd_dist.report.spectra import angular_power, bands, bispectrum, cross, multipoles, pdf, power

__all__ = [
    "angular_power",
    "bands",
    "bispectrum",
    "convergence",
    "corner",
    "cross",
    "density",
    "mass_function",
    "mixing",
    "multipoles",
    "pdf",
    "planes",
    "power",
    "traces",
    "wedge",
]
