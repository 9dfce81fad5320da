"""Halos on the light cone: points on straight lines in the growth factor, each where light passes it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

import pmwd_dist as pmd
from pmwd_dist import observe

BOX = (300.0, 200.0, 250.0)
TIMES = (0.8, 0.9, 1.0)
CONFIG = pmd.Config(BOX, 4, decomposition=(1, 1))
rng = np.random.default_rng(0)
START, SLOPE = rng.uniform(size=(40, 3)) * BOX, rng.normal(scale=20.0, size=(40, 3))  # at D = 0, and per D [Mpc/h]


def catalogue(a: float, table: pmd.GrowthTable, **about: Any) -> observe.HaloCatalogue:
    """The points at a scale factor, as halos."""
    x = (START + SLOPE * float(table.D1(a))) % BOX
    u = SLOPE * float(table.momentum(a)) * 100 / a
    columns: dict[str, np.ndarray] = {"halo_id": np.arange(len(x)), "halo_mfof": 1e12 + np.arange(len(x))}
    for i, axis in enumerate("xyz"):
        columns |= {f"halo_{axis}": x[:, i], f"halo_core_{axis}": x[:, i], f"halo_v{axis}": u[:, i]}
    return observe.HaloCatalogue(columns, dict.fromkeys(columns, ""), {"a": a, "box_size [Mpc/h]": BOX} | about)


def test_halos_are_where_light_passes_them(cosmo: Any) -> None:
    """Each point once in each repetition of the box, although catalogues end between their times."""
    table, observer = pmd.growth_table(cosmo), np.array([10.0, 150.0, 30.0])
    found = observe.halo_light_cone([catalogue(a, table) for a in (*TIMES, 1.2)], cosmo, CONFIG, observer=observer)
    a = np.linspace(0.75, 1, 2000)
    r, D = (np.asarray(x)[::-1] for x in (pmd.comoving_distance(a, table), table.D1(a)))
    farthest, expected = float(pmd.comoving_distance(0.8, table)), []
    for i, shift in itertools.product(range(len(START)), itertools.product(range(-4, 5), repeat=3)):
        x = START[i] + np.asarray(shift) * BOX - observer
        if np.linalg.norm(x) > farthest + 100:
            continue

        def ahead(distance: float, x: Any = x, w: Any = SLOPE[i]) -> float:
            return np.linalg.norm(x + w * np.interp(distance, r, D)) - distance

        if ahead(0.0) > 0 > ahead(farthest):
            distance = brentq(ahead, 0, farthest, xtol=1e-10)
            expected.append((i, *(x + SLOPE[i] * np.interp(distance, r, D)), distance))
    expected = np.array(sorted(expected))
    assert len(found) == len(expected) > 200
    columns = {"RA": found.columns["RA"], "DEC": found.columns["DEC"], "Z": found.columns["Z_COSMO"]}
    x = observe.comoving_positions(columns, table)
    rows = np.column_stack([found.columns["halo_id"], x])
    np.testing.assert_allclose(rows[np.lexsort(rows.T[::-1])], expected[:, :4], atol=0.01)
    np.testing.assert_array_equal(found.columns["halo_mfof"], 1e12 + found.columns["halo_id"])
    speed = (1 + found.columns["Z"]) / (1 + found.columns["Z_COSMO"]) - 1
    scale = 1 / (1 + found.columns["Z_COSMO"])
    u = SLOPE[found.columns["halo_id"]] * (np.asarray(table.momentum(scale)) / scale)[:, None] / 2997.92458
    np.testing.assert_allclose(speed, np.sum(u * x, axis=1) / np.linalg.norm(x, axis=1), atol=1e-7)
    middle = np.convolve(np.asarray(pmd.comoving_distance(np.array(TIMES), table)), [0.5, 0.5], "valid")
    nearest = np.asarray(TIMES)[::-1][np.digitize(np.linalg.norm(x, axis=1), middle[::-1])]
    np.testing.assert_array_equal(found.columns["a"], nearest)
    assert not {"halo_x", "halo_core_x"} & {*found.columns}
    assert (found.units["RA"], found.about["box_size [Mpc/h]"]) == ("deg", BOX)


def test_catalogues_without_a_light_cone_are_refused(cosmo: Any) -> None:
    table = pmd.growth_table(cosmo)
    one = catalogue(1.0, table)
    for catalogues, words in (
        ([one, catalogue(1.2, table)], r"must have .* different times until a = 1, and have a = \[1.0\]"),
        ([one, one], "must have the same columns at two or more different times until"),
        ([one, catalogue(0.9, table, **{"box_size [Mpc/h]": (1.0, 1.0, 1.0)})], "has a box of .* Mpc/h, and the conf"),
        ([one, None], "is a NoneType and must be a HaloCatalogue; call friends_of_friends"),
    ):
        with pytest.raises(ValueError, match=f"catalogues {words}"):
            observe.halo_light_cone(catalogues, table, CONFIG)
    with pytest.raises(ValueError, match="observer.* must lie in the box"):
        observe.halo_light_cone([one, catalogue(0.9, table)], table, CONFIG, observer=(0, 0, 400))
