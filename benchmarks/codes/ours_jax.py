"""pmwd_dist without its native ops. The choice holds for the whole process: workers are processes of their own."""

from __future__ import annotations

from benchmarks.codes import ours
from pmwd_dist._jax import native


class Code(ours.Code):
    """pmwd_dist as it runs where jaxdecomp-ops is not installed."""

    def __init__(self, n: int):
        native.native_available = lambda: False
        super().__init__(n)
