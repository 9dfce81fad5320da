//! A few particles, located together: structure of arrays, so that the arithmetic vectorises.

use super::geometry::Geometry;
use super::real::Real;

/// Particles in a batch.
pub(crate) const SIZE: usize = 32;

/// Lower cells and the offsets from them.
pub(crate) struct Batch<T> {
    pub(crate) len: usize,
    /// Number of each particle in row-major lattice order.
    pub(crate) site: [u32; SIZE],
    /// By axis.
    pub(crate) cell: [[i32; SIZE]; 3],
    /// By axis.
    pub(crate) offset: [[T; SIZE]; 3],
    /// Nonzero if not finite or out of reach; as wide as the other lanes, so that nothing is packed.
    pub(crate) bad: [i32; SIZE],
    /// Of the lattice sites, by axis. Beyond `len` these hold whatever they held: all loops have a fixed length.
    base: [[i32; SIZE]; 3],
    frac: [[T; SIZE]; 3],
}

impl<T: Real> Batch<T> {
    pub(crate) fn new() -> Self {
        Self {
            len: 0,
            site: [0; SIZE],
            cell: [[0; SIZE]; 3],
            offset: [[T::ZERO; SIZE]; 3],
            bad: [0; SIZE],
            base: [[0; SIZE]; 3],
            frac: [[T::ZERO; SIZE]; 3],
        }
    }

    /// Locates the particles of a piece of a lattice row, which begins at site (i, j, k); `disp` has 3 values each.
    /// Cells are not wrapped.
    #[inline(always)]
    pub(crate) fn locate_row(&mut self, geometry: &Geometry<T>, disp: &[T], [i, j, k]: [usize; 3]) {
        let [x, y, z] = &geometry.axes;
        let len = disp.len() / 3;
        let first = ((i * y.base.len() + j) * z.base.len() + k) as u32;
        for n in 0..SIZE {
            self.site[n] = first.wrapping_add(n as u32);
        }
        (self.base[0], self.frac[0]) = ([x.base[i]; SIZE], [x.frac[i]; SIZE]);
        (self.base[1], self.frac[1]) = ([y.base[j]; SIZE], [y.frac[j]; SIZE]);
        self.base[2][..len].copy_from_slice(&z.base[k..k + len]);
        self.frac[2][..len].copy_from_slice(&z.frac[k..k + len]);
        for (n, disp) in disp.chunks_exact(3).take(SIZE).enumerate() {
            for axis in 0..3 {
                self.offset[axis][n] = disp[axis];
            }
        }
        self.locate(geometry, len);
    }

    /// Locates the particles of the given numbers; `disp` is that of all particles.
    #[inline(always)]
    pub(crate) fn locate_sites(&mut self, geometry: &Geometry<T>, disp: &[T], sites: &[u32]) {
        let [_, py, pz] = geometry.sites().map(|sites| sites as u32);
        for (n, &site) in sites.iter().take(SIZE).enumerate() {
            let row = site / pz;
            self.site[n] = site;
            for (number, index) in [row / py, row % py, site % pz].into_iter().enumerate() {
                let axis = &geometry.axes[number];
                self.base[number][n] = axis.base[index as usize];
                self.frac[number][n] = axis.frac[index as usize];
                self.offset[number][n] = disp[3 * site as usize + number];
            }
        }
        self.locate(geometry, sites.len());
    }

    /// Turns displacements, left in `offset`, into cells and offsets.
    #[inline(always)]
    fn locate(&mut self, geometry: &Geometry<T>, len: usize) {
        for axis in &mut self.offset {
            axis[len..].fill(T::ZERO);
        }
        self.len = len;
        self.bad = [0; SIZE];
        for number in 0..3 {
            let mesh = geometry.axes[number].mesh;
            for n in 0..SIZE {
                let place = mesh.place(self.offset[number][n], self.base[number][n], self.frac[number][n]);
                self.bad[n] |= i32::from(!place.good);
                self.offset[number][n] = place.offset;
                self.cell[number][n] = place.cell;
            }
        }
    }

    /// Wraps the cells into the mesh, those of particles that are not good too.
    #[inline(always)]
    pub(crate) fn wrap(&mut self, geometry: &Geometry<T>) {
        for (cell, axis) in self.cell.iter_mut().zip(&geometry.axes) {
            let cells = axis.mesh.cells;
            let mut far = 0;
            for n in 0..SIZE {
                cell[n] = wrap_once(cell[n], cells);
                far |= u32::from(cell[n] as u32 >= cells as u32);
            }
            if far != 0 {
                // Many boxes away, or out of a padded block.
                for cell in cell {
                    *cell = cell.rem_euclid(cells);
                }
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
