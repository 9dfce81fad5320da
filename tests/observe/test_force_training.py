"""Training of a correction of the force."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import problems

import pmwd_dist as pmd
from pmwd_dist import observe

COSMO = problems.cosmology()


def configure(decomposition: pmd.Decomposition, mesh: int) -> pmd.Config:
    return pmd.Config(16.0, mesh, 8, steps=3, lpt_order=1, a_start=0.2, decomposition=decomposition)


def test_training_finds_the_force_of_the_references(single: pmd.Decomposition) -> None:
    """References with a known factor of the potential, and one of another seed to judge by."""
    config, teacher = configure(single, 8), pmd.ForceCorrection(2.0, np.full((9, 5), 0.4))
    plain = [observe.force_reference(jax.random.key(i), COSMO, config, config, [1.0]) for i in range(2)]
    same = observe.force_error(None, plain[1])
    assert same.k.shape == (4,)
    np.testing.assert_allclose(same.power_ratio, 1, rtol=1e-10)
    np.testing.assert_allclose(same.decorrelation, 0, atol=1e-10)

    @jax.jit
    def taught(reference: observe.ForceReference) -> observe.ForceReference:
        end = pmd.nbody(reference.particles, reference.table, config, potential_factor=teacher).particles
        density = pmd.density(end, configure(single, 16))
        return eqx.tree_at(lambda reference: reference.densities, reference, density[None])

    train, judge = map(taught, plain)
    correction, history = observe.train_force(pmd.ForceCorrection(2.0), [train], steps=12, learning_rate=0.05)
    assert history[-1] < 0.3 * history[0]
    without, found = observe.force_error(None, judge), observe.force_error(correction, judge)
    assert np.abs(np.log(found.power_ratio)).mean() < 0.5 * np.abs(np.log(without.power_ratio)).mean()
    assert (np.asarray(found.decorrelation) < np.asarray(without.decorrelation)).all()

    level = eqx.tree_at(lambda reference: reference.level, judge, np.asarray(2.0))
    half = observe.force_error(correction, level)
    np.testing.assert_allclose(half.power_ratio, found.power_ratio / 2, rtol=1e-10)
    np.testing.assert_array_equal(half.power, found.power)


def test_a_correction_of_the_package_has_the_power_of_a_finer_run(single: pmd.Decomposition) -> None:
    config = pmd.Config(64.0, 16, steps=10, decomposition=single)
    fine = pmd.Config(64.0, 64, 32, steps=20, decomposition=single)
    reference = observe.force_reference(jax.random.key(4), COSMO, config, fine, [1.0], fixed=True)
    without, found = (
        np.abs(np.log(observe.force_error(used, reference).power_ratio))[0, 4:].mean()
        for used in (None, pmd.ForceCorrection.auto(config))
    )
    assert found < 0.5 * without
