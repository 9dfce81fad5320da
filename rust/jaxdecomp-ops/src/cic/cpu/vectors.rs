//! One pass over particles that have a few vectors each.

use super::batch::{Batch, SIZE};
use super::lanes::Packed;
use super::simd::{Work, widest};
use crate::cic::geometry::Geometry;
use crate::cic::real::Real;
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Values of a batch of vectors.
pub(super) const VALUES: usize = 3 * SIZE;
/// Lanes of sums and maxima, so that loops over values vectorise.
pub(super) const LANES: usize = 8;
/// Vectors of a batch, and space for the fourth lane of the last one.
pub(super) type Vectors<T> = [T; VALUES + LANES];
/// Sums over all particles, or maxima.
pub(super) type Totals = [f64; 4];

/// A vector of each particle.
#[derive(Debug)]
pub(super) enum Vector<'a, T> {
    /// Read only.
    Fixed(&'a [T]),
    /// Overwritten.
    Moved(&'a mut [T]),
}

impl<T: Real> Vector<'_, T> {
    fn as_slice(&self) -> &[T] {
        match self {
            Self::Fixed(values) => values,
            Self::Moved(values) => values,
        }
    }

    /// Splits into pieces of a length; the last piece may be shorter.
    fn chunks(self, len: usize) -> Vec<Self> {
        match self {
            Self::Fixed(values) => values.chunks(len).map(Vector::Fixed).collect(),
            Self::Moved(values) => values.chunks_mut(len).map(Vector::Moved).collect(),
        }
    }
}

/// A kernel for the particles of a batch.
pub(super) trait Kernel<T: Packed, const V: usize>: Sync {
    /// Changes the vectors of a batch, and adds to the totals. Vectors beyond the batch are zero.
    fn run(&self, batch: &mut Batch<T>, vectors: &mut [Vectors<T>; V], totals: &mut Totals);

    /// Combines totals of two parts.
    fn combine(a: f64, b: f64) -> f64 {
        a + b
    }
}

/// Applies a kernel to all particles, whose displacements are the first of the vectors.
pub(super) fn each_batch<T: Packed, K: Kernel<T, V>, const V: usize>(
    geometry: &Geometry<T>,
    kernel: &K,
    vectors: [Vector<'_, T>; V],
    pool: &dyn Parallel,
) -> Totals {
    for vector in &vectors {
        assert_eq!(vector.as_slice().len(), 3 * geometry.particles(), "three values a particle");
    }
    if geometry.particles() == 0 {
        return [0.0; 4];
    }
    // About 64 KiB of displacements at a time, in whole rows.
    let [_, _, pz] = geometry.sites();
    let rows = (5400 / pz).max(1);
    let mut pieces = vectors.map(|vector| vector.chunks(3 * rows * pz).into_iter());
    let parts: Vec<_> = core::iter::from_fn(|| {
        let own = pieces.each_mut().map(Iterator::next); // all have the same number of pieces
        let some = own.iter().all(Option::is_some);
        some.then(|| Mutex::new((own.map(|piece| piece.unwrap_or(Vector::Fixed(&[]))), [0.0; 4])))
    })
    .collect();
    pool.run(parts.len(), &|mine| {
        let mut batch = Batch::new();
        for part in mine {
            let mut own = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            let (vectors, totals) = &mut *own;
            widest(Rows { geometry, kernel, batch: &mut batch, first: part * rows, vectors, totals });
        }
    });
    let totals = parts.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    totals.reduce(|a, b| core::array::from_fn(|i| K::combine(a[i], b[i]))).unwrap_or_default()
}

/// Consecutive rows of the lattice: the work of one task.
struct Rows<'a, 'v, T: Packed, K: Kernel<T, V>, const V: usize> {
    geometry: &'a Geometry<T>,
    kernel: &'a K,
    batch: &'a mut Batch<T>,
    /// Index of the first row.
    first: usize,
    /// Vectors of the particles in these rows.
    vectors: &'a mut [Vector<'v, T>; V],
    totals: &'a mut Totals,
}

impl<T: Packed, K: Kernel<T, V>, const V: usize> Work for Rows<'_, '_, T, K, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [_, py, pz] = self.geometry.sites();
        let rows = self.vectors[0].as_slice().len() / (3 * pz);
        let mut own = [[T::ZERO; VALUES + LANES]; V];
        for row in 0..rows {
            for k in (0..pz).step_by(SIZE) {
                let values = 3 * (row * pz + k)..3 * (row * pz + pz.min(k + SIZE));
                let len = values.len();
                for (own, all) in own.iter_mut().zip(self.vectors.iter()) {
                    own[..len].copy_from_slice(&all.as_slice()[values.clone()]);
                    own[len..].fill(T::ZERO);
                }
                let site = self.first + row;
                self.batch.locate_row(self.geometry, &own[0][..len], [site / py, site % py, k]);
                self.batch.wrap(self.geometry);
                self.kernel.run(self.batch, &mut own, self.totals);
                for (own, all) in own.iter().zip(self.vectors.iter_mut()) {
                    if let Vector::Moved(all) = all {
                        all[values.clone()].copy_from_slice(&own[..len]);
                    }
                }
            }
        }
    }
}
