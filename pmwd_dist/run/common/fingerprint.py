"""What defines a run: every setting that changes its result, in one canonical form."""

from __future__ import annotations

import hashlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from pmwd_dist.run.settings import Settings
from pmwd_dist.run.settings.simulation_sections import OPTIONAL
from pmwd_dist.run.settings.writing import toml_value
from pmwd_dist.run.simulation.plan import Plan, versions

Identity = dict[str, Any]

# The division over devices changes rounding only; outputs that are still to come are free, but for the light cone,
# which is filled in every step. So are further steps of chains, and their checks.
_OBSERVED = tuple(name for name in OPTIONAL if name != "observe.light_cone")
_FREE = ("devices", "sampler.chain_devices", "output", "checks", "sampler.steps", *_OBSERVED)
_REMEDIES = {
    "version": "install that version of pmwd-dist, or start a new run",
    "precision": "set JAX_ENABLE_X64 as it was, or start a new run",
}


def identity(plan: Plan) -> Identity:
    """All that changes the result of a run, by the keys of its settings, as JSON holds it.

    A file with P(k) stands for its content. The version of the package and the precision of the numbers are keys too.
    """
    found: Identity = {"version": versions()["pmwd-dist"], "precision": _precision()}
    for name in type(plan.settings).sections:
        section = plan.settings.section(name)
        if name not in _FREE and section is not None:
            content = section.model_dump(mode="json")
            found |= {f"{name}.{key}": value for key, value in content.items() if f"{name}.{key}" not in _FREE}
    return found | _defaults(plan.settings) | _table(plan) | _files(plan)


def _precision() -> str:
    return np.dtype(jnp.result_type(float)).name


def _defaults(settings: Settings) -> Identity:
    """Keys that may be left out, at the values which they then have."""
    return {"box.particles": list(settings.box.particles or settings.box.mesh)}


def _table(plan: Plan) -> Identity:
    table = plan.simulation.table
    if table is None:
        return {}
    content = b"".join(np.ascontiguousarray(column, "<f8").tobytes() for column in table)
    return {"cosmology.linear_power": f"sha256:{hashlib.sha256(content).hexdigest()}"}


def _files(plan: Plan) -> Identity:
    """Arrays of other files, but for those of outputs, which are free."""
    return {path: _digest(file) for path, file in plan.data.items() if not path.startswith("observe.")}


def _digest(values: np.ndarray) -> str:
    """An array stands for its numbers."""
    content = np.ascontiguousarray(values, "<f8").tobytes()
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def differences(kept: Identity, own: Identity, holder: str) -> list[str]:
    """One line for each key that differs.

    Args:
      kept: what an earlier program has kept.
      own: of the plan.
      holder: where the former is kept, for the message.
    """
    return [
        f"{key}{_equals(own, key)}: {holder} has {_value(kept, key)}; "
        + _REMEDIES.get(key, "set it back, or start a new run in another folder")
        for key in sorted(kept | own)
        if kept.get(key) != own.get(key)
    ]


def _equals(values: Identity, key: str) -> str:
    return f" = {_value(values, key)}" if values.get(key) is not None else " is not set"


def _value(values: Identity, key: str) -> str:
    value = values.get(key)
    return "none" if value is None else toml_value(value)
