"""pmwd_dist without its native ops. The choice holds for the whole process: workers are processes of their own."""

from __future__ import annotations

from pmwd_dist import _native
from pmwd_dist.bench.codes import ours


class Code(ours.Code):
    """pmwd_dist as it runs where jaxdecomp-ops is not installed."""

    def __init__(self, n: int):
        _native.native_available = lambda: False
        super().__init__(n)
