//! Comparison of both ops with their definition on random cases.

use crate::common::{Case, Random, VALUE, assert_close, random_masks};
use jaxdecomp_ops::cic::Mask;
use jaxdecomp_ops::cic::cpu::{Packed, Values};

/// Shapes of small blocks, and of rows longer than a batch.
const LONGEST: [[usize; 3]; 2] = [[7, 7, 7], [3, 3, 90]];

fn choose_masks(random: &mut Random) -> Vec<Mask> {
    match random.integer(0, 3) {
        0 => vec![VALUE],
        1 => vec![[true, false, false], [false, true, false], [false, false, true]],
        _ => {
            let count = random.integer(1, 5);
            random_masks(random, count)
        }
    }
}

fn compare<T: Packed>(seed: u64, tolerance: f64) {
    let mut random = Random(seed);
    for trial in 0..60 {
        let max_disp = random.integer(1, 5);
        let case = Case::<T>::random(&mut random, LONGEST[trial % 2], max_disp);
        let masks = choose_masks(&mut random);
        let fields = random.integer(1, 7);
        let sharers = if random.coin() { case.particles() } else { 1 };
        let threads = random.integer(1, 3);
        let what = format!("trial {trial}: {:?} sites, {:?} cells, {masks:?}", case.sites, case.cells);

        let weight: Vec<T> = random.values(sharers * masks.len() * fields, 1.0);
        let expected = case.paint_by_definition(&masks, &weight, fields);
        let scale = expected.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
        assert_close(&case.paint(&masks, &weight, fields, threads), &expected, tolerance * scale, &what);

        let mesh: Vec<T> = random.values(fields * case.volume(), 1.0);
        let expected = case.read_by_definition(&masks, &mesh);
        assert_close(&case.read(&masks, &mesh, threads), &expected, 8.0 * tolerance, &what);

        let (ks, particles) = (masks.len(), case.particles());
        let weight: Vec<T> = random.values(particles * ks, 1.0);
        let sums = (0..particles * fields).map(|at| {
            let (p, f) = (at / fields, at % fields);
            (0..ks).map(|k| weight[p * ks + k].to_f64() * expected[(p * ks + k) * fields + f]).sum()
        });
        let got = case.read_values(&masks, &mesh, Values::OverMasks(&weight), fields, threads);
        assert_close(&got, &sums.collect::<Vec<f64>>(), 40.0 * tolerance, &what);

        let weight: Vec<T> = random.values(particles * fields, 1.0);
        let sums = (0..particles * ks)
            .map(|at| (0..fields).map(|f| weight[at / ks * fields + f].to_f64() * expected[at * fields + f]).sum());
        let got = case.read_values(&masks, &mesh, Values::OverFields(&weight), ks, threads);
        assert_close(&got, &sums.collect::<Vec<f64>>(), 40.0 * tolerance, &what);
    }
}

#[test]
fn single_precision() {
    compare::<f32>(1, 2e-7);
}

#[test]
fn double_precision() {
    compare::<f64>(2, 2e-15);
}

#[test]
fn tiny_meshes_of_every_shape() {
    let mut random = Random(3);
    for cells in (0..27).map(|n| [n / 9 + 1, n / 3 % 3 + 1, n % 3 + 1]) {
        let disp = random.values(3 * 27, 20.0);
        let case = Case { cells, ..Case::<f64>::plain(3, disp) };
        let weight: Vec<f64> = random.values(27, 1.0);
        for mask in [VALUE, [true, false, true]] {
            let expected = case.paint_by_definition(&[mask], &weight, 1);
            assert_close(&case.paint(&[mask], &weight, 1, 1), &expected, 1e-13, &format!("{cells:?} {mask:?}"));
            let mesh: Vec<f64> = random.values(case.volume(), 1.0);
            let expected = case.read_by_definition(&[mask], &mesh);
            assert_close(&case.read(&[mask], &mesh, 1), &expected, 1e-13, &format!("{cells:?} {mask:?}"));
        }
    }
}

#[test]
fn displacements_of_many_boxes() {
    let mut random = Random(4);
    let case = Case::<f64>::plain(8, random.values(3 * 512, 1e8));
    let expected = case.paint_by_definition(&[VALUE], &[1.0], 1);
    assert_close(&case.paint(&[VALUE], &[1.0], 1, 2), &expected, 1e-12, "paint");
    let mesh: Vec<f64> = random.values(512, 1.0);
    assert_close(&case.read(&[VALUE], &mesh, 2), &case.read_by_definition(&[VALUE], &mesh), 1e-12, "read");
}

#[test]
fn particles_in_no_order_at_all() {
    // Particles whose rows touch many blocks are sorted by plane.
    let mut random = Random(5);
    let disp = random.values(3 * 4 * 4 * 512, 64.0);
    let case = Case { sites: [4, 4, 512], cells: [64, 5, 7], ..Case::<f32>::plain(1, disp) };
    let weight: Vec<f32> = random.values(3 * case.particles(), 1.0);
    let expected = case.paint_by_definition(&[VALUE], &weight, 3);
    let scale = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    assert_close(&case.paint(&[VALUE], &weight, 3, 8), &expected, 2e-7 * scale, "paint");
}

#[test]
fn no_particles_and_no_fields() {
    let case = Case { sites: [0, 3, 3], ..Case::<f32>::plain(3, Vec::new()) };
    assert_eq!(case.paint(&[VALUE], &[1.0], 1, 2), vec![0.0; 27]);
    assert!(case.read(&[VALUE], &[1.0; 27], 2).is_empty());
    let case = Case::<f32>::plain(3, vec![0.0; 81]);
    assert!(case.paint(&[VALUE], &[], 0, 2).is_empty());
    assert!(case.read(&[VALUE], &[], 2).is_empty());
}
