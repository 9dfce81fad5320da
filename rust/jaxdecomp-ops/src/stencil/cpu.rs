//! Gradient and its transpose on the CPU, row by row along z.

use super::Mesh;
use crate::cic::Real;
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Values of a chunk of tasks, about 64 KiB.
const CHUNK: usize = 1 << 14;

/// Weights of the differences over one and over two cells along each axis.
#[derive(Clone, Copy)]
struct Weights<T> {
    near: [T; 3],
    far: [T; 3],
}

impl<T: Real> Weights<T> {
    fn new(mesh: &Mesh) -> Self {
        Self { near: mesh.near.map(T::from_f64), far: mesh.far.map(T::from_f64) }
    }

    /// Central difference along an axis of values two and one cells below and one and two above.
    #[inline(always)]
    fn difference(&self, axis: usize, [a, b, c, d]: [T; 4]) -> T {
        (c - b) * self.near[axis] + (d - a) * self.far[axis]
    }
}

/// Cells of the field from which differences along an axis are taken at an inner cell: two and one below, one and two above.
fn around(mesh: &Mesh, axis: usize, cell: usize) -> [usize; 4] {
    let cells = mesh.outer[axis] as usize;
    if mesh.periodic[axis] == 0 {
        return [cell, cell + 1, cell + 3, cell + 4];
    }
    [2 * cells - 2, 2 * cells - 1, 1, 2].map(|offset| (cell + offset) % cells)
}

/// Gradient of a field: three values for each inner cell.
///
/// # Panics
/// If the lengths are inconsistent.
pub(crate) fn gradient<T: Real>(mesh: &Mesh, field: &[T], out: &mut [T], pool: &dyn Parallel) {
    let [[_, ny, nz], [_, oy, oz]] = extents(mesh);
    assert_eq!((field.len(), out.len()), (mesh.cells(mesh.outer), 3 * mesh.cells(mesh.inner)), "whole fields");
    let weights = Weights::new(mesh);
    let pad: [usize; 3] = core::array::from_fn(|axis| if mesh.periodic[axis] == 0 { 2 } else { 0 });
    let row = |x: usize, y: usize| &field[(x * oy + y) * oz..][..oz];
    let along_z = (0..nz).map(|z| around(mesh, 2, z)).collect::<Vec<_>>();
    let rows = (CHUNK / nz).max(1);
    let parts: Vec<_> = out.chunks_mut(3 * nz * rows).map(Mutex::new).collect();
    pool.run(parts.len(), &|mine| {
        let mut sums = vec![T::ZERO; 3 * nz];
        for part in mine {
            let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            for (n, out) in out.chunks_exact_mut(3 * nz).enumerate() {
                let (x, y) = ((part * rows + n) / ny, (part * rows + n) % ny);
                let along_x = around(mesh, 0, x).map(|x| &row(x, y + pad[1])[pad[2]..][..nz]);
                let along_y = around(mesh, 1, y).map(|y| &row(x + pad[0], y)[pad[2]..][..nz]);
                let own = row(x + pad[0], y + pad[1]);
                let (of_x, rest) = sums.split_at_mut(nz);
                let (of_y, of_z) = rest.split_at_mut(nz);
                across(&weights, 0, along_x, of_x);
                across(&weights, 1, along_y, of_y);
                along(&weights, own, &along_z, pad[2], of_z);
                for (out, ((&x, &y), &z)) in out.chunks_exact_mut(3).zip(of_x.iter().zip(&*of_y).zip(&*of_z)) {
                    out.copy_from_slice(&[x, y, z]);
                }
            }
        }
    });
}

/// Differences across rows.
#[inline(always)]
fn across<T: Real>(weights: &Weights<T>, axis: usize, [a, b, c, d]: [&[T]; 4], out: &mut [T]) {
    let len = out.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    for z in 0..len {
        out[z] = weights.difference(axis, [a[z], b[z], c[z], d[z]]);
    }
}

/// Differences along a row.
#[inline(always)]
fn along<T: Real>(weights: &Weights<T>, row: &[T], around: &[[usize; 4]], pad: usize, out: &mut [T]) {
    let len = out.len();
    let edge = 2.min(len);
    // The first and last two cells may wrap around.
    for z in (0..edge).chain(len.saturating_sub(2).max(edge)..len) {
        out[z] = weights.difference(2, around[z].map(|z| row[z]));
    }
    if len > 4 {
        let row = &row[pad..][..len];
        let inner = &mut out[2..len - 2];
        across(weights, 2, [row, &row[1..], &row[3..], &row[4..]], inner);
    }
}

/// Transpose of the gradient.
///
/// # Panics
/// If the lengths are inconsistent.
pub(crate) fn divergence<T: Real>(mesh: &Mesh, fields: &[T], out: &mut [T], pool: &dyn Parallel) {
    let [[_, ny, nz], [_, oy, oz]] = extents(mesh);
    assert_eq!((out.len(), fields.len()), (mesh.cells(mesh.outer), 3 * mesh.cells(mesh.inner)), "whole fields");
    let weights = Weights::new(mesh);
    let rows = (CHUNK / oz).max(1);
    let parts: Vec<_> = out.chunks_mut(oz * rows).map(Mutex::new).collect();
    pool.run(parts.len(), &|mine| {
        let mut sums = vec![T::ZERO; oz];
        for part in mine {
            let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            for (n, out) in out.chunks_exact_mut(oz).enumerate() {
                let (x, y) = ((part * rows + n) / oy, (part * rows + n) % oy);
                let row = |x: Option<usize>, y: Option<usize>| Some(&fields[(x? * ny + y?) * nz * 3..][..3 * nz]);
                let (own_x, own_y) = (inner(mesh, 0, x), inner(mesh, 1, y));
                sums.fill(T::ZERO);
                let pad = if mesh.periodic[2] == 0 { 2 } else { 0 };
                let inside = &mut sums[pad..][..nz];
                add(&weights, 0, touching(mesh, 0, x).map(|x| row(x, own_y)), inside);
                add(&weights, 1, touching(mesh, 1, y).map(|y| row(own_x, y)), inside);
                if let Some(row) = row(own_x, own_y) {
                    add_along::<T, 3>(mesh, &weights, row, 2, &mut sums);
                }
                out.copy_from_slice(&sums);
            }
        }
    });
}

/// [`divergence`] of three fields one after the other.
///
/// # Panics
/// If the lengths are inconsistent.
pub(crate) fn divergence_of_planes<T: Real>(mesh: &Mesh, fields: &[T], out: &mut [T], pool: &dyn Parallel) {
    let [[_, ny, nz], [_, oy, oz]] = extents(mesh);
    let volume = mesh.cells(mesh.inner);
    assert_eq!((out.len(), fields.len()), (mesh.cells(mesh.outer), 3 * volume), "whole fields");
    let weights = Weights::new(mesh);
    let pad = if mesh.periodic[2] == 0 { 2 } else { 0 };
    let rows = (CHUNK / oz).max(1);
    let parts: Vec<_> = out.chunks_mut(oz * rows).map(Mutex::new).collect();
    pool.run(parts.len(), &|mine| {
        for part in mine {
            let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            for (n, out) in out.chunks_exact_mut(oz).enumerate() {
                let (x, y) = ((part * rows + n) / oy, (part * rows + n) % oy);
                let row = |axis: usize, x: Option<usize>, y: Option<usize>| {
                    Some(&fields[axis * volume + (x? * ny + y?) * nz..][..nz])
                };
                let (own_x, own_y) = (inner(mesh, 0, x), inner(mesh, 1, y));
                out.fill(T::ZERO);
                let inside = &mut out[pad..][..nz];
                add_rows(&weights, 0, touching(mesh, 0, x).map(|x| row(0, x, own_y)), inside);
                add_rows(&weights, 1, touching(mesh, 1, y).map(|y| row(1, own_x, y)), inside);
                if let Some(row) = row(2, own_x, own_y) {
                    add_along::<T, 1>(mesh, &weights, row, 0, out);
                }
            }
        }
    });
}

/// The inner cell of a cell of the field, if it has one.
fn inner(mesh: &Mesh, axis: usize, cell: usize) -> Option<usize> {
    if mesh.periodic[axis] != 0 {
        return Some(cell);
    }
    cell.checked_sub(2).filter(|&cell| cell < mesh.inner[axis] as usize)
}

/// Inner cells whose differences along an axis look at a cell of the field: two and one below, one and two above.
fn touching(mesh: &Mesh, axis: usize, cell: usize) -> [Option<usize>; 4] {
    let cells = mesh.inner[axis] as usize;
    if mesh.periodic[axis] != 0 {
        return [2 * cells - 2, 2 * cells - 1, 1, 2].map(|offset| Some((cell + offset) % cells));
    }
    [4, 3, 1, 0].map(|below| cell.checked_sub(below).filter(|&cell| cell < cells))
}

/// Adds minus the differences across rows of one component.
#[inline(always)]
fn add<T: Real>(weights: &Weights<T>, axis: usize, rows: [Option<&[T]>; 4], sums: &mut [T]) {
    let signed = [weights.far[axis], weights.near[axis], T::ZERO - weights.near[axis], T::ZERO - weights.far[axis]];
    if let [Some(a), Some(b), Some(c), Some(d)] = rows {
        let rows = a.chunks_exact(3).zip(b.chunks_exact(3)).zip(c.chunks_exact(3).zip(d.chunks_exact(3)));
        for (sum, ((a, b), (c, d))) in sums.iter_mut().zip(rows) {
            *sum = *sum - weights.difference(axis, [a[axis], b[axis], c[axis], d[axis]]);
        }
        return;
    }
    for (row, weight) in rows.into_iter().zip(signed) {
        for (sum, values) in sums.iter_mut().zip(row.unwrap_or_default().chunks_exact(3)) {
            *sum = *sum + values[axis] * weight;
        }
    }
}

/// Adds minus the differences across rows of one field.
#[inline(always)]
fn add_rows<T: Real>(weights: &Weights<T>, axis: usize, rows: [Option<&[T]>; 4], sums: &mut [T]) {
    let len = sums.len();
    if let [Some(a), Some(b), Some(c), Some(d)] = rows {
        let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
        for z in 0..len {
            sums[z] = sums[z] - weights.difference(axis, [a[z], b[z], c[z], d[z]]);
        }
        return;
    }
    let signed = [weights.far[axis], weights.near[axis], T::ZERO - weights.near[axis], T::ZERO - weights.far[axis]];
    for (row, weight) in rows.into_iter().zip(signed) {
        for (sum, &value) in sums.iter_mut().zip(row.unwrap_or_default()) {
            *sum = *sum + value * weight;
        }
    }
}

/// Adds minus the differences along a row of cells with `F` values, of which one counts.
#[inline(always)]
fn add_along<T: Real, const F: usize>(mesh: &Mesh, weights: &Weights<T>, row: &[T], own: usize, sums: &mut [T]) {
    let (cells, len) = (sums.len(), row.len() / F);
    let value = |z: Option<usize>| z.map_or(T::ZERO, |z| row[F * z + own]);
    let edge = 4.min(cells);
    for z in (0..edge).chain(cells.saturating_sub(4).max(edge)..cells) {
        sums[z] = sums[z] - weights.difference(2, touching(mesh, 2, z).map(value));
    }
    // Cells far from the edges: all differences that look at them exist.
    let shift = if mesh.periodic[2] == 0 { 4 } else { 2 };
    debug_assert!(cells <= 8 || len + 8 > cells);
    let far = edge..cells.saturating_sub(4).max(edge);
    if far.is_empty() {
        return;
    }
    if F == 1 {
        let (row, inner) = (&row[far.start - shift..], &mut sums[far]);
        let len = inner.len();
        let (a, b, c, d) = (&row[..len], &row[1..][..len], &row[3..][..len], &row[4..][..len]);
        for z in 0..len {
            inner[z] = inner[z] - weights.difference(2, [a[z], b[z], c[z], d[z]]);
        }
        return;
    }
    for z in far {
        let first = z - shift;
        let at = |offset: usize| row[F * (first + offset) + own];
        sums[z] = sums[z] - weights.difference(2, [at(0), at(1), at(3), at(4)]);
    }
}

/// Inner and outer extents.
fn extents(mesh: &Mesh) -> [[usize; 3]; 2] {
    [mesh.inner, mesh.outer].map(|extents| extents.map(|n| n as usize))
}
