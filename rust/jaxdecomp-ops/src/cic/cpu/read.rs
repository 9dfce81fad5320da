//! Cloud-in-cell read.

use super::batch::{Batch, SIZE};
use super::lanes::{Lanes, Packed};
use super::simd::{Work, widest};
use super::weights::{self, Factor, ThreeFactors};
use crate::cic::geometry::{Geometry, pair};
use crate::cic::masks::{Mask, VALUE};
use crate::cic::real::Real;
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Values that a read returns for each particle, where value (k, f) is `sum_c fields[c, f] W_k(x_p - c)`.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a, T> {
    /// All values (k, f).
    All,
    /// Sums over k of the values times the particle's weights of shape (k), for each f.
    OverMasks(&'a [T]),
    /// Sums over f of the values times the particle's weights of shape (f), for each k.
    OverFields(&'a [T]),
}

impl<T: Real> Values<'_, T> {
    fn weight(&self) -> &[T] {
        match self {
            Self::All => &[],
            Self::OverMasks(weight) | Self::OverFields(weight) => weight,
        }
    }

    /// Numbers of weights and of results for each particle.
    fn counts(&self, masks: usize, fields: usize) -> [usize; 2] {
        match self {
            Self::All => [0, masks * fields],
            Self::OverMasks(_) => [masks, fields],
            Self::OverFields(_) => [fields, masks],
        }
    }
}

/// Reads the fields at the particles, overwriting `out`. Results of invalid positions are NaN.
///
/// # Panics
/// If the lengths are inconsistent.
pub fn read<T: Packed>(
    geometry: &Geometry<T>,
    masks: &[Mask],
    disp: &[T],
    fields: &[T],
    values: Values<'_, T>,
    out: &mut [T],
    pool: &dyn Parallel,
) {
    let count = fields.len() / geometry.volume();
    let [weights, stride] = values.counts(masks.len(), count);
    assert_eq!(disp.len(), 3 * geometry.particles(), "three displacements a particle");
    assert_eq!(fields.len(), count * geometry.volume(), "whole fields");
    assert_eq!(out.len(), stride * geometry.particles(), "the values of all particles");
    assert_eq!(values.weight().len(), weights * geometry.particles(), "the weights of all particles");
    if out.is_empty() {
        return;
    }
    let [_, _, pz] = geometry.sites();
    let factors = if masks == [VALUE] { Vec::new() } else { masks.iter().map(|&m| weights::factors(m)).collect() };
    let three = factors.first_chunk().filter(|_| factors.len() == 3).map(weights::three_factors);
    let reader = Reader { geometry, fields, count, factors, three, values, weights, stride };
    // About 64 KiB of displacements at a time, in whole rows.
    let rows = (5400 / pz).max(1);
    let parts: Vec<_> = out.chunks_mut(rows * pz * stride).map(Mutex::new).collect();
    pool.run(parts.len(), &|mine| {
        let mut batch = Batch::new();
        for part in mine {
            let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            widest(Rows { reader: &reader, batch: &mut batch, disp, first: part * rows, out: &mut out });
        }
    });
}

/// Consecutive rows of the lattice: the work of one task.
struct Rows<'a, T: Packed> {
    reader: &'a Reader<'a, T>,
    batch: &'a mut Batch<T>,
    /// Displacements of all particles.
    disp: &'a [T],
    /// Index of the first row.
    first: usize,
    /// Results of these rows.
    out: &'a mut [T],
}

impl<T: Packed> Work for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let reader = self.reader;
        let [_, py, pz] = reader.geometry.sites();
        for (row, out) in (self.first..).zip(self.out.chunks_mut(pz * reader.stride)) {
            for (n, out) in out.chunks_mut(SIZE * reader.stride).enumerate() {
                let k = n * SIZE;
                let (first, len) = (row * pz + k, out.len() / reader.stride);
                self.batch.locate_row(
                    reader.geometry,
                    &self.disp[3 * first..3 * (first + len)],
                    [row / py, row % py, k],
                );
                self.batch.wrap(reader.geometry);
                reader.batch(self.batch, first, out);
            }
        }
    }
}

struct Reader<'a, T: Packed> {
    geometry: &'a Geometry<T>,
    /// Shape (cell, field), with `count` fields.
    fields: &'a [T],
    count: usize,
    /// Coefficients of each mask; empty if the only mask is the value's.
    factors: Vec<[Factor<T>; 3]>,
    /// Coefficients in vector form if there are three masks.
    three: Option<[ThreeFactors<T::Three>; 3]>,
    values: Values<'a, T>,
    /// Numbers of weights and results of a particle.
    weights: usize,
    stride: usize,
}

impl<T: Packed> Reader<'_, T> {
    /// Reads at a batch of particles; `first` is the site number of the first particle.
    #[inline(always)]
    fn batch(&self, batch: &Batch<T>, first: usize, out: &mut [T]) {
        let corners = Corners::new(self.geometry, batch);
        let mut field = 0;
        while self.count - field >= 3 {
            // Three adjacent fields (a vector) at once.
            self.fields::<T::Three>(batch, first, &corners, field, out);
            field += 3;
        }
        for field in field..self.count {
            self.fields::<[T; 1]>(batch, first, &corners, field, out);
        }
    }

    /// Reads a vector of fields. There is a loop for each kind of result: a branch inside the loop
    /// costs as much as the sums.
    #[inline(always)]
    fn fields<V: Lanes<T>>(&self, batch: &Batch<T>, first: usize, corners: &Corners, field: usize, out: &mut [T]) {
        // A macro, since a function with a closure would not be compiled for AVX2.
        macro_rules! for_each {
            (|$t:ident, $around:ident, $own:ident, $out:ident| $body:block) => {
                for (n, $out) in out.chunks_exact_mut(self.stride).enumerate() {
                    if batch.invalid[n] != 0 {
                        $out.fill(T::NAN);
                        continue;
                    }
                    let $t = [batch.offset[0][n], batch.offset[1][n], batch.offset[2][n]];
                    let $around = corners.around::<T, V>(n, self.fields, self.count, field);
                    let $own = (first + n) * self.weights..(first + n + 1) * self.weights;
                    $body
                }
            };
        }
        match (self.values, &self.three) {
            (Values::All, Some(three)) if self.count == 1 => for_each!(|t, around, _own, out| {
                let mut corners = [T::Three::splat(T::ZERO); 8];
                for c in 0..8 {
                    corners[c] = T::Three::splat(around[c].first());
                }
                interpolate(&corners, &weights::three_pairs(t, three)).store(out);
            }),
            (Values::OverFields(weight), Some(three)) => for_each!(|t, around, own, out| {
                let own = V::load(&weight[own.start + field..]);
                let mut corners = [T::Three::splat(T::ZERO); 8];
                for c in 0..8 {
                    corners[c] = T::Three::splat(around[c].dot(own));
                }
                let sums = interpolate(&corners, &weights::three_pairs(t, three));
                (if field == 0 { sums } else { T::Three::load(out).plus(sums) }).store(out);
            }),
            (Values::All, _) if self.factors.is_empty() => for_each!(|t, around, _own, out| {
                interpolate(&around, &weights::splat(weights::pairs(t))).store(&mut out[field..]);
            }),
            (Values::All, _) => for_each!(|t, around, _own, out| {
                for (factors, out) in self.factors.iter().zip(out.chunks_exact_mut(self.count)) {
                    interpolate(&around, &weights::splat(weights::masked_pairs(t, factors))).store(&mut out[field..]);
                }
            }),
            (Values::OverMasks(weight), _) => for_each!(|t, around, own, out| {
                let mut total = V::splat(T::ZERO);
                for (k, &w) in weight[own].iter().enumerate() {
                    total = total.plus(interpolate(&around, &self.pairs(t, k)).scale(V::splat(w)));
                }
                total.store(&mut out[field..]);
            }),
            (Values::OverFields(weight), None) => for_each!(|t, around, own, out| {
                let own = V::load(&weight[own.start + field..]);
                for (k, out) in out.iter_mut().enumerate() {
                    let sum = interpolate(&around, &self.pairs(t, k)).dot(own);
                    *out = if field == 0 { sum } else { *out + sum };
                }
            }),
        }
    }

    /// Weights of mask k on the lower and upper cell along each axis.
    #[inline(always)]
    fn pairs<V: Lanes<T>>(&self, t: [T; 3], k: usize) -> [[V; 2]; 3] {
        let factors = self.factors.get(k);
        weights::splat(factors.map_or_else(|| weights::pairs(t), |factors| weights::masked_pairs(t, factors)))
    }
}

/// Interpolates between the corners, axis by axis.
#[inline(always)]
pub(super) fn interpolate<T: Real, V: Lanes<T>>(around: &[V; 8], [x, y, z]: &[[V; 2]; 3]) -> V {
    let [low, high] = [[around[0], around[1], around[2], around[3]], [around[4], around[5], around[6], around[7]]];
    between(plane(low, y, z), plane(high, y, z), x)
}

#[inline(always)]
fn plane<T: Real, V: Lanes<T>>(around: [V; 4], y: &[V; 2], z: &[V; 2]) -> V {
    between(between(around[0], around[1], z), between(around[2], around[3], z), y)
}

#[inline(always)]
fn between<T: Real, V: Lanes<T>>(low: V, high: V, weights: &[V; 2]) -> V {
    low.scale(weights[0]).plus(high.scale(weights[1]))
}

/// Offsets of the corners in the mesh: rows for each pair of x and y, cells in the row for lower and upper z.
pub(super) struct Corners {
    row: [[u32; SIZE]; 4],
    z: [[u32; SIZE]; 2],
    /// Whether none is in the last row of the mesh, so that a cell follows each of them.
    inside: bool,
}

impl Corners {
    #[inline(always)]
    pub(super) fn new<T: Real>(geometry: &Geometry<T>, batch: &Batch<T>) -> Self {
        let mut corners = Self { row: [[0; SIZE]; 4], z: [[0; SIZE]; 2], inside: false };
        let [mx, my, mz] = geometry.axes.each_ref().map(|axis| axis.mesh.cells); // local, so that loops keep it in registers
        let (plane, row) = (my as u32 * mz as u32, mz as u32);
        let (last, mut at_end) = (mx as u32 * plane - row, 0);
        for n in 0..SIZE {
            let [x0, x1] = pair(batch.cell[0][n], mx, plane);
            let [y0, y1] = pair(batch.cell[1][n], my, row);
            for (c, start) in [x0 + y0, x0 + y1, x1 + y0, x1 + y1].into_iter().enumerate() {
                corners.row[c][n] = start;
                at_end |= u32::from(start == last);
            }
            [corners.z[0][n], corners.z[1][n]] = pair(batch.cell[2][n], mz, 1);
        }
        corners.inside = at_end == 0;
        corners
    }

    /// Cell of a corner (x y z, z fastest) of a particle.
    #[inline(always)]
    pub(super) fn index(&self, n: usize, corner: usize) -> usize {
        (self.row[corner >> 1][n] + self.z[corner & 1][n]) as usize
    }

    /// Fields from `field` onwards on the corners of a particle; each cell has `count` of them.
    #[inline(always)]
    pub(super) fn around<T: Real, V: Lanes<T>>(&self, n: usize, fields: &[T], count: usize, field: usize) -> [V; 8] {
        let mut around = [V::splat(T::ZERO); 8];
        if self.inside {
            for c in 0..8 {
                debug_assert!((self.index(n, c) + 1) * count < fields.len());
                // SAFETY: `Batch` wraps every cell into the mesh, which has a further cell after this one: there are at
                // least as many values as the fields from `field` on and one more. Checks would be slow.
                around[c] = unsafe { V::load_at(fields, self.index(n, c) * count + field) };
            }
        } else {
            for c in 0..8 {
                around[c] = V::load(&fields[self.index(n, c) * count + field..]);
            }
        }
        around
    }
}
