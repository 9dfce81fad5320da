//! Halos over several GPUs, which are fake.

use crate::fake_gpus::{begin, on_all};
use jaxdecomp_ops::peer::{Planes, Purpose, exchange_planes};
use std::ffi::c_void;

/// Blocks of meshes with 3 reals a plane, which identify mesh and plane.
fn planes(meshes: usize, num_shards: usize, count: usize) -> Vec<Vec<f64>> {
    let plane = |mesh: usize, x: usize| [mesh as f64, x as f64, (mesh + x) as f64];
    let block = |rank: usize, mesh| (0..count).flat_map(move |x| plane(mesh, rank * count + x));
    (0..num_shards).map(|rank| (0..meshes).flat_map(|mesh| block(rank, mesh)).collect()).collect()
}

/// Fills or swaps halos on all GPUs.
fn exchanged(num_shards: usize, extents: Planes, purpose: Purpose, blocks: &[Vec<f64>], seed: u64) -> Vec<Vec<f64>> {
    let ordinals: Vec<i32> = (0..num_shards as i32).collect();
    let [_, after] = extents.extents(purpose);
    let got = on_all(
        &ordinals,
        blocks,
        (extents.batch * after * 3, 0),
        seed,
        |node, rendezvous, participant, [input, output, _]| {
            let (from, to) = (input as *const c_void, output as *mut c_void);
            // SAFETY: memory of those extents.
            unsafe { exchange_planes(node, rendezvous, &participant, (&extents, purpose), from, to) }
        },
    );
    got.into_iter().map(|block| block.expect("no error")).collect()
}

#[test]
fn halos_are_planes_of_the_neighbours() {
    let _one = begin();
    for (batch, num_shards, count, halo) in [(1, 2, 3, 1), (2, 3, 4, 2), (2, 4, 2, 2)] {
        let extents = Planes { batch, count, halo, bytes: 3 * 8 };
        for seed in 0..20 {
            for (rank, got) in
                exchanged(num_shards, extents, Purpose::Pad, &planes(batch, num_shards, count), seed).iter().enumerate()
            {
                for (i, plane) in got.chunks(3).enumerate() {
                    let (mesh, x) = (i / (count + 2 * halo), i % (count + 2 * halo));
                    let whole = (rank * count + x + num_shards * count - halo) % (num_shards * count);
                    assert_eq!(plane, [mesh as f64, whole as f64, (mesh + whole) as f64]);
                }
            }
        }
    }
}

#[test]
fn edges_are_swapped_with_the_neighbours() {
    let _one = begin();
    for (num_shards, halo, count) in [(2, 1, 0), (4, 3, 0), (2, 2, 3), (4, 1, 5)] {
        let extents = Planes { batch: 2, count, halo, bytes: 3 * 8 };
        let whole = count + 2 * halo;
        let blocks = planes(2, num_shards, whole);
        for seed in 0..20 {
            let got = exchanged(num_shards, extents, Purpose::Swap, &blocks, seed);
            for (rank, got) in got.iter().enumerate() {
                let (below, above) = (&blocks[(rank + num_shards - 1) % num_shards], &blocks[(rank + 1) % num_shards]);
                for mesh in 0..2 {
                    let edges = &got[mesh * 6 * halo..(mesh + 1) * 6 * halo];
                    let at = |block: &[f64], first: usize| block[3 * (mesh * whole + first)..][..3 * halo].to_vec();
                    assert_eq!(edges, [at(below, count + halo), at(above, 0)].concat());
                }
            }
        }
    }
}
