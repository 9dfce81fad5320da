//! Transforms over several GPUs, which are fake.

use crate::fake_gpus::{Complex, IGNORE_EVENTS, LIBRARIES, begin, dft, new_stream, on_all, random, with};
use jaxdecomp_ops::cuda::{Error, Result};
use jaxdecomp_ops::peer::{Job, Node, Participant, Rendezvous, Slabs, is_fast_along_x, scratch_len, transform};
use std::ffi::c_void;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

/// Slabs of a real or complex mesh, divided into several pieces and bands.
fn case(real: bool, num_shards: i64) -> Slabs {
    let (shape, nz) = if real { ([8, 8, 4], Some(6)) } else { ([8, 8, 3], None) };
    let slabs = Slabs::new(num_shards, shape, nz, true).expect("divisible");
    // By default, small slabs are not divided.
    Slabs { pieces: if num_shards < 4 { 4 } else { 2 }, bands: 2, ..slabs }
}

/// Number of reals of a block; complex values have two.
fn numbers(slabs: &Slabs, spectrum: bool) -> usize {
    let block = if spectrum { slabs.spectrum_block() } else { slabs.field_block() };
    let each = if spectrum || slabs.real.is_none() { 2 } else { 1 };
    block.iter().product::<i64>() as usize * each
}

/// Transforms one block on each GPU of `ordinals`.
fn run(
    slabs: &Slabs,
    ordinals: &[i32],
    blocks: &[Vec<f64>],
    what: (bool, i64, usize),
    seed: u64,
) -> Vec<Result<Vec<f64>>> {
    run_passes(slabs, ordinals, blocks, what, false, seed)
}

/// Transforms along all axes, or along y and z only.
fn run_passes(
    slabs: &Slabs,
    ordinals: &[i32],
    blocks: &[Vec<f64>],
    (inverse, sign, batch): (bool, i64, usize),
    planes_only: bool,
    seed: u64,
) -> Vec<Result<Vec<f64>>> {
    let scratch = scratch_len(slabs, inverse, planes_only);
    let lengths = (batch * numbers(slabs, !inverse), 2 * scratch.max(1) as usize);
    on_all(ordinals, blocks, lengths, seed, |node, rendezvous, participant, [input, output, scratch]| {
        let job = Job {
            participant,
            inverse,
            sign,
            planes_only,
            batch,
            input: input as *const c_void,
            output: output as *mut c_void,
            scratch: scratch as *mut c_void,
        };
        // SAFETY: memory of the extents of the slabs.
        unsafe { transform(node, rendezvous, slabs, &job, |_| Ok(8 as *mut c_void)) }
    })
}

/// Divides a mesh of values of `each` reals along axis 0 (x) or 1 (y).
fn divide(whole: &[f64], n: [usize; 3], each: usize, axis: usize, num_shards: usize) -> Vec<Vec<f64>> {
    let mut blocks = vec![Vec::new(); num_shards];
    for (i, value) in whole.chunks(each).enumerate() {
        let x = [i / (n[1] * n[2]), i / n[2] % n[1]];
        blocks[x[axis] * num_shards / n[axis]].extend_from_slice(value);
    }
    blocks
}

fn random_values(len: usize, mut seed: u64) -> Vec<f64> {
    (0..len).map(|_| random(&mut seed, 2001) as f64 / 1000.0 - 1.0).collect()
}

fn assert_close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() < 1e-11, "{g} is not {e}");
    }
}

/// A field and its spectrum by definition.
fn pair(slabs: &Slabs, sign: i64, seed: u64) -> (Vec<f64>, Vec<f64>) {
    let [nx, ny, nk] = slabs.shape.map(|n| n as usize);
    let nz = slabs.real.map_or(nk, |nz| nz as usize);
    let values: Vec<Complex> = if slabs.real.is_some() {
        random_values(nx * ny * nz, seed).into_iter().map(|re| [re, 0.0]).collect()
    } else {
        random_values(2 * nx * ny * nz, seed).chunks(2).map(|c| [c[0], c[1]]).collect()
    };
    let spectrum = (0..nx * ny * nk)
        .flat_map(|i| dft(&values, [nx, ny, nz], [i / (ny * nk), i / nk % ny, i % nk], sign as f64))
        .collect();
    let field = values.iter().flat_map(|c| c[..if slabs.real.is_some() { 1 } else { 2 }].to_vec()).collect();
    (field, spectrum)
}

#[test]
fn forward_is_the_fourier_transform_in_any_stream_order() {
    let _one = begin();
    for (real, num_shards, sign) in
        [(true, 1, -1), (true, 2, -1), (true, 4, -1), (false, 1, 1), (false, 4, -1), (false, 4, 1)]
    {
        let slabs = case(real, num_shards);
        let each = if real { 1 } else { 2 };
        let field_shape = [8, 8, slabs.field_block()[2] as usize];
        let (a, b) = (pair(&slabs, sign, 1), pair(&slabs, sign, 2));
        let split = |x: &[f64], n, each, axis| divide(x, n, each, axis, num_shards as usize);
        let blocks: Vec<Vec<f64>> = split(&a.0, field_shape, each, 0)
            .into_iter()
            .zip(split(&b.0, field_shape, each, 0))
            .map(|(a, b)| [a, b].concat())
            .collect();
        let shape = slabs.shape.map(|n| n as usize);
        let expected: Vec<Vec<f64>> =
            split(&a.1, shape, 2, 1).into_iter().zip(split(&b.1, shape, 2, 1)).map(|(a, b)| [a, b].concat()).collect();
        let ordinals: Vec<i32> = (0..num_shards as i32).rev().collect();
        for seed in 0..20 {
            let got = run(&slabs, &ordinals, &blocks, (false, sign, 2), seed);
            for (got, expected) in got.iter().zip(&expected) {
                assert_close(got.as_ref().expect("no error"), expected);
            }
        }
    }
}

#[test]
fn inverse_is_the_inverse_in_any_stream_order() {
    let _one = begin();
    for (real, num_shards) in [(true, 1), (true, 2), (true, 4), (false, 1), (false, 4)] {
        let slabs = case(real, num_shards);
        let (field, spectrum) = pair(&slabs, -1, 3);
        let shape = slabs.shape.map(|n| n as usize);
        let nz = slabs.field_block()[2] as usize;
        let count = (shape[0] * shape[1] * nz) as f64;
        let field: Vec<f64> = field.iter().map(|v| v * count).collect();
        let each = if real { 1 } else { 2 };
        let blocks: Vec<Vec<f64>> = divide(&spectrum, shape, 2, 1, num_shards as usize)
            .into_iter()
            .map(|block| [block.clone(), block.iter().map(|v| 2.0 * v).collect()].concat())
            .collect();
        let expected = divide(&field, [shape[0], shape[1], nz], each, 0, num_shards as usize);
        let ordinals: Vec<i32> = (0..num_shards as i32).collect();
        for seed in 0..20 {
            let got = run(&slabs, &ordinals, &blocks, (true, 1, 2), seed);
            for (got, expected) in got.iter().zip(&expected) {
                let got = got.as_ref().expect("no error");
                assert_close(&got[..expected.len()], expected);
                let doubled: Vec<f64> = expected.iter().map(|v| 2.0 * v).collect();
                assert_close(&got[expected.len()..], &doubled);
            }
        }
    }
}

/// Transform along x of a slab along y by definition.
fn along_x(block: &[f64], nx: usize, sign: f64) -> Vec<f64> {
    let columns = block.len() / nx / 2;
    let value = |i: usize| {
        let column =
            (0..nx).map(|x| [block[2 * (x * columns + i % columns)], block[2 * (x * columns + i % columns) + 1]]);
        dft(&column.collect::<Vec<Complex>>(), [nx, 1, 1], [i / columns, 0, 0], sign)
    };
    (0..nx * columns).flat_map(value).collect()
}

#[test]
fn planes_only_is_the_transform_without_x() {
    let _one = begin();
    for (real, num_shards, seed) in [(true, 2), (true, 4), (false, 2), (false, 4)]
        .into_iter()
        .flat_map(|(real, num_shards)| (0..20).map(move |seed| (real, num_shards, seed)))
    {
        let slabs = case(real, num_shards);
        let (field, spectrum) = pair(&slabs, -1, 1);
        let (shape, nz) = (slabs.shape.map(|n| n as usize), slabs.field_block()[2] as usize);
        let field = divide(&field, [shape[0], shape[1], nz], if real { 1 } else { 2 }, 0, num_shards as usize);
        let spectrum = divide(&spectrum, shape, 2, 1, num_shards as usize);
        let ordinals: Vec<i32> = (0..num_shards as i32).collect();
        let got = run_passes(&slabs, &ordinals, &field, (false, -1, 1), true, seed);
        for (got, expected) in got.iter().zip(&spectrum) {
            assert_close(&along_x(got.as_ref().expect("no error"), shape[0], -1.0), expected);
        }
        let half: Vec<Vec<f64>> = spectrum.iter().map(|block| along_x(block, shape[0], 1.0)).collect();
        let got = run_passes(&slabs, &ordinals, &half, (true, 1, 1), true, seed);
        let count = (shape[0] * shape[1] * nz) as f64;
        for (got, expected) in got.iter().zip(&field) {
            assert_close(got.as_ref().expect("no error"), &expected.iter().map(|v| v * count).collect::<Vec<f64>>());
        }
    }
}

#[test]
fn lengths_that_need_a_work_area_are_not_fast() {
    let _one = begin();
    let node = Node::new(LIBRARIES, 0).expect("a GPU");
    let fast = |nx| is_fast_along_x(&node, &Slabs::new(2, [nx, 4, 3], None, true).expect("divisible"));
    assert_eq!((fast(8), fast(6)), (Ok(true), Ok(false)));
}

#[test]
fn a_failure_on_one_gpu_reaches_all() {
    for (function, inverse) in [("plan", false), ("exec", false), ("lines", true), ("copy", false), ("copy", true)] {
        let _one = begin();
        with(|world| world.failing = Some((function, 1)));
        let slabs = case(true, 2);
        let blocks = vec![vec![0.0; numbers(&slabs, inverse)]; 2];
        let outcomes = run(&slabs, &[0, 1], &blocks, (inverse, -1, 1), 0);
        for (ordinal, outcome) in outcomes.iter().enumerate() {
            let Err(Error(message)) = outcome else { panic!("no error of {function} on GPU {ordinal}") };
            assert!(message.contains("error 2"), "{message}");
            assert_eq!(message.contains("on GPU 1"), ordinal == 0, "{message}");
        }
        // A GPU that has begun to send waits for its copies before it notifies its peers, which may free their memory.
        assert_eq!(with(|world| world.synchronized.len()), if function == "copy" { 2 } else { 0 });
    }
}

#[test]
fn a_failure_of_one_process_reaches_all_and_frees_their_streams() {
    for (function, inverse) in
        [("plan", false), ("exec", false), ("lines", true), ("copy", false), ("copy", true), ("allocate", false)]
    {
        let _one = begin();
        with(|world| world.failing = Some((function, 1)));
        let slabs = case(true, 4);
        let blocks = vec![vec![0.0; numbers(&slabs, inverse)]; 4];
        for outcome in run(&slabs, &[0, 1, 2, 3], &blocks, (inverse, -1, 1), 1) {
            let Err(Error(message)) = outcome else { panic!("no error of {function}") };
            assert!(message.contains("error 2"), "{message}");
        }
    }
}

#[test]
fn a_process_that_ends_is_named() {
    let _one = begin();
    let slabs = case(true, 2);
    let blocks = vec![vec![0.0; numbers(&slabs, false)]; 2];
    let outcomes = on_all(&[4, 7], &blocks, (1, 1), 1, |node, rendezvous, participant, _| {
        if participant.rank == 1 {
            return Ok(());
        }
        let memory = 8 as *mut c_void;
        let (planes_only, batch, sign, inverse) = (false, 1, -1, false);
        let job =
            Job { participant, inverse, sign, planes_only, batch, input: memory, output: memory, scratch: memory };
        // SAFETY: the addresses are not accessed.
        unsafe { transform(node, rendezvous, &slabs, &job, |_| Ok(memory)) }
    });
    assert_eq!(outcomes[0], Err(Error("process 7 has ended".to_owned())));
}

#[test]
fn a_process_is_stuck_while_it_waits_for_one_that_has_ended() {
    let _one = begin();
    let slabs = case(false, 2);
    let blocks = vec![vec![0.0; numbers(&slabs, false)]; 2];
    let lengths = (numbers(&slabs, true), 2 * scratch_len(&slabs, false, false) as usize);
    let kept = Mutex::new(None);
    let outcomes = on_all(&[0, 1], &blocks, lengths, 1, |node, rendezvous, participant, [from, to, scratch]| {
        let [input, output, scratch] = [from, to, scratch].map(|address| address as *mut c_void);
        let link = participant.link.clone().filter(|_| participant.rank == 0);
        let (planes_only, batch, sign, inverse) = (false, 1, 1, false);
        let job = Job { participant, inverse, sign, planes_only, batch, input, output, scratch };
        // SAFETY: memory of the extents of the slabs.
        unsafe { transform(node, rendezvous, &slabs, &job, |_| Ok(8 as *mut c_void)) }?;
        drop(job); // the second process ends
        if let Some(link) = link {
            while !link.is_stuck() {
                sleep(Duration::from_millis(1));
            }
            *kept.lock().expect("no panic") = Some(link);
        }
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok));
    // The streams' work has been done meanwhile.
    assert!(!kept.into_inner().expect("no panic").expect("a link").is_stuck());
}

#[test]
fn processes_that_run_different_programs_fail() {
    let _one = begin();
    let slabs = case(false, 2);
    let blocks = vec![vec![0.0; numbers(&slabs, false)]; 2];
    let len = numbers(&slabs, true);
    let scratch = 2 * scratch_len(&slabs, false, false) as usize;
    let outcomes = on_all(&[0, 1], &blocks, (len, scratch), 1, |node, rendezvous, participant, [from, to, scratch]| {
        let [input, output, scratch] = [from, to, scratch].map(|address| address as *mut c_void);
        let (planes_only, batch, sign, inverse) = (false, 1, 1 - 2 * participant.rank as i64, false);
        let job = Job { participant, inverse, sign, planes_only, batch, input, output, scratch };
        // SAFETY: memory of the extents of the slabs.
        unsafe { transform(node, rendezvous, &slabs, &job, |_| Ok(8 as *mut c_void)) }
    });
    for outcome in outcomes {
        let Err(Error(message)) = outcome else { panic!("no error") };
        assert!(message.contains(": another program: transform of Slabs"), "{message}");
    }
}

#[test]
fn a_failure_after_the_exchange_aborts_the_run() {
    let slabs = Slabs { pieces: 1, bands: 1, ..case(true, 2) };
    let blocks = vec![vec![0.0; 2 * numbers(&slabs, false)]; 2];
    for (seed, there) in [(0, "on GPU 1: cufftExec"), (1, "on process 1: cufftExec")] {
        let _one = begin();
        with(|world| world.failing = Some(("lines", 1)));
        // The first of two meshes fails on GPU 1 after its exchange, while GPU 0 waits for the second.
        let outcomes = run(&slabs, &[0, 1], &blocks, (false, -1, 2), seed);
        for (ordinal, outcome) in outcomes.iter().enumerate() {
            let Err(Error(message)) = outcome else { panic!("no error on GPU {ordinal}") };
            assert_eq!(message.contains(there), ordinal == 0, "{message}");
        }
    }
}

#[test]
fn a_missing_gpu_is_a_timeout() {
    let _one = begin();
    let slabs = case(true, 2);
    let node = Node::new(LIBRARIES, 0).expect("a GPU");
    let job = Job {
        participant: Participant { run_id: 1, group: vec![0, 1], rank: 0, stream: new_stream(0), link: None },
        inverse: false,
        sign: -1,
        planes_only: false,
        batch: 1,
        input: 8 as *const c_void,
        output: 8 as *mut c_void,
        scratch: 8 as *mut c_void,
    };
    let rendezvous = Rendezvous::new(Duration::from_millis(20));
    // SAFETY: the addresses are not accessed.
    let outcome = unsafe { transform(&node, &rendezvous, &slabs, &job, |_| Ok(8 as *mut c_void)) };
    let Err(Error(message)) = outcome else { panic!("no error") };
    assert!(message.contains("timeout: 1 of the 2 GPUs [0, 1] joined the exchange"), "{message}");
}

#[test]
fn the_fake_streams_detect_missing_events() {
    // Without the events of the exchange, copies overwrite memory in use.
    let _one = begin();
    let slabs = case(true, 4);
    let (field, spectrum) = pair(&slabs, -1, 1);
    let shape = slabs.shape.map(|n| n as usize);
    let blocks = divide(&field, [8, 8, 6], 1, 0, 4);
    let expected = divide(&spectrum, shape, 2, 1, 4);
    let wrong = (0..20).any(|seed| {
        IGNORE_EVENTS.set(true);
        let got = run(&slabs, &[0, 1, 2, 3], &blocks, (false, -1, 1), seed);
        IGNORE_EVENTS.set(false);
        got.iter().zip(&expected).any(|(got, expected)| {
            let pairs = got.as_ref().expect("no error").iter().zip(expected);
            pairs.into_iter().any(|(g, e)| (g - e).abs() > 1e-11 || g.is_nan())
        })
    });
    assert!(wrong);
}
