//! How an array is divided, in the package's terms and in cuDecomp's.
//!
//! Ours: row-major (x, y, z), x over `pdims[0]` and y over `pdims[1]` processes, of which process `ix * pdims[1] + iy` sits
//! at (ix, iy). cuDecomp's: column-major, so its X is our z and its Z our x, over a process grid (`pdims[1]`, `pdims[0]`) in
//! column-major order. No axis is made contiguous, so that its transposes move data as `all_to_all` does.

use super::result::{Error, Result, refused};
use super::sys::{GridDescConfig, RANK_ORDER_COL_MAJOR};

/// Offsets inside a pencil must fit into 31 bits, halos and padding included.
const LIMIT: i64 = 1 << 31;

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

/// A transpose, named by the axes of cuDecomp along which pencils are whole before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// From whole along our z to whole along our y.
    XToY,
    /// From whole along our y to whole along our x.
    YToZ,
    /// From whole along our x to whole along our y.
    ZToY,
    /// From whole along our y to whole along our z.
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

    /// Along which of cuDecomp's axes pencils are whole before and after.
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
    /// The local shape (x, y, z) of pencils that are whole along an axis of cuDecomp's.
    ///
    /// # Errors
    /// If the array doesn't divide, or a pencil is too large.
    pub fn pencil(&self, axis: usize) -> Result<[i64; 3]> {
        let ([x, y, z], [px, py]) = (self.shape, self.pdims);
        let parts = [[px, py, 1], [px, 1, py], [1, px, py]][axis];
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
        let mut local = self.pencil(0)?;
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

    /// Widths of the halos along cuDecomp's axes.
    #[must_use]
    pub fn halo_extents(&self, halo: i64) -> [i32; 3] {
        let along = |parts: i64| if parts > 1 { halo as i32 } else { 0 };
        [0, along(self.pdims[1]), along(self.pdims[0])]
    }

    /// Shape and first cell of process `place`'s pencil, along cuDecomp's axes.
    ///
    /// # Errors
    /// As [`Self::pencil`].
    pub(super) fn expected(&self, axis: usize, place: i64) -> Result<([i32; 3], [i32; 3])> {
        let [x, y, z] = self.pencil(axis)?;
        let (ix, iy) = (place / self.pdims[1], place % self.pdims[1]);
        let at = [[ix, iy, 0], [ix, 0, iy], [0, ix, iy]][axis];
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
        self.pencil(0).map(drop)
    }

    /// Fills in a configuration that holds the library's defaults.
    pub(super) fn configure(&self, config: &mut GridDescConfig) {
        let [x, y, z] = self.shape.map(|n| n as i32);
        config.gdims = [z, y, x];
        config.pdims = [self.pdims[1] as i32, self.pdims[0] as i32];
        config.rank_order = RANK_ORDER_COL_MAJOR;
        config.transpose_axis_contiguous = [0; 3];
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
