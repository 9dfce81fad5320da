//! Reversal of a kick and of drifts of all particles, with cotangents, each in one pass that reads the mesh.

use super::batch::{Batch, SIZE};
use super::lanes::{Lanes, Packed};
use super::read::Corners;
use super::vectors::{Kernel, LANES, Totals, VALUES, Vector, Vectors, each_batch};
use super::weights;
use crate::cic::geometry::Geometry;
use crate::cic::real::Real;
use xla_ffi::Parallel;

/// Reversal of a kick, with cotangents; momenta are integers in a unit.
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
        let [a, b, c, _] = each_batch(self.geometry, self, vectors, pool).map(T::from_f64);
        [a, b, c]
    }

    /// Reverses the kick of a batch; see [`Self::run`].
    #[inline(always)]
    fn batch(
        &self,
        batch: &Batch<T>,
        vel: &mut Vectors<T>,
        [ct_disp, ct_vel]: [&mut Vectors<T>; 2],
    ) -> [[T; LANES]; 3] {
        let Self { kick, after, before, last, weight, good, .. } = *self;
        let ends = product(ct_disp, vel, after);
        for m in 0..VALUES {
            ct_vel[m] = ct_vel[m] + last * ct_disp[m];
        }
        let (mut force, slopes) = force_and_slopes(self.geometry, batch, self.fields, ct_vel);
        if !good {
            force = [T::ZERO; VALUES + LANES];
        }
        let mut momenta = [T::ZERO; VALUES + LANES];
        for m in 0..VALUES {
            momenta[m] = T::holding(T::whole_difference(vel[m].whole(), (kick * force[m]).rounded()));
        }
        *vel = momenta;
        if good {
            for m in 0..VALUES {
                ct_disp[m] = ct_disp[m] + weight * slopes[m];
            }
        }
        let mut by_kick = [T::ZERO; LANES];
        for m in (0..VALUES).step_by(LANES) {
            for l in 0..LANES {
                by_kick[l] = by_kick[l] + ct_vel[m + l] * force[m + l];
            }
        }
        [by_kick, product(ct_vel, vel, before), ends]
    }
}

impl<T: Packed> Kernel<T, 4> for UndoKick<'_, T> {
    #[inline(always)]
    fn run(&self, batch: &mut Batch<T>, [_, vel, ct_disp, ct_vel]: &mut [Vectors<T>; 4], totals: &mut Totals) {
        add(self.batch(batch, vel, [ct_disp, ct_vel]), totals);
    }
}

/// Reversal of two drifts, with cotangents; momenta are integers in a unit.
#[derive(Clone, Copy, Debug)]
pub struct UndoDrift<'a, T> {
    /// Lattice and mesh.
    pub geometry: &'a Geometry<T>,
    /// Cotangent of the painted mesh.
    pub field: &'a [T],
    /// Coefficient of the force in the momenta after the kick.
    pub weight: T,
    /// Unit of the momenta after the kick over the unit before.
    pub scale: T,
    /// Unit of the momenta before the kick.
    pub before: T,
    /// Minus the drift before the kick, and minus the drift before this, in units of the spacing of the displacements.
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

    /// Reverses the drifts of a batch; see [`Self::run`].
    #[inline(always)]
    fn batch(
        &self,
        batch: &Batch<T>,
        disp: &mut Vectors<T>,
        vel: &Vectors<T>,
        [ct_disp, ct_vel]: [&mut Vectors<T>; 2],
    ) -> [T; LANES] {
        let Self { weight, scale, before, drifts, good, resolution: q, .. } = *self;
        let first = drifts[0] * q;
        let slopes = slopes(self.geometry, batch, self.field);
        if good {
            for m in 0..VALUES {
                ct_disp[m] = ct_disp[m] + weight * slopes[m];
            }
        }
        for m in 0..VALUES {
            ct_vel[m] = scale * ct_vel[m] - first * ct_disp[m];
            let v = T::from_whole(vel[m].whole()) * before;
            let d = disp[m] + q * (drifts[0] * v).rint();
            disp[m] = d + q * (drifts[1] * v).rint();
        }
        product(ct_disp, vel, before)
    }
}

impl<T: Packed> Kernel<T, 4> for UndoDrift<'_, T> {
    #[inline(always)]
    fn run(&self, batch: &mut Batch<T>, [disp, vel, ct_disp, ct_vel]: &mut [Vectors<T>; 4], totals: &mut Totals) {
        add([self.batch(batch, disp, vel, [ct_disp, ct_vel])], totals);
    }
}

/// Reversal of drifts, and then of the kick before them, in one pass over the particles.
#[derive(Clone, Copy, Debug)]
pub struct UndoDriftAndKick<'a, T> {
    /// The drifts.
    pub drift: UndoDrift<'a, T>,
    /// The kick, of the same geometry.
    pub kick: UndoKick<'a, T>,
}

impl<T: Packed> UndoDriftAndKick<'_, T> {
    /// [`UndoDrift::run`], and then [`UndoKick::run`]; returns the sum of the first and the sums of the second.
    ///
    /// # Panics
    /// If the lengths are inconsistent.
    pub fn run(&self, vectors: [&mut [T]; 4], pool: &dyn Parallel) -> [T; 4] {
        let Self { drift, kick } = self;
        assert_eq!(drift.field.len(), drift.geometry.volume(), "one field");
        assert_eq!(kick.fields.len(), 3 * drift.geometry.volume(), "three fields");
        each_batch(drift.geometry, self, vectors.map(Vector::Moved), pool).map(T::from_f64)
    }
}

impl<T: Packed> Kernel<T, 4> for UndoDriftAndKick<'_, T> {
    #[inline(always)]
    fn run(&self, batch: &mut Batch<T>, [disp, vel, ct_disp, ct_vel]: &mut [Vectors<T>; 4], totals: &mut Totals) {
        let sum = self.drift.batch(batch, disp, vel, [ct_disp, ct_vel]);
        batch.relocate(self.kick.geometry, &disp[..3 * batch.len]);
        batch.wrap(self.kick.geometry);
        let [a, b, c] = self.kick.batch(batch, vel, [ct_disp, ct_vel]);
        add([sum, a, b, c], totals);
    }
}

/// Sums of the products of vectors with integer momenta. A separate loop, since a longer one is not vectorised.
#[inline(always)]
fn product<T: Real>(vectors: &Vectors<T>, momenta: &Vectors<T>, unit: T) -> [T; LANES] {
    let mut sums = [T::ZERO; LANES];
    for m in (0..VALUES).step_by(LANES) {
        for l in 0..LANES {
            sums[l] = sums[l] + vectors[m + l] * (T::from_whole(momenta[m + l].whole()) * unit);
        }
    }
    sums
}

/// Adds sums of a batch.
#[inline(always)]
fn add<T: Real, const N: usize>(sums: [[T; LANES]; N], totals: &mut Totals) {
    for (total, sums) in totals.iter_mut().zip(sums) {
        for sum in sums {
            *total += sum.to_f64();
        }
    }
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
        let own = corners.around::<T, [T; 1]>(n, field, 1, 0);
        for c in 0..8 {
            around[c][n] = own[c].first();
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
