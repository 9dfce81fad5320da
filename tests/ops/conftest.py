"""Ops promote no dtypes by themselves. Above them spectra are multiplied by real factors, and diffrax relies on it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def no_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield
