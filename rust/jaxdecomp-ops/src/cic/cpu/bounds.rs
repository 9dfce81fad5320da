//! Intervals of x-planes that the particles of a lattice row touch.

use super::batch::{Batch, SIZE};
use super::simd::{Work, widest};
use crate::cic::geometry::{Axis, Geometry};
use crate::cic::real::Real;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// An interval of planes: wrapped first plane and number of further planes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    first: i32,
    more: i32,
}

impl Span {
    const EMPTY: Self = Self { first: i32::MAX, more: i32::MIN };

    /// Whether the interval intersects a block of planes, in a mesh of `cells` planes.
    #[inline(always)]
    pub(crate) fn intersects(self, block: &Range<i32>, cells: i32) -> bool {
        let ahead = self.ahead(block, cells);
        ahead < block.end - block.start || ahead + self.more >= cells
    }

    /// Whether the interval lies inside the block.
    #[inline(always)]
    pub(crate) fn within(self, block: &Range<i32>, cells: i32) -> bool {
        self.ahead(block, cells) + self.more < block.end - block.start
    }

    /// First plane relative to the first plane of the block.
    #[inline(always)]
    fn ahead(self, block: &Range<i32>, cells: i32) -> i32 {
        let ahead = self.first - block.start;
        if ahead < 0 { ahead + cells } else { ahead }
    }
}

/// Intervals of all particles.
pub(crate) struct Bounds {
    /// One for each lattice plane.
    pub(crate) planes: Vec<Span>,
    /// One for each piece of at most [`SIZE`] particles of a lattice row.
    pub(crate) pieces: Vec<Span>,
    /// Sum of `more` over the pieces.
    pub(crate) total: u64,
}

/// Number of pieces of a lattice row.
pub(crate) fn pieces_per_row<T: Real>(geometry: &Geometry<T>) -> usize {
    geometry.sites()[2].div_ceil(SIZE)
}

impl Bounds {
    /// Measures the particles; None if any position is invalid.
    pub(crate) fn measure<T: Real>(geometry: &Geometry<T>, disp: &[T], pool: &dyn Parallel) -> Option<Self> {
        let [px, py, pz] = geometry.sites();
        let per_plane = py * pieces_per_row(geometry);
        let mut planes = vec![Span::EMPTY; px];
        let mut pieces = vec![Span::EMPTY; px * per_plane];
        let valid = AtomicBool::new(true);
        let total = AtomicU64::new(0);
        let tasks: Vec<_> = planes.iter_mut().zip(pieces.chunks_mut(per_plane)).map(Mutex::new).collect();
        pool.run(px, &|mine| {
            let mut batch = Batch::new();
            for i in mine.take_while(|_| valid.load(Relaxed)) {
                let mut task = tasks[i].lock().unwrap_or_else(PoisonError::into_inner);
                let (plane, pieces) = &mut *task;
                let disp = &disp[3 * i * py * pz..3 * (i + 1) * py * pz];
                match widest(Plane { geometry, disp, i, pieces, batch: &mut batch }) {
                    Some((span, sum)) => {
                        **plane = span;
                        total.fetch_add(sum, Relaxed);
                    }
                    None => valid.store(false, Relaxed),
                }
            }
        });
        drop(tasks);
        valid.into_inner().then_some(Self { planes, pieces, total: total.into_inner() })
    }
}

/// One plane of the lattice.
struct Plane<'a, T> {
    geometry: &'a Geometry<T>,
    disp: &'a [T],
    i: usize,
    pieces: &'a mut [Span],
    batch: &'a mut Batch<T>,
}

impl<T: Real> Work for Plane<'_, T> {
    type Output = Option<(Span, u64)>;

    /// Measures the pieces; returns the interval of all and the sum of `more`.
    #[inline(always)]
    fn run(self) -> Self::Output {
        let [x, y, z] = &self.geometry.axes;
        let per_row = pieces_per_row(self.geometry);
        debug_assert_eq!(y.base.len() * per_row, self.pieces.len());
        let (mut low, mut high, mut sum) = (i32::MAX, i32::MIN, 0);
        let rows = self.disp.chunks(3 * z.base.len()).zip(self.pieces.chunks_mut(per_row));
        for (j, (row, pieces)) in rows.enumerate() {
            for (n, (piece, span)) in row.chunks(3 * SIZE).zip(pieces).enumerate() {
                self.batch.locate_row(self.geometry, piece, [self.i, j, n * SIZE]);
                let (first, last) = planes(self.batch)?;
                *span = wrapped(x, first, last);
                sum += span.more as u64;
                (low, high) = (low.min(first), high.max(last));
            }
        }
        Some((wrapped(x, low, high), sum))
    }
}

/// Lowest and highest plane that a batch touches; None if any position is invalid.
#[inline(always)]
fn planes<T: Real>(batch: &Batch<T>) -> Option<(i32, i32)> {
    let (mut invalid, mut low, mut high) = (0, i32::MAX, i32::MIN);
    for n in 0..batch.len {
        invalid |= batch.invalid[n];
        low = low.min(batch.cell[0][n]);
        high = high.max(batch.cell[0][n]);
    }
    (invalid == 0).then_some((low, high + 1))
}

#[inline(always)]
fn wrapped<T>(x: &Axis<T>, low: i32, high: i32) -> Span {
    Span { first: low.rem_euclid(x.mesh.cells), more: (high - low).min(x.mesh.cells - 1) }
}
