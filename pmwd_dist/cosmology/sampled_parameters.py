"""Parameters that an inference may sample, in one table.

Figures are drawn in a process without JAX, which reads the symbols: this module imports none of it.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple


class SampledParameter(NamedTuple):
    """A parameter that an inference may sample.

    Args:
      enters: part of a model that depends on it.
      symbol: symbol in figures, as LaTeX; empty: its name.
      prior: example of its prior in a config file, where its key begins in lower case; empty: it has no key.
      bound: bound from below; empty: none.
      note: description of the key; empty: the key itself.
    """

    enters: Literal["cosmology", "modes", "bias", "noise", "lensing"]
    symbol: str
    prior: str
    bound: Literal["", "positive", "not negative"] = ""
    note: str = ""


_cosmology, _bias, _noise, _lensing = (
    partial(SampledParameter, place) for place in ("cosmology", "bias", "noise", "lensing")
)
PARAMETERS: dict[str, SampledParameter] = {
    "sigma8": _cosmology(
        r"\sigma_8", 'kind = "normal", mean = 0.8, sd = 0.15, low = 0.1', "positive", "sigma8; bound it from below"
    ),
    "A_s": _cosmology(
        "", 'kind = "normal", mean = 2.1e-9, sd = 1e-10, low = 1e-9', "positive", "A_s, in place of sigma8"
    ),
    "Omega_m": _cosmology(r"\Omega_m", 'kind = "normal", mean = 0.3, sd = 0.05, low = 0.06', "positive"),
    "Omega_b": _cosmology(r"\Omega_b", 'kind = "normal", mean = 0.0486, sd = 0.001, low = 0.01', "positive"),
    "Omega_c": _cosmology(r"\Omega_c", "", "positive"),
    "h": _cosmology("h", 'kind = "normal", mean = 0.68, sd = 0.02, low = 0.5', "positive"),
    "n_s": _cosmology("n_s", 'kind = "normal", mean = 0.9667, sd = 0.01'),
    "Omega_k": _cosmology(r"\Omega_k", 'kind = "normal", mean = 0.0, sd = 0.05'),
    "w0": _cosmology("w_0", 'kind = "uniform", low = -1.5, high = -0.5'),
    "wa": _cosmology("w_a", 'kind = "normal", mean = 0.0, sd = 0.3, high = 0.4'),
    "m_nu": _cosmology("", 'kind = "uniform", low = 0.0, high = 0.6', "not negative"),
    "n_eff": _cosmology("", 'kind = "normal", mean = 3.0, sd = 0.2, low = 1.0', "positive"),
    "b1": _bias("b_1", 'kind = "uniform", low = 0.5, high = 4.0'),
    "b2": _bias("b_2", 'kind = "normal", mean = 0.0, sd = 1.0'),
    "bs2": _bias("b_{s^2}", 'kind = "normal", mean = 0.0, sd = 1.0'),
    "bnabla2": _bias(r"b_{\nabla^2}", 'kind = "normal", mean = 0.0, sd = 10.0'),
    "bphi": _bias("", 'kind = "normal", mean = 3.0, sd = 1.0'),
    "bphidelta": _bias("", 'kind = "normal", mean = 0.0, sd = 5.0'),
    "b3": _bias("b_3", 'kind = "normal", mean = 0.0, sd = 1.0'),
    "bdeltas2": _bias(r"b_{\delta s^2}", 'kind = "normal", mean = 0.0, sd = 1.0'),
    "bs3": _bias("b_{s^3}", 'kind = "normal", mean = 0.0, sd = 1.0'),
    "f_nl": SampledParameter("modes", "", 'kind = "normal", mean = 0.0, sd = 50.0', note="cosmology.f_nl"),
    "sigma": _noise(r"\sigma", 'kind = "lognormal", median = 0.5, sd = 0.3', "positive", "likelihood.sigma"),
    "slope": _noise("s", 'kind = "normal", mean = 0.5, sd = 0.3', note="likelihood.slope"),
    "noise_k2": _noise("c_{k^2}", 'kind = "normal", mean = 0.0, sd = 10.0', note="likelihood.noise_k2"),
    "nbar": _noise(r"\bar n", 'kind = "lognormal", median = 2.0, sd = 0.3', "positive", "likelihood.nbar"),
    "dispersion": _noise(r"\alpha", 'kind = "lognormal", median = 0.2, sd = 0.5', "positive", "likelihood.dispersion"),
    "template": _noise("A", 'kind = "normal", mean = 0.0, sd = 0.1', note="the amplitude of each of data.templates"),
    "delta_z": _lensing(
        r"\Delta z",
        'kind = "normal", mean = 0.0, sd = 0.01',
        note="the shift of the redshifts of each source of [observe.light_cone]; its numbers may be lists, of one for "
        "each",
    ),
    "m": _lensing("m", 'kind = "normal", mean = 0.0, sd = 0.01', note="the multiplicative bias of each source"),
    "A_IA": _lensing(r"A_{IA}", 'kind = "normal", mean = 0.5, sd = 1.0', note="the amplitude of intrinsic alignments"),
    "eta_IA": _lensing(
        r"\eta_{IA}",
        'kind = "normal", mean = 0.0, sd = 2.0',
        note="the power of their (1 + z) / 1.62",
    ),
}
SYMBOLS = {name: x.symbol for name, x in PARAMETERS.items() if x.symbol}
KEYS = {name: name.replace("Omega", "omega") for name in PARAMETERS}  # of [priors]
BIASES = tuple(name for name, x in PARAMETERS.items() if x.enters == "bias")
OF_SOURCES = ("delta_z", "m")  # NAME_0, NAME_1, ..., one for each map
NAMES = {KEYS[name]: name for name, x in PARAMETERS.items() if x.prior}


def split_index(name: str) -> tuple[str, str]:
    """The name in PARAMETERS of a number of several, NAME_0, NAME_1, ..., and its index; of others, the name and ""."""
    stem, _, index = name.rpartition("_")
    return (stem, index) if index.isdigit() and stem in PARAMETERS else (name, "")


def symbol_of(name: str) -> str:
    """Symbol of a parameter, as LaTeX; empty: none."""
    stem, index = split_index(name)
    symbol = SYMBOLS.get(stem, "")
    return f"{symbol}_{{{index}}}" if symbol and index else symbol


def bound_of(name: str) -> str:
    """Bound of a parameter of the cosmology; empty for others."""
    return PARAMETERS[name].bound if name in PARAMETERS and PARAMETERS[name].enters == "cosmology" else ""
