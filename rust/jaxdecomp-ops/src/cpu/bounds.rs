//! Which x-planes of the mesh the particles of a lattice row can touch.

use super::batch::SIZE;
use super::geometry::{Axis, Geometry};
use super::real::Real;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// An interval of planes: wrapped first plane, and how many follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    first: i32,
    more: i32,
}

impl Span {
    const NOWHERE: Self = Self { first: i32::MAX, more: i32::MIN };

    /// Whether it meets the planes of a block, of a mesh of so many `cells`.
    #[inline(always)]
    pub(crate) fn meets(self, block: &Range<i32>, cells: i32) -> bool {
        let ahead = self.ahead(block, cells);
        ahead < block.end - block.start || ahead + self.more >= cells
    }

    /// Whether it lies in the block.
    #[inline(always)]
    pub(crate) fn within(self, block: &Range<i32>, cells: i32) -> bool {
        self.ahead(block, cells) + self.more < block.end - block.start
    }

    /// First plane, counted from the block's first.
    #[inline(always)]
    fn ahead(self, block: &Range<i32>, cells: i32) -> i32 {
        let ahead = self.first - block.start;
        if ahead < 0 { ahead + cells } else { ahead }
    }
}

/// Spans of all particles.
pub(crate) struct Bounds {
    /// Of each lattice plane.
    pub(crate) planes: Vec<Span>,
    /// Of each piece of at most [`SIZE`] particles of a lattice row.
    pub(crate) pieces: Vec<Span>,
    /// Sum of `more` over the pieces.
    pub(crate) total: u64,
}

/// Pieces of a lattice row.
pub(crate) fn pieces_per_row<T: Real>(geometry: &Geometry<T>) -> usize {
    geometry.sites()[2].div_ceil(SIZE)
}

impl Bounds {
    /// Measures the particles; None if any of them is not finite or out of reach.
    pub(crate) fn measure<T: Real>(geometry: &Geometry<T>, disp: &[T], pool: &dyn Parallel) -> Option<Self> {
        let [px, py, pz] = geometry.sites();
        let per_plane = py * pieces_per_row(geometry);
        let mut planes = vec![Span::NOWHERE; px];
        let mut pieces = vec![Span::NOWHERE; px * per_plane];
        let good = AtomicBool::new(true);
        let total = AtomicU64::new(0);
        let tasks: Vec<_> = planes.iter_mut().zip(pieces.chunks_mut(per_plane)).map(Mutex::new).collect();
        pool.run(px, &|mine| {
            for i in mine.take_while(|_| good.load(Relaxed)) {
                let mut task = tasks[i].lock().unwrap_or_else(PoisonError::into_inner);
                let (plane, pieces) = &mut *task;
                let disp = &disp[3 * i * py * pz..3 * (i + 1) * py * pz];
                match measure_plane(geometry, disp, i, pieces) {
                    Some((span, sum)) => {
                        **plane = span;
                        total.fetch_add(sum, Relaxed);
                    }
                    None => good.store(false, Relaxed),
                }
            }
        });
        drop(tasks);
        good.into_inner().then_some(Self { planes, pieces, total: total.into_inner() })
    }
}

fn measure_plane<T: Real>(geometry: &Geometry<T>, disp: &[T], i: usize, pieces: &mut [Span]) -> Option<(Span, u64)> {
    let [x, y, z] = &geometry.axes;
    let per_row = pieces_per_row(geometry);
    let (mut low, mut high, mut sum) = (i32::MAX, i32::MIN, 0);
    for (j, (row, pieces)) in disp.chunks(3 * z.base.len()).zip(pieces.chunks_mut(per_row)).enumerate() {
        for (n, (piece, span)) in row.chunks(3 * SIZE).zip(pieces).enumerate() {
            let z_sites = n * SIZE..n * SIZE + piece.len() / 3;
            let (first, last) = measure_piece(geometry, piece, [i, j], z_sites)?;
            *span = wrapped(x, first, last);
            sum += span.more as u64;
            (low, high) = (low.min(first), high.max(last));
        }
    }
    debug_assert_eq!(y.base.len() * per_row, pieces.len());
    Some((wrapped(x, low, high), sum))
}

/// Lowest and highest plane touched, or None if a particle is no good.
#[inline(always)]
fn measure_piece<T: Real>(
    geometry: &Geometry<T>,
    disp: &[T],
    [i, j]: [usize; 2],
    k: Range<usize>,
) -> Option<(i32, i32)> {
    let [x, y, z] = &geometry.axes;
    let (z_base, z_frac) = (&z.base[k.clone()], &z.frac[k]);
    let (mut good, mut low, mut high) = (true, i32::MAX, i32::MIN);
    for ((disp, &base), &frac) in disp.chunks_exact(3).zip(z_base).zip(z_frac) {
        let place = x.place(disp[0], x.base[i], x.frac[i]);
        good &= place.good & y.place(disp[1], y.base[j], y.frac[j]).good & z.place(disp[2], base, frac).good;
        (low, high) = (low.min(place.cell), high.max(place.cell));
    }
    good.then_some((low, high + 1))
}

fn wrapped<T>(x: &Axis<T>, low: i32, high: i32) -> Span {
    Span { first: low.rem_euclid(x.cells), more: (high - low).min(x.cells - 1) }
}
