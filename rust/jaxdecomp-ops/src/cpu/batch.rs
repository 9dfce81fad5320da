//! A few particles, located together: structure of arrays, so that the arithmetic vectorises.

use super::geometry::{Axis, Geometry};
use super::real::Real;

/// Particles in a batch.
pub(crate) const SIZE: usize = 32;

/// Lower cells, wrapped into the mesh, and the offsets from them.
pub(crate) struct Batch<T> {
    pub(crate) len: usize,
    /// Number of each particle in row-major lattice order.
    pub(crate) site: [u32; SIZE],
    /// By axis. Within the mesh even for particles that are not good.
    pub(crate) cell: [[i32; SIZE]; 3],
    /// By axis.
    pub(crate) offset: [[T; SIZE]; 3],
    /// Nonzero if not finite or out of reach; as wide as the other lanes, so that nothing is packed.
    pub(crate) bad: [i32; SIZE],
}

impl<T: Real> Batch<T> {
    pub(crate) fn new() -> Self {
        Self { len: 0, site: [0; SIZE], cell: [[0; SIZE]; 3], offset: [[T::ZERO; SIZE]; 3], bad: [0; SIZE] }
    }

    /// Locates the particles of a piece of a lattice row, which begins at site (i, j, k); `disp` has 3 values each.
    #[inline(always)]
    pub(crate) fn locate_row(&mut self, geometry: &Geometry<T>, disp: &[T], [i, j, k]: [usize; 3]) {
        let [x, y, z] = &geometry.axes;
        let len = disp.len() / 3;
        let (z_base, z_frac) = (&z.base[k..k + len], &z.frac[k..k + len]);
        let first = ((i * y.base.len() + j) * z.base.len() + k) as u32;
        self.len = len;
        for (site, number) in self.site[..len].iter_mut().zip(first..) {
            *site = number;
        }
        self.bad = [0; SIZE];
        self.locate_axis(0, x, disp, |_| (x.base[i], x.frac[i]));
        self.locate_axis(1, y, disp, |_| (y.base[j], y.frac[j]));
        self.locate_axis(2, z, disp, |n| (z_base[n], z_frac[n]));
    }

    /// Locates the particles of the given numbers; `disp` is that of all particles.
    #[inline(always)]
    pub(crate) fn locate_sites(&mut self, geometry: &Geometry<T>, disp: &[T], sites: &[u32]) {
        let [_, py, pz] = geometry.sites().map(|sites| sites as u32);
        let len = sites.len();
        let mut own = [T::ZERO; 3 * SIZE];
        let mut index = [[0; SIZE]; 3];
        for (n, &site) in sites.iter().enumerate() {
            let first = 3 * site as usize;
            own[3 * n..3 * n + 3].copy_from_slice(&disp[first..first + 3]);
            let row = site / pz;
            (index[0][n], index[1][n], index[2][n]) = (row / py, row % py, site % pz);
        }
        self.len = len;
        self.site[..len].copy_from_slice(sites);
        self.bad = [0; SIZE];
        for (number, axis) in geometry.axes.iter().enumerate() {
            let at = |n: usize| (axis.base[index[number][n] as usize], axis.frac[index[number][n] as usize]);
            self.locate_axis(number, axis, &own[..3 * len], at);
        }
    }

    #[inline(always)]
    fn locate_axis(&mut self, number: usize, axis: &Axis<T>, disp: &[T], at: impl Fn(usize) -> (i32, T)) {
        let (cell, offset) = (&mut self.cell[number], &mut self.offset[number]);
        let own = cell.iter_mut().zip(offset.iter_mut()).zip(&mut self.bad);
        let mut far = false;
        for (n, (((cell, offset), bad), disp)) in own.zip(disp.chunks_exact(3)).enumerate() {
            let (base, frac) = at(n);
            let place = axis.place(disp[number], base, frac);
            *bad |= i32::from(!place.good);
            *offset = place.offset;
            *cell = wrap_once(place.cell, axis.cells);
            far |= *cell as u32 >= axis.cells as u32;
        }
        if far {
            // Many boxes away, or out of a padded block.
            for cell in cell {
                *cell = cell.rem_euclid(axis.cells);
            }
        }
    }
}

/// Wraps a cell that is at most one mesh away.
#[inline(always)]
fn wrap_once(cell: i32, cells: i32) -> i32 {
    let cell = if cell < 0 { cell + cells } else { cell };
    if cell >= cells { cell - cells } else { cell }
}
