"""Units of the numbers in a snapshot: the places where codes name them, and the units that are assumed otherwise.

A unit is physical, cgs h^p a^q in centimetres, grams and seconds. Two kinds of places name it:

- attributes of an array: a factor to cgs and both exponents (GADGET-4, AREPO, EAGLE, SWIFT);
- attributes of a group: cgs alone, with the exponents of the code's convention.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

from pmwd_dist._errors import ArgumentError
from pmwd_dist.io.snapshot import content
from pmwd_dist.io.snapshot.content import Dataset, File, Malformed

Quantity = Literal["length", "velocity", "mass"]
LengthUnit = Literal["kpc/h", "Mpc/h", "kpc", "Mpc"]

CM_PER_MPC = 3.085677581e24
GRAM_PER_MASS = 1.98841e43  # 1e10 Msun
_AGREEMENT = 1e-2  # tolerance between two places: codes round parsecs and solar masses differently


class Unit(NamedTuple):
    """A unit of cgs h^p a^q, and the place that names it."""

    cgs: float
    h_power: float
    a_power: float
    place: str = ""

    def value(self, h: float, a: float) -> float:
        """Physical size in cgs."""
        return self.cgs * h**self.h_power * a**self.a_power


_OURS: dict[Quantity, Unit] = {
    "length": Unit(CM_PER_MPC, -1, 1),  # comoving Mpc/h
    "velocity": Unit(1e5, 0, 0),  # peculiar km/s
    "mass": Unit(GRAM_PER_MASS, -1, 0),  # 1e10 Msun/h
}
_ASSUMED: dict[Quantity, Unit] = {
    "length": Unit(CM_PER_MPC / 1e3, -1, 1),  # comoving kpc/h
    "velocity": Unit(1e5, 0, 0.5),  # km/s: peculiar velocities over sqrt(a)
    "mass": Unit(GRAM_PER_MASS, -1, 0),
}
_LENGTHS = {
    "kpc/h": Unit(CM_PER_MPC / 1e3, -1, 1, "length_unit"),
    "Mpc/h": Unit(CM_PER_MPC, -1, 1, "length_unit"),
    "kpc": Unit(CM_PER_MPC / 1e3, 0, 1, "length_unit"),
    "Mpc": Unit(CM_PER_MPC, 0, 1, "length_unit"),
}

_SWIFT_CGS = "Conversion factor to CGS (not including cosmological corrections)"
# Attributes of an array: factor to cgs, exponents of h and a.
_OF_ARRAYS = (
    ("to_cgs", "h_scaling", "a_scaling"),  # GADGET-4, AREPO
    ("CGSConversionFactor", "h-scale-exponent", "aexp-scale-exponent"),  # OWLS, EAGLE
    (  # SWIFT
        _SWIFT_CGS,
        "h-scale exponent",
        "a-scale exponent",
    ),
)
# Attributes of groups: one unit in cgs, or two units to divide, and the exponents of h and a by convention.
_GADGET = "Units", "Parameters", "Header"  # OWLS and EAGLE; GADGET-4 and AREPO; AREPO and IllustrisTNG
_GIZMO, _SWIFT = ("Header",), ("Units",)  # units of GIZMO contain h
_U_L, _U_t, _U_M = "Unit length in cgs (U_L)", "Unit time in cgs (U_t)", "Unit mass in cgs (U_M)"
_OF_GROUPS: tuple[tuple[Quantity, tuple[str, ...], tuple[str, ...], float, float], ...] = (
    ("length", _GADGET, ("UnitLength_in_cm",), -1, 1),
    ("length", _GIZMO, ("UnitLength_In_CGS",), 0, 1),
    ("length", _SWIFT, (_U_L,), 0, 1),
    ("velocity", _GADGET, ("UnitVelocity_in_cm_per_s",), 0, 0.5),
    ("velocity", _GIZMO, ("UnitVelocity_In_CGS",), 0, 0.5),
    ("velocity", _SWIFT, (_U_L, _U_t), 0, 0),
    ("mass", _GADGET, ("UnitMass_in_g",), -1, 0),
    ("mass", _GIZMO, ("UnitMass_In_CGS",), 0, 0),
    ("mass", _SWIFT, (_U_M,), 0, 0),
)
_CGS = 1e-10, 1e60  # range of a unit


def length_unit(name: str | None) -> Unit | None:
    """A comoving unit of length by its name."""
    if name is not None and name not in _LENGTHS:
        raise ArgumentError("length_unit", name, f"must be one of {', '.join(get_args(LengthUnit))}")
    return None if name is None else _LENGTHS[name]


def find_unit(quantity: Quantity, file: File, h: float, a: float, data: Dataset | None = None) -> Unit:
    """Unit of an array, or of numbers in the header; `place` is empty where no attribute names it.

    Raises Malformed if two places name different units.
    """
    found = [*_of_array(quantity, data), *_of_groups(quantity, file)]
    for unit in found[1:]:
        one, other = (x.value(h, a) for x in (found[0], unit))
        if not math.isclose(one, other, rel_tol=_AGREEMENT):
            remedy = "; pass the unit of length" if quantity == "length" else ""
            text = f"{found[0].place} ({one:.5g} in cgs) and {unit.place} ({other:.5g})"
            raise Malformed(f"names two units of {quantity}, {text}{remedy}")
    return found[0] if found else _ASSUMED[quantity]


def factor(unit: Unit, quantity: Quantity, h: float, a: float) -> float:
    """Factor from a unit to comoving Mpc/h, peculiar km/s or 1e10 Msun/h."""
    return unit.value(h, a) / _OURS[quantity].value(h, a)


def _of_array(quantity: Quantity, data: Dataset | None) -> list[Unit]:
    found: list[Unit] = []
    attributes = data.attrs if data is not None else {}
    for name, *exponents in _OF_ARRAYS:
        if name not in attributes or content.number(data, name, 0, _CGS[1]) == 0:
            continue  # codes write 0 for numbers without a unit
        h_power, a_power = (content.number(data, exponent, -10, 10) for exponent in exponents)
        if name == _SWIFT_CGS and quantity != "length":  # SWIFT ignores it, and swiftsimio's writer gives all 1
            a_power = 0.0
        found.append(Unit(content.number(data, name, *_CGS), h_power, a_power, f"{content.path_of(data)}:{name}"))
    return found


def _of_groups(quantity: Quantity, file: File) -> list[Unit]:
    found: list[Unit] = []
    for of, groups, names, h_power, a_power in _OF_GROUPS:
        for group_name in (name for name in groups if of == quantity and content.has(file, name)):
            group: Any = content.member(file, group_name, content.GROUP)
            if all(name in group.attrs for name in names):
                cgs = [content.number(group, name, *_CGS) for name in names]
                value = cgs[0] / cgs[1] if len(cgs) > 1 else cgs[0]
                found.append(Unit(value, h_power, a_power, f"{group_name}:{names[0]}"))
    return found
