//! Properties of both ops: exact sums, exact adjoints, independence of order, invalid values.

use crate::common::{Case, Random, VALUE, bits, random_masks};
use jaxdecomp_ops::cic::cpu::Packed;
use jaxdecomp_ops::cic::{Geometry, Mask, Real};

fn sum<T: Real>(values: &[T]) -> f64 {
    values.iter().map(|x| x.to_f64()).sum()
}

fn dot<T: Real>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}

fn paint_is_the_transpose_of_read<T: Packed>(tolerance: f64) {
    let mut random = Random(11);
    for fields in 1..=4 {
        let case = Case::<T>::random(&mut random, [6, 6, 40], 4);
        let masks = random_masks(&mut random, 3);
        let weight: Vec<T> = random.values(3 * fields * case.particles(), 1.0);
        let mesh: Vec<T> = random.values(fields * case.volume(), 1.0);
        let left = dot(&case.paint(&masks, &weight, fields, 2), &mesh);
        let right = dot(&case.read(&masks, &mesh, 2), &weight);
        let size = (weight.len() as f64).sqrt();
        assert!((left - right).abs() < tolerance * size, "{left} {right}");
    }
}

#[test]
fn transposes() {
    paint_is_the_transpose_of_read::<f32>(1e-6);
    paint_is_the_transpose_of_read::<f64>(1e-14);
}

#[test]
fn mass_is_conserved() {
    let mut random = Random(12);
    let case = Case::<f64>::random(&mut random, [8, 8, 40], 5);
    let mass = sum(&case.paint(&[VALUE], &[0.7], 1, 2));
    let expected = 0.7 * case.particles() as f64;
    assert!((mass / expected - 1.0).abs() < 1e-14, "{mass} {expected}");
    // In single precision each cell is rounded once.
    let case = Case::<f32>::plain(32, random.values(3 << 15, 6.0));
    let mass = sum(&case.paint(&[VALUE], &[1.0], 1, 2));
    assert!((mass / 32768.0 - 1.0).abs() < 1e-8, "{mass}");
}

#[test]
fn cells_are_rounded_once() {
    // A float sum of this many contributions would be wrong by many units in the last place.
    let mut random = Random(13);
    let case = Case { cells: [2; 3], ..Case::<f32>::plain(32, random.values(3 << 15, 6.0)) };
    let weight: Vec<f32> = random.values(1 << 15, 1.0).iter().map(|w: &f32| w.abs()).collect();
    let expected = case.paint_by_definition(&[VALUE], &weight, 1);
    for (got, expected) in case.paint(&[VALUE], &weight, 1, 2).iter().zip(expected) {
        assert!((f64::from(*got) / expected - 1.0).abs() <= f64::from(f32::EPSILON) / 2.0, "{got} {expected}");
    }
}

fn threads_change_no_bit<T: Packed>() {
    let mut random = Random(14);
    for amplitude in [2.0, 60.0] {
        let disp = random.values(3 * 24 * 24 * 64, amplitude);
        let case = Case { sites: [24, 24, 64], cells: [48, 24, 30], ..Case::<T>::plain(1, disp) };
        let masks: [Mask; 2] = [VALUE, [false, true, false]];
        let weight: Vec<T> = random.values(2 * 4 * case.particles(), 1.0);
        let mesh: Vec<T> = random.values(4 * case.volume(), 1.0);
        let painted = bits(&case.paint(&masks, &weight, 4, 1));
        let read = bits(&case.read(&masks, &mesh, 1));
        for threads in [2, 3, 16] {
            assert!(bits(&case.paint(&masks, &weight, 4, threads)) == painted, "paint, {threads} threads");
            assert!(bits(&case.read(&masks, &mesh, threads)) == read, "read, {threads} threads");
        }
    }
}

#[test]
fn threads_and_blocks_change_no_bit() {
    threads_change_no_bit::<f32>();
    threads_change_no_bit::<f64>();
}

#[test]
fn the_order_of_particles_changes_no_bit() {
    let mut random = Random(15);
    let (side, count) = (16, 16 * 16 * 16);
    // With a spacing of one cell, displacements by whole cells exchange particles exactly.
    let position: Vec<f32> = random.values::<f32>(3 * count, 8.0).iter().map(|x| (x * 64.0).round() / 64.0).collect();
    let weight: Vec<f32> = random.values(count, 1.0);
    let site = |p: usize| [p / side / side, p / side % side, p % side].map(|i| i as f32);
    let painted = |order: &[usize]| {
        let disp = order.iter().enumerate().flat_map(|(p, &q)| {
            let (here, at) = (site(p), &position[3 * q..3 * q + 3]);
            [at[0] - here[0], at[1] - here[1], at[2] - here[2]]
        });
        let weight: Vec<f32> = order.iter().map(|&q| weight[q]).collect();
        bits(&Case::plain(side, disp.collect()).paint(&[VALUE], &weight, 1, 3))
    };
    let mut order: Vec<usize> = (0..count).collect();
    let first = painted(&order);
    for _ in 0..3 {
        for p in (1..count).rev() {
            order.swap(p, random.integer(0, p));
        }
        assert!(painted(&order) == first);
    }
}

#[test]
fn invalid_values_result_in_nan() {
    let mut random = Random(16);
    let disp: Vec<f32> = random.values(3 * 512, 2.0);
    let case = Case::<f32>::plain(8, disp);
    let mesh: Vec<f32> = random.values(512, 1.0);
    for (n, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e9, -1e30].into_iter().enumerate() {
        let mut worse = case.clone();
        worse.disp[3 * 300 + n % 3] = bad;
        assert!(worse.paint(&[VALUE], &[1.0], 1, 2).iter().all(|x| x.is_nan()), "{bad}");
        let (read, expected) = (worse.read(&[VALUE], &mesh, 2), case.read(&[VALUE], &mesh, 2));
        for (p, (got, expected)) in read.iter().zip(expected).enumerate() {
            assert!(if p == 300 { got.is_nan() } else { got.to_bits() == expected.to_bits() }, "{bad} at {p}");
        }
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 700, 511 * 3 + 1] {
            let mut weight = vec![1.0; 3 * 512];
            weight[at] = bad;
            assert!(case.paint(&[VALUE], &weight, 3, 2).iter().all(|x| x.is_nan()), "{bad} at {at}");
        }
        assert!(case.paint(&[VALUE], &[bad], 1, 2).iter().all(|x| x.is_nan()), "{bad}");
    }
}

#[test]
fn a_padded_block_ends_where_its_last_cell_does() {
    let mut case = Case { cells: [6, 4, 4], ..Case::<f64>::plain(2, vec![0.0; 24]) };
    case.spec.periodic = [false, true, true];
    case.spec.origin = [2, 0, 0];
    let mesh = vec![1.0; 96];
    // Site 0 is at cell 2: displacements from -2 cells are valid. Those of site 1 are valid below +2 cells, since the next
    // cell is needed too.
    for (particle, disp, valid) in [(0, -2.0, true), (0, -2.001, false), (4, 1.999, true), (4, 2.0, false)] {
        case.disp.fill(0.0);
        case.disp[3 * particle] = disp;
        assert_eq!(case.paint(&[VALUE], &[1.0], 1, 1).iter().all(|x| x.is_finite()), valid, "{disp}");
        let read = case.read(&[VALUE], &mesh, 1);
        assert!(read.iter().enumerate().all(|(p, x)| x.is_finite() == (valid || p != particle)), "{disp}");
    }
}

#[test]
fn weights_of_any_size_are_painted() {
    let case = Case::<f64>::plain(4, vec![0.25; 192]);
    for size in [1e-280, 1e-30, 1e30, 1e300] {
        let mass = sum(&case.paint(&[VALUE], &[size], 1, 1)) / size;
        assert!((mass / 64.0 - 1.0).abs() < 1e-14, "{size}: {mass}");
    }
    let case = Case::<f32>::plain(4, vec![0.25; 192]);
    for size in [1e-38, 1e-20, 1e20, 1e36_f32] {
        let mass = sum(&case.paint(&[VALUE], &[size], 1, 1)) / f64::from(size);
        assert!((mass / 64.0 - 1.0).abs() < 1e-6, "{size}: {mass}");
    }
    assert_eq!(case.paint(&[VALUE], &[0.0], 1, 1), vec![0.0; 64]);
}

#[test]
fn an_invalid_geometry_is_rejected() {
    let good = Case::<f32>::plain(4, Vec::new());
    let message = |change: fn(&mut Case<f32>)| {
        let mut case = good.clone();
        change(&mut case);
        Geometry::<f32>::new(&case.spec, case.sites, case.cells).expect_err("invalid").message
    };
    assert_eq!(message(|case| case.cells[1] = 0), "mesh axis y: expected 1 to 2^30 cells, got 0");
    assert_eq!(
        message(|case| case.spec.spacing_den[2] = 0),
        "spacing of axis z: expected 0 <= num < 2^30 and 0 < den < 2^30, got 1/0"
    );
    assert!(message(|case| case.spec.spacing_num[0] = 1 << 29).starts_with("axis x: 4 sites"));
}
