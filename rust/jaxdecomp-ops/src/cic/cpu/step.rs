//! A kick and two drifts of all particles, in one pass that reads the mesh.

use super::batch::Batch;
use super::lanes::{Lanes, Packed};
use super::read::{Corners, interpolate};
use super::vectors::{Kernel, LANES, Totals, VALUES, Vector, Vectors, each_batch};
use super::weights;
use crate::cic::geometry::Geometry;
use xla_ffi::Parallel;

/// A kick and two drifts, on the grids of the particles; momenta are integers in a unit.
#[derive(Clone, Copy, Debug)]
pub struct KickDrift<'a, T> {
    /// Lattice and mesh.
    pub geometry: &'a Geometry<T>,
    /// Three fields of each cell: the force.
    pub fields: &'a [T],
    /// Coefficient of the force, in units of the momenta at the end.
    pub kick: T,
    /// Unit of the momenta at the end.
    pub after: T,
    /// Drifts after the kick, in units of the spacing of the displacements.
    pub drifts: [T; 2],
    /// Whether there is a kick.
    pub good: bool,
    /// Spacing of the displacements.
    pub resolution: T,
}

impl<T: Packed> KickDrift<'_, T> {
    /// Moves particles; returns the largest |displacement|, NaN if any is NaN.
    ///
    /// # Panics
    /// If the lengths are inconsistent.
    pub fn run(&self, disp: &mut [T], vel: &mut [T], pool: &dyn Parallel) -> T {
        assert_eq!(self.fields.len(), 3 * self.geometry.volume(), "three fields");
        let [most, ..] = each_batch(self.geometry, self, [Vector::Moved(disp), Vector::Moved(vel)], pool);
        T::from_f64(most)
    }
}

impl<T: Packed> Kernel<T, 2> for KickDrift<'_, T> {
    #[inline(always)]
    fn run(&self, batch: &mut Batch<T>, [disp, vel]: &mut [Vectors<T>; 2], totals: &mut Totals) {
        let KickDrift { geometry, fields, kick, after, drifts: [last, first], good, resolution: q } = *self;
        let force = force(geometry, batch, fields);
        let (mut most, mut invalid) = ([T::ZERO; LANES], [false; LANES]);
        vel[3 * batch.len..].fill(T::ONE); // which holds 0
        for m in (0..VALUES).step_by(LANES) {
            for l in 0..LANES {
                let change = if good { kick * force[m + l] } else { T::ZERO };
                let momentum = T::whole_sum(vel[m + l].whole(), change.rounded());
                let v = if change.is_countable() { T::from_whole(momentum) * after } else { T::NAN };
                let d = disp[m + l] + q * (last * v).rint();
                let d = d + q * (first * v).rint();
                let size = d.magnitude();
                most[l] = if size > most[l] { size } else { most[l] };
                let ordered = size >= T::ZERO;
                invalid[l] |= !ordered;
                (disp[m + l], vel[m + l]) = (d, T::holding(momentum));
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
