//! Cloud-in-cell read.

use super::batch::{Batch, SIZE};
use super::geometry::Geometry;
use super::real::Real;
use super::weights::{self, Factor, Mask, VALUE};
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Reads the fields at the particles: `out[p, k, f] = sum_c fields[f, c] W_k(x_p - c)`, overwriting `out`.
///
/// A particle that is not finite or out of reach reads NaN.
///
/// # Panics
/// If the lengths don't fit.
pub fn read<T: Real>(
    geometry: &Geometry<T>,
    masks: &[Mask],
    disp: &[T],
    fields: &[T],
    out: &mut [T],
    pool: &dyn Parallel,
) {
    let count = fields.len() / geometry.volume();
    let stride = masks.len() * count;
    assert_eq!(disp.len(), 3 * geometry.particles(), "three displacements a particle");
    assert_eq!(fields.len(), count * geometry.volume(), "whole fields");
    assert_eq!(out.len(), stride * geometry.particles(), "one value a particle, mask and field");
    if out.is_empty() {
        return;
    }
    let [_, py, pz] = geometry.sites();
    let factors = if masks == [VALUE] { Vec::new() } else { masks.iter().map(|&m| weights::factors(m)).collect() };
    let reader = Reader { geometry, fields: fields.chunks_exact(geometry.volume()).collect(), factors, stride };
    // About 64 KiB of displacements at a time, in whole rows.
    let rows = (5400 / pz).max(1);
    let parts: Vec<_> = out.chunks_mut(rows * pz * stride).map(Mutex::new).collect();
    pool.run(parts.len(), &|mine| {
        let mut batch = Batch::new();
        for part in mine {
            let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            for (n, out) in out.chunks_mut(pz * stride).enumerate() {
                let row = part * rows + n;
                let disp = &disp[3 * row * pz..3 * (row + 1) * pz];
                reader.row(&mut batch, [row / py, row % py], disp, out);
            }
        }
    });
}

struct Reader<'a, T> {
    geometry: &'a Geometry<T>,
    fields: Vec<&'a [T]>,
    /// Of each k; empty if there is one k and its mask is that of the value.
    factors: Vec<[Factor<T>; 3]>,
    stride: usize,
}

impl<T: Real> Reader<'_, T> {
    fn row(&self, batch: &mut Batch<T>, [i, j]: [usize; 2], disp: &[T], out: &mut [T]) {
        let pieces = disp.chunks(3 * SIZE).zip(out.chunks_mut(SIZE * self.stride));
        for (n, (disp, out)) in pieces.enumerate() {
            batch.locate_row(self.geometry, disp, [i, j, n * SIZE]);
            let corners = Corners::new(self.geometry, batch);
            let mut field = 0;
            while field < self.fields.len() {
                field += if self.fields.len() - field >= 3 {
                    self.batch::<3>(batch, &corners, field, out)
                } else {
                    self.batch::<1>(batch, &corners, field, out)
                };
            }
        }
    }

    /// Reads `F` fields from `field` on.
    #[inline(always)]
    fn batch<const F: usize>(&self, batch: &Batch<T>, corners: &Corners, field: usize, out: &mut [T]) -> usize {
        let fields: [&[T]; F] = core::array::from_fn(|f| self.fields[field + f]);
        for (n, out) in out.chunks_exact_mut(self.stride).enumerate() {
            if batch.bad[n] != 0 {
                out.fill(T::NAN);
                continue;
            }
            let t = batch.offset.each_ref().map(|offset| offset[n]);
            let around: [[T; 8]; F] = fields.map(|field| core::array::from_fn(|c| field[corners.index(n, c)]));
            if self.factors.is_empty() {
                let weight = weights::value(t);
                for (out, around) in out[field..].iter_mut().zip(&around) {
                    *out = dot(&weight, around);
                }
            }
            for (factors, out) in self.factors.iter().zip(out.chunks_exact_mut(self.fields.len())) {
                let weight = weights::masked(t, factors);
                for (out, around) in out[field..].iter_mut().zip(&around) {
                    *out = dot(&weight, around);
                }
            }
        }
        F
    }
}

/// The sum in pairs: short chains of additions.
#[inline(always)]
fn dot<T: Real>(a: &[T; 8], b: &[T; 8]) -> T {
    let p: [T; 8] = core::array::from_fn(|i| a[i] * b[i]);
    ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
}

/// Where the corners lie in the mesh: by pair of x and y, then the z of lower and upper.
struct Corners {
    row: [[u32; SIZE]; 4],
    z: [[u32; SIZE]; 2],
}

impl Corners {
    #[inline(always)]
    fn new<T: Real>(geometry: &Geometry<T>, batch: &Batch<T>) -> Self {
        let [x, y, z] = &geometry.axes;
        let mut corners = Self { row: [[0; SIZE]; 4], z: [[0; SIZE]; 2] };
        let (plane, row) = (y.cells as u32 * z.cells as u32, z.cells as u32);
        for n in 0..SIZE {
            let along_x = x.pair(batch.cell[0][n], plane);
            let along_y = y.pair(batch.cell[1][n], row);
            let along_z = z.pair(batch.cell[2][n], 1);
            for (c, rows) in corners.row.iter_mut().enumerate() {
                rows[n] = along_x[c >> 1] + along_y[c & 1];
            }
            [corners.z[0][n], corners.z[1][n]] = along_z;
        }
        corners
    }

    #[inline(always)]
    fn index(&self, n: usize, corner: usize) -> usize {
        (self.row[corner >> 1][n] + self.z[corner & 1][n]) as usize
    }
}
