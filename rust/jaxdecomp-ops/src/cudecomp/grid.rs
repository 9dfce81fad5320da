//! How an array is divided, in the package's terms and in cuDecomp's.
//!
//! Arrays are row-major (x, y, z), x over `pdims[0]` and y over `pdims[1]` processes, of which process `ix * pdims[1] + iy`
//! sits at (ix, iy). cuDecomp's axes, grid of processes and order of ranks are the same; its order of memory is set so
//! that z varies fastest in every pencil, and its transposes move data as `all_to_all` does. (Naming the axes the other
//! way round, with column-major ranks, hangs with NVSHMEM: 0.7.0 splits its teams in row-major order whatever is set.)

use super::result::{Error, Result, refused};
use super::sys::{GridDescConfig, RANK_ORDER_ROW_MAJOR};

/// Offsets inside a pencil must fit into 31 bits, halos and padding included.
const LIMIT: i64 = 1 << 31;

/// The axes of every pencil, from the one that varies fastest in memory.
pub(super) const MEMORY_ORDER: [i32; 3] = [2, 1, 0];

/// A division of an array, and who moves its data: all that a descriptor depends on. It serves every data type.
///
/// The order of memory and of ranks, which a descriptor depends on too, are the same for all (see the module).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grid {
    /// Cells of the whole array along x, y, z.
    pub shape: [i64; 3],
    /// Processes along the first two axes.
    pub pdims: [i64; 2],
    /// Number of the transposes' backend.
    pub transpose_comm: i32,
    /// Number of the halos' backend.
    pub halo_comm: i32,
}

/// A transpose, named by the axes along which pencils are whole before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// From whole along x to whole along y.
    XToY,
    /// From whole along y to whole along z.
    YToZ,
    /// From whole along z to whole along y.
    ZToY,
    /// From whole along y to whole along x.
    YToX,
}

impl Step {
    /// The step of this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(number: i64) -> Result<Self> {
        match number {
            0 => Ok(Self::XToY),
            1 => Ok(Self::YToZ),
            2 => Ok(Self::ZToY),
            3 => Ok(Self::YToX),
            _ => refused(format!("step: expected 0 to 3, got {number}")),
        }
    }

    /// Along which axes pencils are whole before and after.
    #[must_use]
    pub fn axes(self) -> (usize, usize) {
        match self {
            Self::XToY => (0, 1),
            Self::YToZ => (1, 2),
            Self::ZToY => (2, 1),
            Self::YToX => (1, 0),
        }
    }
}

impl Grid {
    /// The local shape (x, y, z) of pencils that are whole along an axis.
    ///
    /// # Errors
    /// If the array doesn't divide, or a pencil is too large.
    pub fn pencil(&self, axis: usize) -> Result<[i64; 3]> {
        let ([x, y, z], [px, py]) = (self.shape, self.pdims);
        let parts = [[1, px, py], [px, 1, py], [px, py, 1]][axis];
        if parts.iter().zip(self.shape).any(|(p, n)| n % p != 0) {
            return refused(format!("shape {:?} doesn't divide into {parts:?} blocks", self.shape));
        }
        let local = [x / parts[0], y / parts[1], z / parts[2]];
        checked_volume(local)?;
        Ok(local)
    }

    /// The local block of a field with its halos.
    ///
    /// # Errors
    /// If the array doesn't divide, a halo is wider than the block, or the padded block is too large.
    pub fn padded(&self, halo: i64) -> Result<[i64; 3]> {
        let mut local = self.pencil(2)?;
        for axis in 0..2 {
            if self.pdims[axis] > 1 {
                if halo < 0 || halo > local[axis] {
                    return refused(format!(
                        "halo: expected 0 to {} cells, the block's width, got {halo}",
                        local[axis]
                    ));
                }
                local[axis] += 2 * halo;
            }
        }
        checked_volume(local)?;
        Ok(local)
    }

    /// Widths of the halos along x, y, z.
    #[must_use]
    pub fn halo_extents(&self, halo: i64) -> [i32; 3] {
        let along = |parts: i64| if parts > 1 { halo as i32 } else { 0 };
        [along(self.pdims[0]), along(self.pdims[1]), 0]
    }

    /// Shape and first cell of process `place`'s pencil, in the order of memory, z first.
    ///
    /// # Errors
    /// As [`Self::pencil`].
    pub(super) fn expected(&self, axis: usize, place: i64) -> Result<([i32; 3], [i32; 3])> {
        let [x, y, z] = self.pencil(axis)?;
        let (ix, iy) = (place / self.pdims[1], place % self.pdims[1]);
        let at = [[0, ix, iy], [ix, 0, iy], [ix, iy, 0]][axis];
        Ok(([z as i32, y as i32, x as i32], [(at[2] * z) as i32, (at[1] * y) as i32, (at[0] * x) as i32]))
    }

    /// Checks what can be checked without the library.
    ///
    /// # Errors
    /// What is wrong with the grid.
    pub(super) fn check(&self, processes: i64) -> Result<()> {
        if self.shape.iter().chain(&self.pdims).any(|n| !(1..LIMIT).contains(n)) {
            return refused(format!("shape {:?} and pdims {:?} must be positive", self.shape, self.pdims));
        }
        if self.pdims[0] * self.pdims[1] != processes {
            return refused(format!("pdims {:?} must multiply to the {processes} processes", self.pdims));
        }
        if !(1..=8).contains(&self.transpose_comm) || !(1..=5).contains(&self.halo_comm) {
            let (transpose, halo) = (self.transpose_comm, self.halo_comm);
            return refused(format!("no backends of the numbers {transpose} (transposes) and {halo} (halos)"));
        }
        self.pencil(2).map(drop)
    }

    /// Fills in a configuration that holds the library's defaults.
    pub(super) fn configure(&self, config: &mut GridDescConfig) {
        config.gdims = self.shape.map(|n| n as i32);
        config.pdims = self.pdims.map(|n| n as i32);
        config.rank_order = RANK_ORDER_ROW_MAJOR;
        config.transpose_mem_order = [MEMORY_ORDER; 3];
        config.transpose_comm_backend = self.transpose_comm;
        config.halo_comm_backend = self.halo_comm;
    }

    /// Whether a backend hands device memory to MPI.
    pub(super) fn needs_mpi(&self) -> bool {
        self.transpose_comm <= 3 || self.halo_comm <= 2
    }

    /// Whether the workspace must come from the library.
    pub(super) fn needs_nvshmem(&self) -> bool {
        self.transpose_comm >= 6 || self.halo_comm >= 4
    }
}

fn checked_volume(local: [i64; 3]) -> Result<()> {
    let volume = local.iter().try_fold(1_i64, |volume, &n| volume.checked_mul(n)).filter(|&volume| volume < LIMIT);
    volume.map(drop).ok_or_else(|| {
        Error::Refused(format!("block {local:?}: expected fewer than 2^31 elements a process; use more processes"))
    })
}
