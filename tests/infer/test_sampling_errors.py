"""Arguments that `sample` refuses, and a tuning that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from linear_posteriors import OPTIONS, SHAPE, forward, posterior_of

from pmwd_dist import infer
from pmwd_dist.pm.status import SimulationError

NOISE = np.ones((2, *SHAPE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"energy_variance": 0.0}, "energy_variance=0.0 must be positive and finite; use 0.001, or less"),
        ({"steps": 150}, r"steps=150 must be a multiple of thin \* chunk = 100"),
        ({"tuning_steps": 0}, "tuning_steps=0 must be a whole number, 40 or more"),
        ({"key": 3}, "key=3 must be a key of jax.random"),
        ({"most_failures": np.nan}, "most_failures=nan must be a share of the steps"),
        ({"method": "nuts"}, "method='nuts' must be one of mclmc, hmc; NumPyro and blackjax have others"),
        ({"posterior": 3}, r"posterior is no posterior; use model.condition\(data\)"),
        ({"positions": {"noise": NOISE}}, r"positions={'noise': \(2, 4, 4, 4\)} must have noise of shape .* \[\] of"),
        (
            {"positions": {"noise": NOISE[0], "parameters": {}}},
            r"shape \(chains,\), unlike positions\['noise'\]; use jax.vmap\(posterior.initial\)\(keys\)",
        ),
        (
            {"positions": {"noise": NOISE.astype(int), "parameters": {}}},
            r"positions\['noise'\].dtype='int64' must be of",
        ),
        ({"positions": {"noise": NOISE[:0], "parameters": {}}}, r"noise': \(0, 4, 4, 4\), .* must have noise of shape"),
        (
            {"positions": {"noise": NOISE, "parameters": {"b1": np.zeros(2)}}},
            r"positions={.* must .*, unlike positions\['parameters'\]\['b1'\]; use",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = {"posterior": posterior_of(), "positions": {"noise": NOISE, "parameters": {}}} | OPTIONS
    arguments |= {"steps": 100, "output": tmp_path / "run"}
    with pytest.raises(ValueError, match=message):
        infer.sample(**(arguments | changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_failures_of_the_tuning_stop_a_run(tmp_path: Path) -> None:
    """Of a simulation that fails where chains should go; those before the last stage are no matter."""

    def fails(noise: Any, parameters: Any) -> Any:
        return forward(noise, parameters), jnp.where(noise[0, 0, 0] > -1.5, 2, 0)

    posterior = posterior_of(fails)
    positions = {"noise": jnp.zeros((2, *SHAPE)).at[:, 0, 0, 0].set(-2), "parameters": {}}
    options = OPTIONS | {"tuning_steps": 200, "steps": 100, "most_failures": 0.01}
    with pytest.raises(SimulationError, match="of the steps of the last stage of the tuning failed") as whole:
        infer.sample(posterior, positions, output=tmp_path / "whole", **options)
    assert float(str(whole.value).partition("%")[0]) > 1
