"""Symbols of parameters in figures, as LaTeX."""

from __future__ import annotations

SYMBOLS = {
    "sigma8": r"\sigma_8",
    **{f"Omega_{x}": rf"\Omega_{x}" for x in "bckm"},
    "n_s": "n_s",
    "w0": "w_0",
    "wa": "w_a",
    "b1": "b_1",
    "b2": "b_2",
    "bs2": "b_{s^2}",
    "bnabla2": r"b_{\nabla^2}",
    "sigma": r"\sigma",
    "nbar": r"\bar n",
    "h": "h",
}
