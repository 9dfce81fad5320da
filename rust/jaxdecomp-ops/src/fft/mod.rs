//! Real transforms of blocks on CPUs, on the threads of the pool: XLA's own runs on one of them inside a larger program.
//! Planes of x are shared out along z and y, columns along x.

mod axes;
pub mod handlers;

use axes::{Field, columns, planes};
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftNum, FftPlanner};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use xla_ffi::Parallel;

/// Plans of a precision by length; they are kept, since planning takes longer than a small transform. Each is made by a
/// planner of its own: one that has made others builds on their parts, and the bits would depend on which they were.
struct Plans<T: FftNum> {
    real: HashMap<usize, Arc<dyn RealToComplex<T>>>,
    to_real: HashMap<usize, Arc<dyn ComplexToReal<T>>>,
    complex: HashMap<(usize, bool), Arc<dyn Fft<T>>>,
}

impl<T: FftNum> Plans<T> {
    fn new() -> Mutex<Self> {
        Mutex::new(Self { real: HashMap::new(), to_real: HashMap::new(), complex: HashMap::new() })
    }
}

/// A precision in which blocks are transformed.
pub(crate) trait Precision: FftNum + Default {
    #[allow(private_interfaces, reason = "of this module alone")]
    fn plans() -> &'static Mutex<Plans<Self>>;
}

macro_rules! precision {
    ($real:ty) => {
        impl Precision for $real {
            #[allow(private_interfaces, reason = "of this module alone")]
            fn plans() -> &'static Mutex<Plans<Self>> {
                static PLANS: LazyLock<Mutex<Plans<$real>>> = LazyLock::new(Plans::new);
                &PLANS
            }
        }
    };
}

precision!(f32);
precision!(f64);

/// Extents of a real block, and how many of its last axes are transformed: 1, 2 or 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extents {
    pub(crate) sides: [usize; 3],
    pub(crate) rank: usize,
}

impl Extents {
    /// Values along kz.
    pub(crate) fn modes(&self) -> usize {
        self.sides[2] / 2 + 1
    }

    /// Whether an axis is transformed.
    fn transforms(&self, axis: usize) -> bool {
        axis + self.rank >= 3
    }

    fn plan<T: Precision>(&self, axis: usize, forward: bool) -> Option<Arc<dyn Fft<T>>> {
        let mut plans = T::plans().lock().unwrap_or_else(PoisonError::into_inner);
        let side = self.sides[axis];
        let make = if forward { FftPlanner::plan_fft_forward } else { FftPlanner::plan_fft_inverse };
        let plan =
            || plans.complex.entry((side, forward)).or_insert_with(|| make(&mut FftPlanner::new(), side)).clone();
        self.transforms(axis).then(plan)
    }

    /// The spectrum as planes of constant x.
    fn field<'a, T>(&self, spectrum: &'a mut [Complex<T>]) -> Field<'a, Complex<T>> {
        Field::new(spectrum, [self.sides[0], self.sides[1], self.modes()])
    }
}

/// Transform of a real block.
///
/// # Panics
/// If the lengths are inconsistent.
pub(crate) fn forward<T: Precision>(extents: Extents, from: &[T], to: &mut [Complex<T>], pool: &dyn Parallel) {
    let [x, y, z] = extents.sides;
    assert_eq!((from.len(), to.len()), (x * y * z, x * y * extents.modes()), "whole blocks");
    let rows = plan_real::<T>(z);
    let along_y = extents.plan::<T>(1, true);
    let mut field = extents.field(to);
    planes(&mut field, along_y.as_ref(), pool, true, &|plane, row, modes, scratch| {
        let real = &from[(plane * y + row) * z..][..z];
        scratch.real.clear();
        scratch.real.extend_from_slice(real);
        scratch.complex.resize(rows.get_scratch_len().max(scratch.complex.len()), Complex::default());
        let needed = &mut scratch.complex[..rows.get_scratch_len()];
        rows.process_with_scratch(&mut scratch.real, modes, needed).expect("lengths are those of the plan");
    });
    if let Some(along_x) = extents.plan::<T>(0, true) {
        columns(&mut field, &along_x, pool);
    }
}

/// Inverse of [`forward`], divided by the number of values; the spectrum is overwritten.
///
/// The imaginary parts of modes that are their own conjugates are ignored.
///
/// # Panics
/// If the lengths are inconsistent.
pub(crate) fn inverse<T: Precision>(extents: Extents, from: &mut [Complex<T>], to: &mut [T], pool: &dyn Parallel) {
    let [x, y, z] = extents.sides;
    assert_eq!((from.len(), to.len()), (x * y * extents.modes(), x * y * z), "whole blocks");
    let rows = plan_inverse::<T>(z);
    let (along_x, along_y) = (extents.plan::<T>(0, false), extents.plan::<T>(1, false));
    let count: usize = (0..3).filter(|&axis| extents.transforms(axis)).map(|axis| extents.sides[axis]).product();
    let share = T::one() / T::from_usize(count).expect("a number of values");
    let out = Field::new(to, [x, y, z]);
    let mut field = extents.field(from);
    if let Some(along_x) = along_x {
        columns(&mut field, &along_x, pool);
    }
    planes(&mut field, along_y.as_ref(), pool, false, &|plane, row, modes, scratch| {
        modes[0].im = T::zero();
        if z % 2 == 0 {
            modes[z / 2].im = T::zero();
        }
        scratch.complex.resize(rows.get_scratch_len().max(scratch.complex.len()), Complex::default());
        let needed = &mut scratch.complex[..rows.get_scratch_len()];
        // SAFETY: each row of each plane is visited once.
        let real = unsafe { out.row(plane, row) };
        rows.process_with_scratch(modes, real, needed).expect("lengths are those of the plan");
        for value in real {
            *value = *value * share;
        }
    });
}

fn plan_real<T: Precision>(side: usize) -> Arc<dyn RealToComplex<T>> {
    let mut plans = T::plans().lock().unwrap_or_else(PoisonError::into_inner);
    plans.real.entry(side).or_insert_with(|| RealFftPlanner::new().plan_fft_forward(side)).clone()
}

fn plan_inverse<T: Precision>(side: usize) -> Arc<dyn ComplexToReal<T>> {
    let mut plans = T::plans().lock().unwrap_or_else(PoisonError::into_inner);
    plans.to_real.entry(side).or_insert_with(|| RealFftPlanner::new().plan_fft_inverse(side)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::f64::consts::TAU;
    use xla_ffi::Threads;

    fn values(count: usize) -> Vec<f64> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 24) - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    /// The transform by its definition.
    fn expected(extents: Extents, field: &[f64]) -> Vec<Complex<f64>> {
        let ([nx, ny, nz], nk) = (extents.sides, extents.modes());
        let mut out = vec![Complex::default(); nx * ny * nk];
        for (i, out) in out.iter_mut().enumerate() {
            let k = [i / (ny * nk), i / nk % ny, i % nk];
            for (j, &value) in field.iter().enumerate() {
                let at = [j / (ny * nz), j / nz % ny, j % nz];
                let still = (0..3).any(|a| !extents.transforms(a) && k[a] != at[a]);
                let turns: f64 = (0..3)
                    .filter(|&a| extents.transforms(a))
                    .map(|a| (k[a] * at[a] % extents.sides[a]) as f64 / extents.sides[a] as f64)
                    .sum();
                if !still {
                    *out += Complex::from_polar(value, -TAU * turns);
                }
            }
        }
        out
    }

    #[test]
    fn transforms_are_those_of_their_definition_and_come_back() {
        for sides in [[4, 6, 8], [3, 5, 7], [1, 2, 18], [5, 1, 2], [2, 29, 3], [1, 1, 59]] {
            for (rank, threads) in [(1, 1), (2, 3), (3, 1), (3, 2)] {
                let extents = Extents { sides, rank };
                let field = values(sides.iter().product());
                let mut modes = vec![Complex::default(); sides[0] * sides[1] * extents.modes()];
                forward(extents, &field, &mut modes, &Threads(threads));
                for (x, y) in modes.iter().zip(expected(extents, &field)) {
                    assert!((x - y).norm() < 1e-12, "{extents:?}: {x} is not {y}");
                }
                let mut back = vec![f64::NAN; field.len()];
                inverse(extents, &mut modes, &mut back, &Threads(threads));
                for (x, y) in back.iter().zip(&field) {
                    assert!((x - y).abs() < 1e-14, "{extents:?}: {x} is not {y}");
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let extents = Extents { sides: [6, 40, 20], rank: 3 };
        let field: Vec<f32> = values(4800).into_iter().map(|x| x as f32).collect();
        let [one, four] = [1, 4].map(|threads| {
            let mut modes = vec![Complex::default(); 6 * 40 * 11];
            forward(extents, &field, &mut modes, &Threads(threads));
            let mut back = vec![0.0; field.len()];
            inverse(extents, &mut modes.clone(), &mut back, &Threads(threads));
            (modes, back)
        });
        assert_eq!(one, four);
    }

    #[test]
    fn bits_do_not_depend_on_lengths_that_were_transformed_before() {
        let extents = Extents { sides: [1, 108, 3], rank: 2 };
        let field: Vec<f32> = values(324).into_iter().map(|x| x as f32).collect();
        let transformed = || {
            let mut modes = vec![Complex::default(); 216];
            forward(extents, &field, &mut modes, &Threads(1));
            modes
        };
        let alone = transformed();
        f32::plans().lock().unwrap().complex.clear();
        // A planner makes one of 2700 of one of 108, whose parts are others than those of one alone.
        let longer = Extents { sides: [1, 2700, 3], rank: 2 };
        forward(longer, &vec![0.0; 8100], &mut vec![Complex::default(); 5400], &Threads(1));
        assert_eq!(transformed(), alone);
    }
}
