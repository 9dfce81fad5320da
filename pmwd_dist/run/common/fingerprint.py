"""Fingerprint of a run: every setting that changes its result, in one canonical form."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax.numpy as jnp
import numpy as np

from pmwd_dist._jax.native import native_version
from pmwd_dist.parallel.distributed import exchange, shared_options
from pmwd_dist.run.common.plan import Plan
from pmwd_dist.run.outputs.registry import SECTIONS
from pmwd_dist.run.settings.writing import toml_value

Identity = dict[str, Any]
_PACKAGES = ("pmwd-dist", "jax", "jaxlib", "diffrax", "jax-cosmo", "numpy", "h5py")

# Sections and keys that a resumed job may have otherwise, in an edited file or by `resume --set`.
# Devices change only rounding.
_OBSERVED = tuple(f"observe.{name}" for name, output in SECTIONS.items() if output.free)
_FREE = ("devices", "sampler.chain_devices", "output", "checks", "sampler.steps", *_OBSERVED)
_REMEDIES = {
    "version": "install that version of pmwd-dist, or start a new run",
    "precision": "set JAX_ENABLE_X64 as it was, or start a new run",
}


def may_change(key: str) -> bool:
    """Whether a key may change when a job is resumed."""
    return any(key == name or key.startswith(f"{name}.") for name in _FREE)


def identity(job: Plan) -> Identity:
    """Settings that change the result of a run, by their keys, as JSON holds them.

    Files are represented by digests of their content. Version and floating-point precision are keys, too.
    """
    found: Identity = {"version": versions()["pmwd-dist"], "precision": _precision()}
    fixed = {f"observe.{output.name}.{key}" for output in job.settings.observe.outputs for key in output.fixed}
    found |= {key: value for key, value in job.settings.values().items() if key in fixed or not may_change(key)}
    box = job.settings.box
    found["box.particles"] = list(box.particles or box.mesh)
    if job.simulation.table is not None:
        found["cosmology.linear_power"] = _digest(*job.simulation.table)
    if job.simulation.start is not None:
        found["start.snapshot"] = job.simulation.start.digest
    if (correction := job.simulation.potential_factor) is not None:
        found["force.correction"] = _digest(np.asarray(correction.spacing), np.asarray(correction.coefficients))
    for output in job.settings.observe.outputs:
        found |= {f"observe.{output.name}.{key}": _digest(*x) for key, x in output.columns().items()}
    # Arrays of files, except those of outputs, which may change.
    return found | {k: _digest(x) for k, x in job.data.items() if k in fixed or not k.startswith("observe.")}


def _precision() -> str:
    return np.dtype(jnp.result_type(float)).name


def _digest(*arrays: np.ndarray) -> str:
    content = b"".join(np.ascontiguousarray(values, "<f8").tobytes() for values in arrays)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def differences(kept: Identity, own: Identity, holder: str) -> list[str]:
    """Lines on the differences of a job from the kept fingerprint of a holder, such as "the checkpoint"."""

    def text(values: Identity, key: str, none: str, prefix: str = "") -> str:
        return none if values.get(key) is None else prefix + toml_value(values[key])

    return [
        f"{key}{text(own, key, ' is not set', ' = ')}: {holder} has {text(kept, key, 'none')}; "
        + _REMEDIES.get(key, "set it back, or start a new run in another folder")
        for key in sorted(kept | own)
        if kept.get(key) != own.get(key)
    ]


def compare_processes(job: Plan, **options: Any) -> list[str]:
    """Raise ValueError unless all processes have the same job, versions, options and random numbers. Collective.

    Differences that change no result by themselves are returned as warnings.
    """
    kept = identity(job)
    arrays = {key: _digest(x) for key, x in job.data.items() if key not in kept}
    own = {**job.settings.values(), **kept, **arrays, **options, "folder": str(job.folder.absolute())}
    own |= {f"the version of {name}": text for name, text in versions().items()}
    own |= {f"the option {name}": text for name, text in shared_options().items()}
    own["devices.backend"] = job.simulation.config.decomposition.backend.name  # of the environment, where it is "auto"
    free = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", ""), "the version of equinox": version("equinox")}
    (first, alike), *pairs = map(json.loads, exchange(json.dumps([own, free])))
    warnings = dict[str, str]()  # of the first process that differs
    for i, (other, like) in enumerate(pairs, 1):
        for key in sorted(first | other):
            if (ours := first.get(key)) != (theirs := other.get(key)):
                both = f"{toml_value(theirs)} in process {i}, and {toml_value(ours)} in process 0"
                remedy = "start all processes with the same files, options and environment"
                raise ValueError(f"{key} is {both}; {remedy}")
        for key in (key for key in alike if like[key] != alike[key]):
            theirs, ours = toml_value(like[key]), toml_value(alike[key])
            warnings.setdefault(key, f"warning: {key} is {theirs} in process {i}, and {ours} in process 0")
    return list(warnings.values())


def versions(*others: str) -> dict[str, str | None]:
    """Versions of this package, of its dependencies and of other packages; None for those that are missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*_PACKAGES, *others):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found | {"jaxdecomp-ops": native_version()}
