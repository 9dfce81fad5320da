//! A kick and two drifts of all particles, and their undoing with cotangents, each in one pass that reads the mesh.

use super::batch::{Batch, SIZE};
use super::lanes::{Lanes, Packed};
use super::read::{Corners, interpolate};
use super::simd::{Work, widest};
use super::weights;
use crate::cic::geometry::Geometry;
use crate::cic::real::Real;
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Values of a batch of vectors.
const VALUES: usize = 3 * SIZE;
/// Lanes of sums and maxima, so that loops over values vectorise.
const LANES: usize = 8;
/// Vectors of a batch, with room for the fourth lane of the last one.
type Vectors<T> = [T; VALUES + LANES];
/// Sums over all particles, or maxima.
type Totals = [f64; 3];

/// A vector of each particle.
#[derive(Debug)]
pub(crate) enum Vector<'a, T> {
    /// Only looked at.
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

    /// Splits into pieces of a length, the last of which may be shorter.
    fn chunks(self, len: usize) -> Vec<Self> {
        match self {
            Self::Fixed(values) => values.chunks(len).map(Vector::Fixed).collect(),
            Self::Moved(values) => values.chunks_mut(len).map(Vector::Moved).collect(),
        }
    }
}

/// What is done with the particles of a batch.
pub(crate) trait Kernel<T: Packed, const V: usize>: Sync {
    /// Changes the vectors of a batch, and adds to the totals. Vectors beyond the batch are zero.
    fn run(&self, batch: &Batch<T>, vectors: &mut [Vectors<T>; V], totals: &mut Totals);

    /// Combines totals of two parts.
    fn combine(a: f64, b: f64) -> f64 {
        a + b
    }
}

/// Applies a kernel to all particles, whose displacements are the first of the vectors.
fn each_batch<T: Packed, K: Kernel<T, V>, const V: usize>(
    geometry: &Geometry<T>,
    kernel: &K,
    vectors: [Vector<'_, T>; V],
    pool: &dyn Parallel,
) -> Totals {
    for vector in &vectors {
        assert_eq!(vector.as_slice().len(), 3 * geometry.particles(), "three values a particle");
    }
    if geometry.particles() == 0 {
        return [0.0; 3];
    }
    // About 64 KiB of displacements at a time, in whole rows.
    let [_, _, pz] = geometry.sites();
    let rows = (5400 / pz).max(1);
    let mut pieces = vectors.map(|vector| vector.chunks(3 * rows * pz).into_iter());
    let parts: Vec<_> = core::iter::from_fn(|| {
        let own = pieces.each_mut().map(Iterator::next); // all have the same number of pieces
        let some = own.iter().all(Option::is_some);
        some.then(|| Mutex::new((own.map(|piece| piece.unwrap_or(Vector::Fixed(&[]))), [0.0; 3])))
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
    /// Of the particles of these rows.
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

/// A kick and two drifts, on the grids of the particles; with `WHOLE`, momenta are held as whole numbers of their unit.
#[derive(Clone, Copy, Debug)]
pub struct KickDrift<'a, T, const WHOLE: bool> {
    /// Lattice and mesh.
    pub geometry: &'a Geometry<T>,
    /// Three fields of each cell: the force.
    pub fields: &'a [T],
    /// Coefficient of the force, in units of the momenta at the end.
    pub kick: T,
    /// 1 / unit of the momenta at the start.
    pub inverse: T,
    /// Unit of the momenta at the end.
    pub after: T,
    /// Drifts after the kick, in units of the spacing of the displacements.
    pub drifts: [T; 2],
    /// Whether there is a kick.
    pub good: bool,
    /// Spacing of the displacements.
    pub resolution: T,
}

impl<T: Packed, const WHOLE: bool> KickDrift<'_, T, WHOLE> {
    /// Moves particles with displacements and momenta; returns the largest |displacement|, NaN if one is.
    ///
    /// # Panics
    /// If the lengths are inconsistent.
    pub fn run(&self, disp: &mut [T], vel: &mut [T], pool: &dyn Parallel) -> T {
        assert_eq!(self.fields.len(), 3 * self.geometry.volume(), "three fields");
        let [most, ..] = each_batch(self.geometry, self, [Vector::Moved(disp), Vector::Moved(vel)], pool);
        T::from_f64(most)
    }
}

impl<T: Packed, const WHOLE: bool> Kernel<T, 2> for KickDrift<'_, T, WHOLE> {
    #[inline(always)]
    fn run(&self, batch: &Batch<T>, [disp, vel]: &mut [Vectors<T>; 2], totals: &mut Totals) {
        let Self { kick, inverse, after, drifts: [last, first], good, resolution: q, .. } = *self;
        let force = force(self.geometry, batch, self.fields);
        let (mut most, mut invalid) = ([T::ZERO; LANES], [false; LANES]);
        if WHOLE {
            vel[3 * batch.len..].fill(T::ONE); // which holds 0
        }
        for m in (0..VALUES).step_by(LANES) {
            for l in 0..LANES {
                let change = if good { kick * force[m + l] } else { T::ZERO };
                let (held, v) = if WHOLE {
                    let momentum = T::whole_sum(vel[m + l].whole(), change.rounded());
                    let v = if change.is_countable() { T::from_whole(momentum) * after } else { T::NAN };
                    (T::holding(momentum), v)
                } else {
                    let v = ((vel[m + l] * inverse).rint() + change.rint()) * after;
                    (v, v)
                };
                let d = disp[m + l] + q * (last * v).rint();
                let d = d + q * (first * v).rint();
                let size = d.magnitude();
                most[l] = if size > most[l] { size } else { most[l] };
                let ordered = size >= T::ZERO;
                invalid[l] |= !ordered;
                (disp[m + l], vel[m + l]) = (d, held);
            }
        }
        for l in 0..LANES {
            let size = if invalid[l] { f64::NAN } else { most[l].to_f64() };
            totals[0] = Self::combine(totals[0], size);
        }
    }

    #[inline(always)]
    fn combine(a: f64, b: f64) -> f64 {
        if a >= b || a.is_nan() { a } else { b }
    }
}

/// A kick to be undone, with cotangents; momenta are held as whole numbers of their unit.
#[derive(Clone, Copy, Debug)]
pub struct UndoKick<'a, T> {
    /// Lattice and mesh.
    pub geometry: &'a Geometry<T>,
    /// Three fields of each cell: the force.
    pub fields: &'a [T],
    /// Coefficient of the force, in units of the momenta after the kick.
    pub kick: T,
    /// Unit of the momenta after the kick.
    pub after: T,
    /// Unit of the momenta before the kick.
    pub before: T,
    /// The drift after the kick.
    pub last: T,
    /// Coefficient of the force in the momenta after the kick.
    pub weight: T,
    /// Whether there was a kick.
    pub good: bool,
}

impl<T: Packed> UndoKick<'_, T> {
    /// Restores the momenta before the kick and pulls cotangents of displacements and momenta back; returns the sums over
    /// the particles of the new cotangents of the momenta times the force, of these times the new momenta, and of the old
    /// cotangents of the displacements times the old momenta.
    ///
    /// # Panics
    /// If the lengths are inconsistent.
    pub fn run(&self, disp: &[T], [vel, ct_disp, ct_vel]: [&mut [T]; 3], pool: &dyn Parallel) -> [T; 3] {
        assert_eq!(self.fields.len(), 3 * self.geometry.volume(), "three fields");
        let vectors = [Vector::Fixed(disp), Vector::Moved(vel), Vector::Moved(ct_disp), Vector::Moved(ct_vel)];
        each_batch(self.geometry, self, vectors, pool).map(T::from_f64)
    }
}

impl<T: Packed> Kernel<T, 4> for UndoKick<'_, T> {
    #[inline(always)]
    fn run(&self, batch: &Batch<T>, [_, vel, ct_disp, ct_vel]: &mut [Vectors<T>; 4], totals: &mut Totals) {
        let Self { kick, after, before, last, weight, good, .. } = *self;
        let mut sums = [[T::ZERO; LANES]; 3];
        for m in (0..VALUES).step_by(LANES) {
            for l in 0..LANES {
                sums[2][l] = sums[2][l] + ct_disp[m + l] * (T::from_whole(vel[m + l].whole()) * after);
                ct_vel[m + l] = ct_vel[m + l] + last * ct_disp[m + l];
            }
        }
        let (mut force, slopes) = force_and_slopes(self.geometry, batch, self.fields, ct_vel);
        if !good {
            force = [T::ZERO; VALUES + LANES];
        }
        for m in (0..VALUES).step_by(LANES) {
            for l in 0..LANES {
                let slope = if good { weight * slopes[m + l] } else { T::ZERO };
                ct_disp[m + l] = ct_disp[m + l] + slope;
                let momentum = T::whole_difference(vel[m + l].whole(), (kick * force[m + l]).rounded());
                vel[m + l] = T::holding(momentum);
                sums[0][l] = sums[0][l] + ct_vel[m + l] * force[m + l];
                sums[1][l] = sums[1][l] + ct_vel[m + l] * (T::from_whole(momentum) * before);
            }
        }
        add(&sums, totals);
    }
}

/// Two drifts to be undone, with cotangents; momenta are held as whole numbers of their unit.
#[derive(Clone, Copy, Debug)]
pub struct UndoDrift<'a, T> {
    /// Lattice and mesh.
    pub geometry: &'a Geometry<T>,
    /// Cotangent of the painted mesh.
    pub field: &'a [T],
    /// Coefficient of the force in the momenta after the kick.
    pub weight: T,
    /// Unit of the momenta after the kick over that before.
    pub scale: T,
    /// Unit of the momenta before the kick.
    pub before: T,
    /// Minus the drift before the kick and the one before it, in units of the spacing of the displacements.
    pub drifts: [T; 2],
    /// Whether there was a kick.
    pub good: bool,
    /// Spacing of the displacements.
    pub resolution: T,
}

impl<T: Packed> UndoDrift<'_, T> {
    /// Restores the displacements before the drifts and pulls cotangents of displacements and momenta back; returns the
    /// sum over the particles of the new cotangents of the displacements times the momenta.
    ///
    /// # Panics
    /// If the lengths are inconsistent.
    pub fn run(&self, vel: &[T], [disp, ct_disp, ct_vel]: [&mut [T]; 3], pool: &dyn Parallel) -> T {
        assert_eq!(self.field.len(), self.geometry.volume(), "one field");
        let vectors = [Vector::Moved(disp), Vector::Fixed(vel), Vector::Moved(ct_disp), Vector::Moved(ct_vel)];
        let [sum, ..] = each_batch(self.geometry, self, vectors, pool);
        T::from_f64(sum)
    }
}

impl<T: Packed> Kernel<T, 4> for UndoDrift<'_, T> {
    #[inline(always)]
    fn run(&self, batch: &Batch<T>, [disp, vel, ct_disp, ct_vel]: &mut [Vectors<T>; 4], totals: &mut Totals) {
        let Self { weight, scale, before, drifts, good, resolution: q, .. } = *self;
        let first = drifts[0] * q;
        let slopes = slopes(self.geometry, batch, self.field);
        let mut sums = [[T::ZERO; LANES]; 3];
        for m in (0..VALUES).step_by(LANES) {
            for l in 0..LANES {
                let slope = if good { weight * slopes[m + l] } else { T::ZERO };
                ct_disp[m + l] = ct_disp[m + l] + slope;
                ct_vel[m + l] = scale * ct_vel[m + l] - first * ct_disp[m + l];
                let v = T::from_whole(vel[m + l].whole()) * before;
                let d = disp[m + l] + q * (drifts[0] * v).rint();
                disp[m + l] = d + q * (drifts[1] * v).rint();
                sums[0][l] = sums[0][l] + ct_disp[m + l] * v;
            }
        }
        add(&sums, totals);
    }
}

/// Adds sums of a batch.
#[inline(always)]
fn add<T: Real>(sums: &[[T; LANES]; 3], totals: &mut Totals) {
    for (total, sums) in totals.iter_mut().zip(sums) {
        for sum in sums {
            *total += sum.to_f64();
        }
    }
}

/// Three fields at the particles of a batch; NaN at invalid positions.
#[inline(always)]
fn force<T: Packed>(geometry: &Geometry<T>, batch: &Batch<T>, fields: &[T]) -> Vectors<T> {
    let corners = Corners::new(geometry, batch);
    let mut force = [T::ZERO; VALUES + LANES];
    for n in 0..batch.len {
        let around = corners.around::<T, T::Three>(n, fields, 3, 0);
        let t = [batch.offset[0][n], batch.offset[1][n], batch.offset[2][n]];
        interpolate(&around, &weights::splat(weights::pairs(t))).store(&mut force[3 * n..]);
        if batch.invalid[n] != 0 {
            force[3 * n..3 * n + 3].fill(T::NAN);
        }
    }
    force
}

/// Three fields at the particles, and the slopes along each axis of their products with given vectors.
#[inline(always)]
fn force_and_slopes<T: Packed>(
    geometry: &Geometry<T>,
    batch: &Batch<T>,
    fields: &[T],
    vectors: &Vectors<T>,
) -> (Vectors<T>, Vectors<T>) {
    let corners = Corners::new(geometry, batch);
    let scale = geometry.axes.each_ref().map(|axis| axis.mesh.scale);
    let (mut force, mut slopes) = ([T::ZERO; VALUES + LANES], [T::ZERO; VALUES + LANES]);
    for n in 0..batch.len {
        let around = corners.around::<T, T::Three>(n, fields, 3, 0);
        let t = [batch.offset[0][n], batch.offset[1][n], batch.offset[2][n]];
        let (value, along) = value_and_slopes(&around, &weights::splat(weights::pairs(t)));
        value.store(&mut force[3 * n..]);
        let own = T::Three::load(&vectors[3 * n..]);
        for axis in 0..3 {
            slopes[3 * n + axis] = along[axis].dot(own) * scale[axis];
        }
        if batch.invalid[n] != 0 {
            force[3 * n..3 * n + 3].fill(T::NAN);
            slopes[3 * n..3 * n + 3].fill(T::NAN);
        }
    }
    (force, slopes)
}

/// Interpolates between the corners (x y z, z fastest), and gives the slopes along each axis.
#[inline(always)]
fn value_and_slopes<T: Real, V: Lanes<T>>(around: &[V; 8], [x, y, z]: &[[V; 2]; 3]) -> (V, [V; 3]) {
    let mut rows = [[V::splat(T::ZERO); 2]; 4]; // value, slope along z
    for r in 0..4 {
        let (low, high) = (around[2 * r], around[2 * r + 1]);
        rows[r] = [between(low, high, z), high.minus(low)];
    }
    let mut planes = [[V::splat(T::ZERO); 3]; 2]; // value, slopes along y and z
    for p in 0..2 {
        let (low, high) = (rows[2 * p], rows[2 * p + 1]);
        planes[p] = [between(low[0], high[0], y), high[0].minus(low[0]), between(low[1], high[1], y)];
    }
    let [low, high] = planes;
    let along = [high[0].minus(low[0]), between(low[1], high[1], x), between(low[2], high[2], x)];
    (between(low[0], high[0], x), along)
}

#[inline(always)]
fn between<T: Real, V: Lanes<T>>(low: V, high: V, weights: &[V; 2]) -> V {
    low.scale(weights[0]).plus(high.scale(weights[1]))
}

/// Slopes of a field at the particles of a batch along each axis; NaN at invalid positions.
#[inline(always)]
fn slopes<T: Packed>(geometry: &Geometry<T>, batch: &Batch<T>, field: &[T]) -> Vectors<T> {
    let corners = Corners::new(geometry, batch);
    let scale = geometry.axes.each_ref().map(|axis| axis.mesh.scale);
    let mut around = [[T::ZERO; SIZE]; 8]; // by corner, so that the arithmetic vectorises
    for n in 0..batch.len {
        for c in 0..8 {
            around[c][n] = field[corners.index(n, c)];
        }
    }
    let mut along = [[T::ZERO; SIZE]; 3];
    for n in 0..SIZE {
        let mut own = [[T::ZERO; 1]; 8];
        for c in 0..8 {
            own[c] = [around[c][n]];
        }
        let t = [batch.offset[0][n], batch.offset[1][n], batch.offset[2][n]];
        let (_, slopes) = value_and_slopes(&own, &weights::splat::<T, [T; 1]>(weights::pairs(t)));
        for axis in 0..3 {
            along[axis][n] = slopes[axis][0] * scale[axis];
        }
    }
    let mut slopes = [T::ZERO; VALUES + LANES];
    for n in 0..batch.len {
        for axis in 0..3 {
            slopes[3 * n + axis] = if batch.invalid[n] == 0 { along[axis][n] } else { T::NAN };
        }
    }
    slopes
}
