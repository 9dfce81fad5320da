"""Memory counted in arrays against XLA's plans: of programs compiled here for CPUs, and recorded ones for an H100."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from problems import OPTIMIZED

import pmwd_dist as pmd
from pmwd_dist.ops import force_transpose
from pmwd_dist.pm.paint import block_geometry
from pmwd_dist.pm.particles import ExactParticles
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.potential_cache import stored_potentials
from pmwd_dist.run.memory import Stage, stages
from pmwd_dist.run.planning import on_devices

# Bytes a particle of XLA's plans for an H100 (jaxlib 0.10.2, of gradients 0.11.2), by particles along a side, devices,
# mesh cells for each of them, halo and order of the LPT.
H100: list[tuple[int, tuple[int, int], float, int, int, dict[Stage, float]]] = [
    (512, (1, 1), 1, 0, 1, {"lpt": 40.02, "gradient": 104.13}),
    (512, (1, 1), 1, 0, 2, {"noise": 4, "modes": 10.02, "lpt": 44.03, "step": 40, "density": 24, "power": 10.04}),
    (512, (1, 1), 1, 0, 2, {"lpt": 44.03, "gradient": 108.14}),
    (512, (1, 1), 1, 0, 3, {"lpt": 120.13, "gradient": 166.1}),
    (512, (1, 1), 1.5, 0, 2, {"step": 78.0, "gradient": 114.52}),
    (512, (1, 1), 2, 0, 2, {"step": 152, "density": 108, "power": 80.17}),
    (512, (2, 1), 1, 20, 2, {"lpt": 48.05, "step": 42.69, "density": 29.97, "power": 12.03, "gradient": 114.71}),
    (512, (2, 1), 1, 20, 3, {"lpt": 132.15}),
    (512, (2, 1), 1, 50, 1, {"gradient": 110.44}),
    (512, (2, 1), 1.5, 20, 2, {"step": 84.05, "density": 70.43, "power": 40.57, "gradient": 132.57}),
    (512, (2, 1), 2, 40, 2, {"step": 172.75}),
    (512, (4, 1), 1, 20, 3, {"modes": 14.05, "step": 45.38, "gradient": 168.3}),
    (512, (2, 2), 1, 20, 2, {"lpt": 48.08, "step": 45.83, "density": 32.26, "gradient": 119.15}),
    (512, (2, 2), 2, 20, 2, {"density": 156.4, "power": 128.63}),
    (1024, (16, 1), 1, 20, 2, {"step": 50.75, "density": 35.88, "gradient": 114.77}),
    (2048, (64, 1), 1, 40, 2, {"step": 81.5, "density": 58.75}),
]


# Bytes a particle of the allocator's peaks on one H100 (jax 0.11.2; docs/planning.md),
# where the stage sets the peak of its program.
MEASURED: list[tuple[int, tuple[int, int], float, int, int, dict[Stage, float]]] = [
    (256, (1, 1), 2, 0, 2, {"step": 156.0}),
    (512, (1, 1), 1, 0, 2, {"lpt": 45.0, "gradient": 108.1}),
    (320, (1, 1), 1.5, 0, 2, {"step": 78.0}),
    # One H200, where peaks are as planned.
    (512, (1, 1), 1, 0, 2, {"gradient": 108.65}),
    (512, (1, 1), 1.5, 0, 2, {"gradient": 114.02}),
    (512, (1, 1), 2, 0, 2, {"gradient": 192.04}),
]


@pytest.mark.parametrize(("n", "pdims", "ratio", "halo", "order", "plans"), H100 + MEASURED)
def test_counts_agree_with_plans_and_peaks_of_gpus(
    n: int, pdims: tuple[int, int], ratio: float, halo: int, order: int, plans: dict[Stage, float]
):
    config = pmd.Config(2.0 * n, int(ratio * n), n, lpt_order=order, halo=halo, decomposition=(1, 1))
    counted = stages(on_devices(config, pdims), "gpu")
    particles = n**3 / (pdims[0] * pdims[1])
    for stage, plan in plans.items():
        assert counted[stage] / particles == pytest.approx(plan, rel=0.1), stage


@pytest.mark.parametrize("ratio", [1, 1.5, 2])
def test_gradients_on_gpus_have_room_for_a_force_and_for_its_transpose(ratio: float):
    """60 bytes a particle, and fields: three of the force beside its potential, or one beside the sums of another."""
    n, config = 512, pmd.Config(1024.0, int(512 * ratio), 512, decomposition=(1, 1))
    geometry, mesh = block_geometry(config, 0), 4 * math.prod(config.mesh_shape)
    sums = force_transpose._cuda_scratch(None, None, geometry=geometry, cell_size=config.cell_size)
    kept = stored_potentials("auto", 20, config, jnp.float32, "gpu") * mesh
    expected = 60 * n**3 + max(4 * mesh, mesh + sums.size * sums.dtype.itemsize + kept)
    assert stages(config, "gpu")["gradient"] == pytest.approx(expected, rel=1e-3)


def test_programs_that_choose_the_width_hold_the_particles_twice():
    config = on_devices(pmd.Config(1024.0, 512, decomposition=(1, 1)), (2, 1))
    assert stages(config, "gpu")["step"] * 2 / 512**3 == pytest.approx(68.78, rel=0.01)


@pytest.mark.parametrize("halo", [20, "auto"])
@pytest.mark.parametrize(
    ("n", "pdims"),
    [
        (512, (1, 1)),
        (200, (1, 1)),
        (256, (2, 1)),
        (512, (2, 1)),
        (512, (4, 1)),
        (512, (2, 2)),
        (1024, (16, 1)),
        (1024, (4, 4)),
    ],
)
def test_gradients_fill_the_room_of_gpus_and_no_more(n: int, pdims: tuple[int, int], halo: Any):
    config = on_devices(pmd.Config(2.0 * n, n, halo=halo, decomposition=(1, 1)), pdims)
    counted = stages(config, "gpu")["gradient"] * pdims[0] * pdims[1] / n**3
    kept = stored_potentials("auto", 20, config, jnp.float32, "gpu")
    bound = 110 if pdims == (1, 1) else 120
    assert counted <= bound
    assert kept == 10 or counted > bound - 6


@pytest.mark.parametrize("n", [100, 112, 128, 512])
def test_large_gradients_on_cpus_keep_to_their_room(n: int):
    """Where ten potentials no longer fit, the second derivatives of 2LPT are not held beside fewer."""
    config = pmd.Config(2.0 * n, n, decomposition=(1, 1))
    assert stages(config, "cpu")["gradient"] <= 110 * n**3
    assert stored_potentials("auto", 20, config, jnp.float32, "cpu") == 6


@pytest.mark.parametrize(
    ("pdims", "ratio", "halo", "wanted"), [((1, 1), 1, 0, "lpt"), ((4, 1), 2, 10, "step"), ((2, 2), 1, 5, "step")]
)
def test_counts_agree_with_plans_for_cpus(pdims: tuple[int, int], ratio: int, halo: int, wanted: Stage, cosmo: Any):
    config = pmd.Config(256.0, 128 * ratio, 128, halo=halo, decomposition=pdims)
    table, none = pmd.growth_table(cosmo), jnp.zeros((), jnp.float32)
    schedule = host.make_schedule(table, jnp.asarray([0.1, 0.2], jnp.float32), config, pmd.BullFrog())

    def step(disp: jax.Array, momenta: jax.Array) -> Any:
        moved = host.Moved(ExactParticles(disp, momenta), none, schedule.steps.before[0], none, successful(jnp.float32))
        return host.advance(moved, schedule, 0, config).particles

    if wanted == "lpt":
        modes = jax.ShapeDtypeStruct((128, 128, 65), jnp.complex64)
        run = jax.jit(lambda modes: pmd.lpt(modes, table, config), compiler_options=OPTIMIZED).lower(modes)
    else:
        vectors = jax.ShapeDtypeStruct((128, 128, 128, 3), jnp.float32, sharding=config.decomposition.sharding)
        run = jax.jit(step, donate_argnums=(0, 1), compiler_options=OPTIMIZED).lower(vectors, vectors)
    plan = run.compile().memory_analysis()
    total = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    assert stages(config, "cpu")[wanted] == pytest.approx(total - plan.alias_size_in_bytes, rel=0.1)
