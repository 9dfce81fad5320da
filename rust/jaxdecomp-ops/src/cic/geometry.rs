//! Positions of lattice sites relative to mesh cells.

use super::real::Real;
use xla_ffi::{Error, Result};

/// Names of the axes in error messages.
const NAMES: [&str; 3] = ["x", "y", "z"];
/// Bound of extents and displacements [cells]: cell numbers fit into an i32.
const LIMIT: i64 = 1 << 30;

/// Geometry of lattice and mesh as passed by the caller.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Numerator of the spacing: lattice site i is `i * spacing_num / spacing_den` cells from site 0.
    pub spacing_num: [i64; 3],
    /// Denominator of the spacing, see `spacing_num`.
    pub spacing_den: [i64; 3],
    /// Cell of lattice site 0.
    pub origin: [i64; 3],
    /// Whether an axis is periodic. If not, positions outside the block are invalid.
    pub periodic: [bool; 3],
    /// Cells per unit of displacement.
    pub scale: [f64; 3],
}

/// The mesh along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mesh<T> {
    pub(crate) cells: i32,
    periodic: bool,
    pub(crate) scale: T,
}

/// Mesh and lattice sites along one axis.
#[derive(Debug)]
pub(crate) struct Axis<T> {
    pub(crate) mesh: Mesh<T>,
    /// Cell of each site, wrapped into the mesh if periodic.
    pub(crate) base: Vec<i32>,
    /// Offset of each site from its cell.
    pub(crate) frac: Vec<T>,
}

/// A lattice of particles in a block of mesh cells.
#[derive(Debug)]
pub struct Geometry<T> {
    pub(crate) axes: [Axis<T>; 3],
}

/// Position of a particle along one axis.
#[derive(Clone, Copy)]
pub(crate) struct Position<T> {
    /// Lower cell, not wrapped.
    pub(crate) cell: i32,
    /// Offset from the lower cell, from 0 to 1.
    pub(crate) offset: T,
    /// Whether the position is finite and inside the block.
    pub(crate) valid: bool,
}

impl Spec {
    /// Checks the numbers along one axis.
    fn check_axis(&self, axis: usize, sites: usize, cells: usize) -> Result<()> {
        let (num, den, origin) = (self.spacing_num[axis], self.spacing_den[axis], self.origin[axis]);
        let name = NAMES[axis];
        if cells == 0 || cells as i64 >= LIMIT {
            return Err(Error::invalid(format!("mesh axis {name}: expected 1 to 2^30 cells, got {cells}")));
        }
        if !(0..LIMIT).contains(&num) || !(1..LIMIT).contains(&den) {
            return Err(Error::invalid(format!(
                "spacing of axis {name}: expected 0 <= num < 2^30 and 0 < den < 2^30, got {num}/{den}"
            )));
        }
        let last = i128::from(num) * (sites as i128) + i128::from(origin) * i128::from(den);
        let far = origin.unsigned_abs().max(sites as u64) >= LIMIT as u64;
        if far || last / i128::from(den) >= i128::from(LIMIT) {
            return Err(Error::invalid(format!(
                "axis {name}: {sites} sites {num}/{den} cells apart from cell {origin} exceed 2^30 cells"
            )));
        }
        Ok(())
    }

    /// Checks a lattice of `sites` in a mesh of `cells`.
    ///
    /// # Errors
    /// If the mesh is empty, the spacing is invalid, or extents exceed 2³⁰ cells or sites.
    pub fn check(&self, sites: [usize; 3], cells: [usize; 3]) -> Result<()> {
        (0..3).try_for_each(|axis| self.check_axis(axis, sites[axis], cells[axis]))
    }
}

impl<T: Real> Axis<T> {
    fn new(spec: &Spec, axis: usize, sites: usize, cells: usize) -> Self {
        let (num, den, origin) = (spec.spacing_num[axis], spec.spacing_den[axis], spec.origin[axis]);
        let periodic = spec.periodic[axis];
        let base = (0..sites as i64).map(|site| {
            let cell = origin + site * num / den;
            (if periodic { cell.rem_euclid(cells as i64) } else { cell }) as i32
        });
        let frac = (0..sites as i64).map(|site| T::from_f64((site * num % den) as f64 / den as f64));
        let scale = T::from_f64(spec.scale[axis]);
        let mesh = Mesh { cells: cells as i32, periodic, scale };
        Self { mesh, base: base.collect(), frac: frac.collect() }
    }
}

impl<T: Real> Mesh<T> {
    /// Position of a particle displaced by `disp` from a site. Takes a copy, which loops keep in registers.
    #[inline(always)]
    pub(crate) fn locate(self, disp: T, base: i32, frac: T) -> Position<T> {
        let position = disp * self.scale + frac;
        let finite = position.magnitude() < T::from_i32(LIMIT as i32); // false for NaN
        let position = if finite { position } else { T::ZERO };
        // Without SSE4.1, floor() is a library call; truncation vectorises everywhere.
        // SAFETY: |position| is below the limit.
        let towards_zero = unsafe { position.truncate() };
        let lower = towards_zero - i32::from(T::from_i32(towards_zero) > position);
        let cell = base + lower;
        let inside = self.periodic | ((cell >= 0) & (cell < self.cells - 1));
        Position { cell, offset: position - T::from_i32(lower), valid: finite & inside }
    }
}

/// Memory offsets of a cell and of the next one along a periodic axis.
#[inline(always)]
pub(crate) fn pair(cell: i32, cells: i32, stride: u32) -> [u32; 2] {
    let lower = cell as u32 * stride; // one product: SSE2 has no instruction for it
    [lower, if cell + 1 == cells { 0 } else { lower + stride }]
}

impl<T: Real> Geometry<T> {
    /// Builds the tables of a lattice of `sites` in a mesh of `cells`; an empty lattice has none along any axis.
    ///
    /// # Errors
    /// Errors of [`Spec::check`].
    pub fn new(spec: &Spec, sites: [usize; 3], cells: [usize; 3]) -> Result<Self> {
        spec.check(sites, cells)?;
        let sites = if sites.contains(&0) { [0; 3] } else { sites };
        Ok(Self { axes: [0, 1, 2].map(|i| Axis::new(spec, i, sites[i], cells[i])) })
    }

    /// Number of lattice sites along each axis.
    pub(crate) fn sites(&self) -> [usize; 3] {
        self.axes.each_ref().map(|axis| axis.base.len())
    }

    /// Number of mesh cells along each axis.
    pub(crate) fn cells(&self) -> [usize; 3] {
        self.axes.each_ref().map(|axis| axis.mesh.cells as usize)
    }

    /// Number of particles.
    #[must_use]
    pub fn particles(&self) -> usize {
        self.sites().iter().product()
    }

    /// Number of mesh cells.
    #[must_use]
    pub fn volume(&self) -> usize {
        self.cells().iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec =
        Spec { spacing_num: [0; 3], spacing_den: [1; 3], origin: [0; 3], periodic: [true; 3], scale: [1.0; 3] };

    #[test]
    fn an_empty_lattice_has_no_tables() {
        let geometry = Geometry::<f32>::new(&SPEC, [1 << 29, 1 << 29, 0], [4; 3]).expect("a valid lattice");
        assert_eq!((geometry.sites(), geometry.particles()), ([0; 3], 0));
    }

    #[test]
    fn more_sites_than_32_bits_hold_are_an_error() {
        assert!(SPEC.check([1 << 30, 0, 1], [4; 3]).is_err());
    }
}
