"""Shift of a parameter by the finite steps of MCLMC, and what `infer.step_bias` foresees.

    python -m benchmarks.step_bias

The parameter u has a standard normal marginal; the widths of d normal modes depend on it as exp(-a u). The figures are
in benchmarks/RESULTS.md, "Lensing".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist import infer
from pmwd_dist.infer import mclmc
from pmwd_dist.infer.samplers import methods
from pmwd_dist.infer.samplers.mclmc import density_shift

CHAINS, STEPS = 8, 20000  # of which the first tenth is left out


def measured(modes: int, slope: float, step: float) -> str:
    """Mean of the parameter with steps of so many roots of the dimensions."""

    def density(z: Any) -> Any:
        u, x = z["u"], z["x"]
        return -0.5 * u**2 - 0.5 * jnp.exp(2 * slope * u) * jnp.sum(x**2) + slope * u * modes

    root = np.sqrt(modes + 1)
    lengths = methods.Tuning(4 * root, step * root, {"u": 1.0, "x": 1.0})

    def chain(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        u = jax.random.normal(keys[0])
        begin = {"u": u, "x": jax.random.normal(keys[1], (modes,)) * jnp.exp(-slope * u)}

        def once(state: Any, key: Any) -> Any:
            options = {"method": "mclmc", "tuning": lengths, "fraction": jnp.ones(())}
            state, info = methods.transition(key, state, density, **options)
            return state, (
                state.position["u"],
                density_shift(state, jnp.asarray(lengths.step_size)),
                info.energy_change,
            )

        return jax.lax.scan(once, mclmc.init(keys[2], begin, density), jax.random.split(keys[3], STEPS))[1]

    keys = jax.random.split(jax.random.key(0), CHAINS)
    u, shift, energy = (np.asarray(x)[:, STEPS // 10 :] for x in jax.jit(jax.vmap(chain))(keys))
    found, error = infer.step_bias(u, shift)
    own, variance = u.mean(axis=1), infer.energy_errors(energy, modes + 1)["variance"]
    return (
        f"{modes} modes, a {slope}, h {step}: energy variance {variance:.1e}, "
        f"mean {u.mean():+.3f} ± {own.std() / np.sqrt(CHAINS - 1):.3f}, foreseen {found * u.std():+.3f} ± {error:.3f}"
    )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for modes, step in ((1000, 0.14), (1000, 0.2), (1000, 0.28), (4000, 0.14), (4000, 0.2)):
        print(measured(modes, 0.05, step), flush=True)


if __name__ == "__main__":
    main()
