//! Filters over several GPUs, which are fake. In place of the kernel, copies put the planes back that it would filter.

use crate::fake_gpus::{Work, begin, on_all, push};
use jaxdecomp_ops::cuda::Error;
use jaxdecomp_ops::cuda::driver::{Copy2d, CopyEnd};
use jaxdecomp_ops::peer::filter::{Memory, filtered};
use jaxdecomp_ops::peer::{Participant, Slabs};
use std::ffi::c_void;

const SHAPE: [i64; 3] = [8, 8, 4];
const NZ: i64 = 6;

/// Copies received planes to the slabs that they came from.
fn give_back(slabs: &Slabs, participant: &Participant, words: &[u64]) {
    let [slabs_of_all @ .., received, rank] = words else { panic!("{words:?}") };
    assert_eq!((slabs_of_all.len(), *rank as usize), (slabs.num_shards as usize, participant.rank));
    let width = slabs.values() as usize * 16 / SHAPE[0] as usize;
    let (planes, pitch) = (SHAPE[0] as usize / slabs_of_all.len(), width * slabs_of_all.len());
    for (of, modes) in slabs_of_all.iter().enumerate().filter(|(of, _)| *of != participant.rank) {
        let (from, to) = (*received as usize + of * planes * width, *modes as usize + of * planes * pitch);
        let (src, dst) = (CopyEnd::new(from, width), CopyEnd::new(to, pitch));
        push(participant.stream, Work::Copy(Copy2d { src, dst, width, height: planes }));
    }
}

/// Filters blocks by 1, without normalisation and transform along x.
fn run(num_shards: i64, pieces: i64, fails: bool, seed: u64) -> Vec<Result<Vec<f64>, Error>> {
    let slabs = Slabs::new(num_shards, SHAPE, Some(NZ), true).expect("divisible");
    let slabs = Slabs { pieces, bands: 2, ..slabs };
    let count = (SHAPE[0] * SHAPE[1] * NZ / num_shards) as usize;
    let block = |rank: usize| (0..count).map(|i| (rank * count + i) as f64).collect();
    let blocks: Vec<Vec<f64>> = (0..num_shards as usize).map(block).collect();
    let ordinals: Vec<i32> = (0..num_shards as i32).rev().collect();
    let scratch = 2 * 2 * slabs.values() as usize;
    on_all(&ordinals, &blocks, (count, scratch), seed, |node, rendezvous, participant, [input, output, scratch]| {
        let [mesh, result, spectrum] = [input, output, scratch].map(|address| address as *mut c_void);
        let kernel = |words: &[u64]| {
            if fails && participant.rank == 1 {
                return Err(Error("no kernel".to_owned()));
            }
            give_back(&slabs, &participant, words);
            Ok(())
        };
        let (memory, allocate) = (Memory { mesh, result, spectrum }, |_| Ok(8 as *mut c_void));
        // SAFETY: memory of the extents of the slabs.
        unsafe { filtered(node, rendezvous, &participant, &slabs, memory, allocate, kernel) }
    })
}

#[test]
fn planes_come_back_from_the_filter_in_any_stream_order() {
    let _one = begin();
    for (num_shards, pieces, seed) in [(1, 1), (2, 4), (4, 2), (4, 1)]
        .into_iter()
        .flat_map(|(num_shards, pieces)| (0..20).map(move |seed| (num_shards, pieces, seed)))
    {
        let got = run(num_shards, pieces, false, seed);
        let values = got.into_iter().flat_map(|block| block.expect("no error"));
        for (i, value) in values.enumerate() {
            let expected = (i as i64 * SHAPE[1] * NZ) as f64;
            assert!((value - expected).abs() < 1e-9 * expected.max(1.0), "{i}: {value} is not {expected}");
        }
    }
}

#[test]
fn a_kernel_that_fails_reaches_all() {
    for (seed, there) in [(0, "on GPU 0: no kernel"), (1, "on process 0: no kernel")] {
        let _one = begin();
        let outcomes = run(2, 2, true, seed);
        let messages = outcomes.iter().map(|outcome| outcome.as_ref().expect_err("a failure").0.as_str());
        assert_eq!(messages.collect::<Vec<_>>(), [there, "no kernel"]);
    }
}
