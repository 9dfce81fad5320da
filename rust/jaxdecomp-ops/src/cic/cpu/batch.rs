//! Batches of particles as structures of arrays, so that the arithmetic vectorises.

use crate::cic::geometry::Geometry;
use crate::cic::real::Real;

/// Largest number of particles in a batch.
pub(crate) const SIZE: usize = 32;

/// Lower cells of particles and offsets from them.
pub(crate) struct Batch<T> {
    pub(crate) len: usize,
    /// Number of each particle in row-major lattice order.
    pub(crate) site: [u32; SIZE],
    /// Lower cell of each particle by axis.
    pub(crate) cell: [[i32; SIZE]; 3],
    /// Offset from the lower cell by axis.
    pub(crate) offset: [[T; SIZE]; 3],
    /// Nonzero for invalid positions. As wide as the other lanes, so that no conversion is needed.
    pub(crate) invalid: [i32; SIZE],
    /// Cells and offsets of the lattice sites by axis. Values beyond `len` are arbitrary: all loops have a fixed length.
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
            invalid: [0; SIZE],
            base: [[0; SIZE]; 3],
            frac: [[T::ZERO; SIZE]; 3],
        }
    }

    /// Locates the particles of a piece of a lattice row that begins at site (i, j, k), with 3 values of `disp` each.
    /// Does not wrap cells.
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
        self.take(disp);
        self.locate(geometry, len);
    }

    /// Locates the particles of the same sites at other displacements, with 3 values each. Does not wrap cells.
    #[inline(always)]
    pub(crate) fn relocate(&mut self, geometry: &Geometry<T>, disp: &[T]) {
        self.take(disp);
        self.locate(geometry, disp.len() / 3);
    }

    #[inline(always)]
    fn take(&mut self, disp: &[T]) {
        for (n, disp) in disp.chunks_exact(3).take(SIZE).enumerate() {
            for axis in 0..3 {
                self.offset[axis][n] = disp[axis];
            }
        }
    }

    /// Locates the particles of the given site numbers; `disp` holds all particles.
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

    /// Converts the displacements in `offset` to cells and offsets.
    #[inline(always)]
    fn locate(&mut self, geometry: &Geometry<T>, len: usize) {
        for axis in &mut self.offset {
            axis[len..].fill(T::ZERO);
        }
        self.len = len;
        self.invalid = [0; SIZE];
        for number in 0..3 {
            let mesh = geometry.axes[number].mesh;
            for n in 0..SIZE {
                let position = mesh.locate(self.offset[number][n], self.base[number][n], self.frac[number][n]);
                self.invalid[n] |= i32::from(!position.valid);
                self.offset[number][n] = position.offset;
                self.cell[number][n] = position.cell;
            }
        }
    }

    /// Wraps all cells into the mesh, also cells of invalid positions.
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
                // More than one mesh away, or outside a padded block.
                for cell in cell {
                    *cell = cell.rem_euclid(cells);
                }
            }
        }
    }
}

/// Wraps a cell that is at most one mesh outside.
#[inline(always)]
fn wrap_once(cell: i32, cells: i32) -> i32 {
    let cell = if cell < 0 { cell + cells } else { cell };
    if cell >= cells { cell - cells } else { cell }
}
