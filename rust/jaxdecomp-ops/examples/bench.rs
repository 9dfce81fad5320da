//! Times of paint and read: `cargo run --release --example bench -- [cells a side: 128] [part of a case's name] [threads]`.
//!
//! The load is like a late universe: random plane waves, displacements of 6 cells rms, strain of about 0.5.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use jaxdecomp_ops::cic::cpu::{Values, paint, read};
use jaxdecomp_ops::cic::{Geometry, Mask, Spec};
use std::time::Instant;
use xla_ffi::Threads;

const VALUE: [Mask; 1] = [[false; 3]];
const SLOPES: [Mask; 3] = [[true, false, false], [false, true, false], [false, false, true]];

fn main() {
    let cells = std::env::args().nth(1).map_or(128, |n| n.parse().expect("a number of cells"));
    let smooth = waves(cells);
    let random = noise(smooth.len(), cells as f32);
    println!("{cells}^3 particles and cells, f32: best and median [ms]");
    let threads = std::env::args().nth(3).map_or(vec![1, 2], |n| vec![n.parse().expect("a number of threads")]);
    for threads in threads {
        let case = Case { cells, pool: Threads(threads) };
        println!("{threads} threads");
        case.paint("paint, shared weight", &VALUE, &smooth, 1, true);
        case.paint("paint 3 fields", &VALUE, &smooth, 3, false);
        case.paint("paint, 3 masks", &SLOPES, &smooth, 1, false);
        case.paint("paint, random order", &VALUE, &random, 1, true);
        case.read("read", &VALUE, &smooth, 1);
        case.read("read 3 fields", &VALUE, &smooth, 3);
        case.read("read, 3 masks", &SLOPES, &smooth, 1);
        case.read("read 3 fields, 3 masks", &SLOPES, &smooth, 3);
        case.read("slopes along a vector", &SLOPES, &smooth, 3);
        case.read("read 3 fields, random order", &VALUE, &random, 3);
    }
}

struct Case {
    cells: usize,
    pool: Threads,
}

impl Case {
    fn geometry(&self) -> Geometry<f32> {
        let spec =
            Spec { spacing_num: [1; 3], spacing_den: [1; 3], origin: [0; 3], periodic: [true; 3], scale: [1.0; 3] };
        Geometry::new(&spec, [self.cells; 3], [self.cells; 3]).expect("a valid geometry")
    }

    fn paint(&self, name: &str, masks: &[Mask], disp: &[f32], fields: usize, shared: bool) {
        let geometry = self.geometry();
        let weight = vec![1.0; masks.len() * fields * if shared { 1 } else { geometry.particles() }];
        let mut mesh = vec![0.0; fields * geometry.volume()];
        time(name, || paint(&geometry, masks, disp, &weight, &mut mesh, &self.pool));
    }

    fn read(&self, name: &str, masks: &[Mask], disp: &[f32], fields: usize) {
        let geometry = self.geometry();
        let mesh = noise(fields * geometry.volume(), 1.0);
        let weight = noise(fields * geometry.particles(), 1.0);
        let along = name.contains("along");
        let values = if along { Values::OverFields(&weight) } else { Values::All };
        let mut out = vec![0.0; masks.len() * if along { 1 } else { fields } * geometry.particles()];
        time(name, || read(&geometry, masks, disp, &mesh, values, &mut out, &self.pool));
    }
}

fn time(name: &str, mut action: impl FnMut()) {
    if std::env::args().nth(2).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let mut times = Vec::new();
    while times.len() < 9 || times.iter().sum::<f64>() < 500.0 {
        let start = Instant::now();
        action();
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("  {name:30} {:8.1} {:8.1}", times[0], times[times.len() / 2]);
}

/// Uniform in ±amplitude (a linear congruential generator).
fn noise(len: usize, amplitude: f32) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..len).map(|_| (2.0 * next() - 1.0) * amplitude).collect()
}

/// Displacements along random wave vectors; the amplitude of a wave is inverse to its wave number.
fn waves(cells: usize) -> Vec<f32> {
    const WAVES: usize = 12;
    let choice = noise(4 * WAVES, 0.5);
    let mut disp = vec![0.0; 3 * cells * cells * cells];
    for (n, choice) in choice.chunks(4).enumerate() {
        let highest = 2.0 + cells as f32 / 32.0 * (1 + n) as f32 / WAVES as f32;
        let wave: [f32; 3] = std::array::from_fn(|i| (choice[i] * 2.0 * highest).round());
        let norm = wave.iter().map(|k| k * k).sum::<f32>().max(1.0);
        let unit = std::f32::consts::TAU / cells as f32;
        let sines: Vec<(f32, f32)> = (0..cells).map(|k| (wave[2] * unit * k as f32).sin_cos()).collect();
        for (row, disp) in disp.chunks_mut(3 * cells).enumerate() {
            let phase = wave[0] * (row / cells) as f32 + wave[1] * (row % cells) as f32;
            let (sin, cos) = (phase * unit + choice[3] * 6.0).sin_cos();
            for (disp, (sin_z, cos_z)) in disp.chunks_mut(3).zip(&sines) {
                let amplitude = (sin * cos_z + cos * sin_z) / norm;
                disp.iter_mut().zip(wave).for_each(|(disp, k)| *disp += amplitude * k);
            }
        }
    }
    let rms = (disp.iter().map(|d| d * d).sum::<f32>() / disp.len() as f32).sqrt();
    disp.into_iter().map(|d| d * 6.0 / rms / 3.0_f32.sqrt()).collect()
}
