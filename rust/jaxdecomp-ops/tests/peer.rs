//! Transforms and halos over several GPUs, on made-up ones.

mod made_up_gpus;

use jaxdecomp_ops::cuda::{Error, Opaque, Result};
use jaxdecomp_ops::peer::{Hall, Job, Node, Party, Planes, Purpose, Slabs, exchange_planes, is_fast_along_x};
use jaxdecomp_ops::peer::{scratch_len, transform};
use made_up_gpus::{CURRENT, Complex, FORGETFUL, LIBRARIES, Work, begin, dft, new_stream, play, push, random, with};
use std::ffi::c_void;
use std::thread;
use std::time::Duration;

/// Real, or complex.
fn case(real: bool, parts: i64) -> Slabs {
    let (shape, nz) = if real { ([8, 8, 4], Some(6)) } else { ([8, 8, 3], None) };
    let slabs = Slabs::new(parts, shape, nz, true).expect("it divides");
    // Small ones are not cut by themselves.
    Slabs { pieces: if parts < 4 { 4 } else { 2 }, bands: 2, ..slabs }
}

/// Numbers of a block along x or along y, of which complex values have two.
fn numbers(slabs: &Slabs, spectrum: bool) -> usize {
    let block = if spectrum { slabs.spectrum_block() } else { slabs.field_block() };
    let each = if spectrum || slabs.real.is_none() { 2 } else { 1 };
    block.iter().product::<i64>() as usize * each
}

/// Addresses of operand, result and scratch memory of one GPU.
type Addresses = [usize; 3];

/// Has a thread for each GPU call something, over blocks of operands; lets the streams work; what each GPU answers.
fn on_all(
    ordinals: &[i32],
    blocks: &[Vec<f64>],
    (output, scratch): (usize, usize),
    seed: u64,
    call: impl Fn(&Node, &Hall, Party, Addresses) -> Result<()> + Sync,
) -> Vec<Result<Vec<f64>>> {
    with(|world| world.memory.clear());
    let (hall, call) = (&Hall::new(Duration::from_secs(20)), &call);
    let mut memory: Vec<[Vec<f64>; 3]> =
        blocks.iter().map(|block| [block.clone(), vec![0.0; output], vec![0.0; scratch]]).collect();
    let answers: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = memory
            .iter_mut()
            .enumerate()
            .map(|(place, arrays)| {
                let ordinal = ordinals[place];
                let lengths = [0, 1, 2].map(|i| arrays[i].len());
                let addresses = [0, 1, 2].map(|i| arrays[i].as_mut_ptr() as usize);
                for (address, len) in addresses.iter().zip(lengths) {
                    with(|world| world.memory.push((*address, address + len * 8, ordinal)));
                }
                let node = Node::new(LIBRARIES, ordinal).expect("a GPU");
                let stream = new_stream(ordinal) as usize;
                scope.spawn(move || {
                    let spoil = |which: usize| {
                        CURRENT.set(ordinal);
                        push(stream as Opaque, Work::Spoil(addresses[which], lengths[which]));
                        CURRENT.set(-1);
                    };
                    // What XLA's stream did before with the memory of the result ...
                    spoil(1);
                    spoil(2);
                    let party = Party { run: 7, row: ordinals.to_vec(), place, stream: stream as Opaque };
                    let answer = call(&node, hall, party, addresses);
                    // ... and what it does later with that of operand and scratch.
                    spoil(0);
                    spoil(2);
                    answer
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    if answers.iter().all(Result::is_ok) {
        play(seed);
    }
    answers.into_iter().zip(memory).map(|(answer, [_, output, _])| answer.map(|()| output)).collect()
}

/// The transform on all GPUs of `ordinals`, over the blocks of each.
fn run(
    slabs: &Slabs,
    ordinals: &[i32],
    blocks: &[Vec<f64>],
    what: (bool, i64, usize),
    seed: u64,
) -> Vec<Result<Vec<f64>>> {
    run_passes(slabs, ordinals, blocks, what, false, seed)
}

/// The same, of all axes or without the one along x.
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
    on_all(ordinals, blocks, lengths, seed, |node, hall, party, [input, output, scratch]| {
        let job = Job {
            party,
            inverse,
            sign,
            planes_only,
            batch,
            input: input as *const c_void,
            output: output as *mut c_void,
            scratch: scratch as *mut c_void,
        };
        // SAFETY: memory of the extents of the slabs.
        unsafe { transform(node, hall, slabs, &job, |_| Ok(8 as *mut c_void)) }
    })
}

/// Blocks of a whole mesh of `each` numbers a value, along axis 0 (x) or 1 (y).
fn divide(whole: &[f64], n: [usize; 3], each: usize, axis: usize, parts: usize) -> Vec<Vec<f64>> {
    let mut blocks = vec![Vec::new(); parts];
    for (i, value) in whole.chunks(each).enumerate() {
        let x = [i / (n[1] * n[2]), i / n[2] % n[1]];
        blocks[x[axis] * parts / n[axis]].extend_from_slice(value);
    }
    blocks
}

fn made_up(len: usize, mut seed: u64) -> Vec<f64> {
    (0..len).map(|_| random(&mut seed, 2001) as f64 / 1000.0 - 1.0).collect()
}

fn assert_close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() < 1e-11, "{g} is not {e}");
    }
}

/// The whole field and its spectrum, by definition.
fn pair(slabs: &Slabs, sign: i64, seed: u64) -> (Vec<f64>, Vec<f64>) {
    let [nx, ny, nk] = slabs.shape.map(|n| n as usize);
    let nz = slabs.real.map_or(nk, |nz| nz as usize);
    let values: Vec<Complex> = if slabs.real.is_some() {
        made_up(nx * ny * nz, seed).into_iter().map(|re| [re, 0.0]).collect()
    } else {
        made_up(2 * nx * ny * nz, seed).chunks(2).map(|c| [c[0], c[1]]).collect()
    };
    let spectrum = (0..nx * ny * nk)
        .flat_map(|i| dft(&values, [nx, ny, nz], [i / (ny * nk), i / nk % ny, i % nk], sign as f64))
        .collect();
    let field = values.iter().flat_map(|c| c[..if slabs.real.is_some() { 1 } else { 2 }].to_vec()).collect();
    (field, spectrum)
}

#[test]
fn forward_is_the_fourier_transform_whatever_the_streams_do_first() {
    let _one = begin();
    for (real, parts, sign) in
        [(true, 1, -1), (true, 2, -1), (true, 4, -1), (false, 1, 1), (false, 4, -1), (false, 4, 1)]
    {
        let slabs = case(real, parts);
        let each = if real { 1 } else { 2 };
        let field_shape = [8, 8, slabs.field_block()[2] as usize];
        let (a, b) = (pair(&slabs, sign, 1), pair(&slabs, sign, 2));
        let split = |x: &[f64], n, each, axis| divide(x, n, each, axis, parts as usize);
        let blocks: Vec<Vec<f64>> = split(&a.0, field_shape, each, 0)
            .into_iter()
            .zip(split(&b.0, field_shape, each, 0))
            .map(|(a, b)| [a, b].concat())
            .collect();
        let shape = slabs.shape.map(|n| n as usize);
        let expected: Vec<Vec<f64>> =
            split(&a.1, shape, 2, 1).into_iter().zip(split(&b.1, shape, 2, 1)).map(|(a, b)| [a, b].concat()).collect();
        let ordinals: Vec<i32> = (0..parts as i32).rev().collect();
        for seed in 0..20 {
            let got = run(&slabs, &ordinals, &blocks, (false, sign, 2), seed);
            for (got, expected) in got.iter().zip(&expected) {
                assert_close(got.as_ref().expect("no error"), expected);
            }
        }
    }
}

#[test]
fn inverse_is_the_inverse_whatever_the_streams_do_first() {
    let _one = begin();
    for (real, parts) in [(true, 1), (true, 2), (true, 4), (false, 1), (false, 4)] {
        let slabs = case(real, parts);
        let (field, spectrum) = pair(&slabs, -1, 3);
        let shape = slabs.shape.map(|n| n as usize);
        let nz = slabs.field_block()[2] as usize;
        let count = (shape[0] * shape[1] * nz) as f64;
        let field: Vec<f64> = field.iter().map(|v| v * count).collect();
        let each = if real { 1 } else { 2 };
        let blocks: Vec<Vec<f64>> = divide(&spectrum, shape, 2, 1, parts as usize)
            .into_iter()
            .map(|block| [block.clone(), block.iter().map(|v| 2.0 * v).collect()].concat())
            .collect();
        let expected = divide(&field, [shape[0], shape[1], nz], each, 0, parts as usize);
        let ordinals: Vec<i32> = (0..parts as i32).collect();
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

/// The transform along x of a slab along y, by definition.
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
fn planes_alone_are_the_transform_without_x() {
    let _one = begin();
    for (real, parts, seed) in [(true, 2), (true, 4), (false, 2), (false, 4)]
        .into_iter()
        .flat_map(|(real, parts)| (0..20).map(move |seed| (real, parts, seed)))
    {
        let slabs = case(real, parts);
        let (field, spectrum) = pair(&slabs, -1, 1);
        let (shape, nz) = (slabs.shape.map(|n| n as usize), slabs.field_block()[2] as usize);
        let field = divide(&field, [shape[0], shape[1], nz], if real { 1 } else { 2 }, 0, parts as usize);
        let spectrum = divide(&spectrum, shape, 2, 1, parts as usize);
        let ordinals: Vec<i32> = (0..parts as i32).collect();
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
    let fast = |nx| is_fast_along_x(&node, &Slabs::new(2, [nx, 4, 3], None, true).expect("it divides"));
    assert_eq!((fast(8), fast(6)), (Ok(true), Ok(false)));
}

#[test]
fn a_failure_on_one_gpu_reaches_all() {
    for (function, inverse) in [("plan", false), ("exec", false), ("lines", true), ("copy", false), ("copy", true)] {
        let _one = begin();
        with(|world| world.failing = Some((function, 1)));
        let slabs = case(true, 2);
        let blocks = vec![vec![0.0; numbers(&slabs, inverse)]; 2];
        let answers = run(&slabs, &[0, 1], &blocks, (inverse, -1, 1), 0);
        for (ordinal, answer) in answers.iter().enumerate() {
            let Err(Error(message)) = answer else { panic!("GPU {ordinal} noticed nothing of {function}") };
            assert!(message.contains("error 2"), "{message}");
            assert_eq!(message.contains("on GPU 1"), ordinal == 0, "{message}");
        }
        // Who has begun to send waits for its copies before the others hear of it, and may give their memory back.
        assert_eq!(with(|world| world.synchronized.len()), if function == "copy" { 2 } else { 0 });
    }
}

#[test]
fn a_failure_after_the_exchange_is_told_at_once() {
    let _one = begin();
    let slabs = Slabs { pieces: 1, bands: 1, ..case(true, 2) };
    let blocks = vec![vec![0.0; 2 * numbers(&slabs, false)]; 2];
    with(|world| world.failing = Some(("lines", 1)));
    // The first of two meshes fails on GPU 1 when all has been sent: GPU 0 waits for it with the second one.
    let answers = run(&slabs, &[0, 1], &blocks, (false, -1, 2), 0);
    for (ordinal, answer) in answers.iter().enumerate() {
        let Err(Error(message)) = answer else { panic!("GPU {ordinal} noticed nothing") };
        assert_eq!(message.contains("on GPU 1: cufftExec"), ordinal == 0, "{message}");
    }
}

#[test]
fn a_gpu_that_stays_away_is_reported() {
    let _one = begin();
    let slabs = case(true, 2);
    let node = Node::new(LIBRARIES, 0).expect("a GPU");
    let job = Job {
        party: Party { run: 1, row: vec![0, 1], place: 0, stream: new_stream(0) },
        inverse: false,
        sign: -1,
        planes_only: false,
        batch: 1,
        input: 8 as *const c_void,
        output: 8 as *mut c_void,
        scratch: 8 as *mut c_void,
    };
    let hall = Hall::new(Duration::from_millis(20));
    // SAFETY: nothing is done with the addresses.
    let answer = unsafe { transform(&node, &hall, &slabs, &job, |_| Ok(8 as *mut c_void)) };
    let Err(Error(message)) = answer else { panic!("it went on") };
    assert!(message.contains("1 of the 2 GPUs [0, 1] came to exchange data"), "{message}");
}

#[test]
fn the_streams_of_these_tests_find_a_missing_event() {
    // Without the events of the exchange, what is sent meets memory that is still in use.
    let _one = begin();
    let slabs = case(true, 4);
    let (field, spectrum) = pair(&slabs, -1, 1);
    let shape = slabs.shape.map(|n| n as usize);
    let blocks = divide(&field, [8, 8, 6], 1, 0, 4);
    let expected = divide(&spectrum, shape, 2, 1, 4);
    let wrong = (0..20).any(|seed| {
        FORGETFUL.set(true);
        let got = run(&slabs, &[0, 1, 2, 3], &blocks, (false, -1, 1), seed);
        FORGETFUL.set(false);
        got.iter().zip(&expected).any(|(got, expected)| {
            let pairs = got.as_ref().expect("no error").iter().zip(expected);
            pairs.into_iter().any(|(g, e)| (g - e).abs() > 1e-11 || g.is_nan())
        })
    });
    assert!(wrong);
}

/// Blocks of meshes of 3 numbers a plane, whose numbers tell the mesh and the plane.
fn planes(meshes: usize, parts: usize, count: usize) -> Vec<Vec<f64>> {
    let plane = |mesh: usize, x: usize| [mesh as f64, x as f64, (mesh + x) as f64];
    let block = |place: usize, mesh| (0..count).flat_map(move |x| plane(mesh, place * count + x));
    (0..parts).map(|place| (0..meshes).flat_map(|mesh| block(place, mesh)).collect()).collect()
}

/// Halos or edges of made-up meshes, on all GPUs.
fn exchanged(parts: usize, extents: Planes, purpose: Purpose, blocks: &[Vec<f64>], seed: u64) -> Vec<Vec<f64>> {
    let ordinals: Vec<i32> = (0..parts as i32).collect();
    let [_, after] = extents.extents(purpose);
    let got =
        on_all(&ordinals, blocks, (extents.batch * after * 3, 0), seed, |node, hall, party, [input, output, _]| {
            let (from, to) = (input as *const c_void, output as *mut c_void);
            // SAFETY: memory of those extents.
            unsafe { exchange_planes(node, hall, &party, (&extents, purpose), from, to) }
        });
    got.into_iter().map(|block| block.expect("no error")).collect()
}

#[test]
fn halos_are_the_neighbours_planes() {
    let _one = begin();
    for (batch, parts, count, halo) in [(1, 2, 3, 1), (2, 3, 4, 2), (2, 4, 2, 2)] {
        let extents = Planes { batch, count, halo, bytes: 3 * 8 };
        for seed in 0..20 {
            for (place, got) in
                exchanged(parts, extents, Purpose::Pad, &planes(batch, parts, count), seed).iter().enumerate()
            {
                for (i, plane) in got.chunks(3).enumerate() {
                    let (mesh, x) = (i / (count + 2 * halo), i % (count + 2 * halo));
                    let whole = (place * count + x + parts * count - halo) % (parts * count);
                    assert_eq!(plane, [mesh as f64, whole as f64, (mesh + whole) as f64]);
                }
            }
        }
    }
}

#[test]
fn edges_are_swapped_with_the_neighbours() {
    let _one = begin();
    for (parts, halo) in [(2, 1), (4, 3)] {
        let extents = Planes { batch: 2, count: 2 * halo, halo, bytes: 3 * 8 };
        let blocks = planes(2, parts, 2 * halo);
        for seed in 0..20 {
            let got = exchanged(parts, extents, Purpose::Swap, &blocks, seed);
            for (place, got) in got.iter().enumerate() {
                let (below, above) = (&blocks[(place + parts - 1) % parts], &blocks[(place + 1) % parts]);
                for mesh in 0..2 {
                    let edges = &got[mesh * 6 * halo..(mesh + 1) * 6 * halo];
                    let at = |block: &[f64], edge: usize| block[(2 * mesh + edge) * 3 * halo..][..3 * halo].to_vec();
                    assert_eq!(edges, [at(below, 1), at(above, 0)].concat());
                }
            }
        }
    }
}
