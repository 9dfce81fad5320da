//! Division of an array over processes.
//!
//! Arrays are row-major (x, y, z), divided along x over `pdims[0]` and along y over `pdims[1]` processes; rank
//! `ix * pdims[1] + iy` holds block (ix, iy). cuDecomp uses the same axes, process grid and rank order. Its memory order is
//! set such that z varies fastest in every pencil, so that its transposes move data like `all_to_all`. (Reversed axes with
//! column-major ranks hang with NVSHMEM: 0.7.0 splits its teams in row-major order regardless of the setting.)

use super::result::{Error, Result, invalid_argument};
use super::sys::{GridDescConfig, RANK_ORDER_ROW_MAJOR};

/// Bound of the number of elements of a pencil with halos: cuDecomp's offsets have 31 bits.
const LIMIT: i64 = 1 << 31;

/// Axes of every pencil, fastest varying in memory first.
pub(super) const MEMORY_ORDER: [i32; 3] = [2, 1, 0];

/// Division of an array and its communication backends: the key of a descriptor, which applies to every data type.
///
/// Memory order and rank order, on which a descriptor depends too, are constant (see the module).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grid {
    /// Extents of the global array along x, y, z.
    pub shape: [i64; 3],
    /// Number of processes along x and y.
    pub pdims: [i64; 2],
    /// cuDecomp's number of the transpose backend.
    pub transpose_comm: i32,
    /// cuDecomp's number of the halo backend.
    pub halo_comm: i32,
}

/// A transpose, named by the undivided axes of input and output pencils.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// From undivided x to undivided y.
    XToY,
    /// From undivided y to undivided z.
    YToZ,
    /// From undivided z to undivided y.
    ZToY,
    /// From undivided y to undivided x.
    YToX,
}

impl Step {
    /// Step of a number from 0 to 3.
    ///
    /// # Errors
    /// If the number is out of range.
    pub fn new(number: i64) -> Result<Self> {
        match number {
            0 => Ok(Self::XToY),
            1 => Ok(Self::YToZ),
            2 => Ok(Self::ZToY),
            3 => Ok(Self::YToX),
            _ => invalid_argument(format!("step: expected 0 to 3, got {number}")),
        }
    }

    /// Undivided axes of input and output pencils.
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
    /// Local shape (x, y, z) of pencils that are undivided along an axis.
    ///
    /// # Errors
    /// If the extents are not divisible, or a pencil is too large.
    pub fn pencil(&self, axis: usize) -> Result<[i64; 3]> {
        let ([x, y, z], [px, py]) = (self.shape, self.pdims);
        let shards = [[1, px, py], [px, 1, py], [px, py, 1]][axis];
        if shards.iter().zip(self.shape).any(|(p, n)| n % p != 0) {
            return invalid_argument(format!("shape {:?} doesn't divide into {shards:?} blocks", self.shape));
        }
        let local = [x / shards[0], y / shards[1], z / shards[2]];
        checked_volume(local)?;
        Ok(local)
    }

    /// Local shape of a block with halos.
    ///
    /// # Errors
    /// If the extents are not divisible, the halo is wider than the block, or the padded block is too large.
    pub fn padded(&self, halo: i64) -> Result<[i64; 3]> {
        let mut local = self.pencil(2)?;
        for axis in 0..2 {
            if self.pdims[axis] > 1 {
                if halo < 0 || halo > local[axis] {
                    return invalid_argument(format!(
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
        let along = |num_shards: i64| if num_shards > 1 { halo as i32 } else { 0 };
        [along(self.pdims[0]), along(self.pdims[1]), 0]
    }

    /// Shape and first element of the pencil of a rank in memory order, z first.
    ///
    /// # Errors
    /// Errors of [`Self::pencil`].
    pub(super) fn expected(&self, axis: usize, rank: i64) -> Result<([i32; 3], [i32; 3])> {
        let [x, y, z] = self.pencil(axis)?;
        let (ix, iy) = (rank / self.pdims[1], rank % self.pdims[1]);
        let at = [[0, ix, iy], [ix, 0, iy], [ix, iy, 0]][axis];
        Ok(([z as i32, y as i32, x as i32], [(at[2] * z) as i32, (at[1] * y) as i32, (at[0] * x) as i32]))
    }

    /// Checks shape, process grid and backends.
    ///
    /// # Errors
    /// The first invalid value.
    pub(super) fn check(&self, num_processes: i64) -> Result<()> {
        if self.shape.iter().chain(&self.pdims).any(|n| !(1..LIMIT).contains(n)) {
            return invalid_argument(format!("shape {:?} and pdims {:?} must be positive", self.shape, self.pdims));
        }
        if self.pdims[0] * self.pdims[1] != num_processes {
            return invalid_argument(format!("pdims {:?} must multiply to the {num_processes} processes", self.pdims));
        }
        if !(1..=8).contains(&self.transpose_comm) || !(1..=5).contains(&self.halo_comm) {
            let (transpose, halo) = (self.transpose_comm, self.halo_comm);
            return invalid_argument(format!(
                "unknown backend number: transpose {transpose} (expected 1 to 8), halo {halo} (expected 1 to 5)"
            ));
        }
        self.pencil(2).map(drop)
    }

    /// Sets the fields of a configuration of the library's defaults.
    pub(super) fn configure(&self, config: &mut GridDescConfig) {
        config.gdims = self.shape.map(|n| n as i32);
        config.pdims = self.pdims.map(|n| n as i32);
        config.rank_order = RANK_ORDER_ROW_MAJOR;
        config.transpose_mem_order = [MEMORY_ORDER; 3];
        config.transpose_comm_backend = self.transpose_comm;
        config.halo_comm_backend = self.halo_comm;
    }

    /// Whether a backend passes device memory to MPI.
    pub(super) fn needs_mpi(&self) -> bool {
        self.transpose_comm <= 3 || self.halo_comm <= 2
    }

    /// Whether the library must allocate the workspace.
    pub(super) fn needs_nvshmem(&self) -> bool {
        self.transpose_comm >= 6 || self.halo_comm >= 4
    }
}

fn checked_volume(local: [i64; 3]) -> Result<()> {
    let volume = local.iter().try_fold(1_i64, |volume, &n| volume.checked_mul(n)).filter(|&volume| volume < LIMIT);
    volume.map(drop).ok_or_else(|| {
        Error::InvalidArgument(format!(
            "block {local:?}: expected fewer than 2^31 elements a process; use more processes"
        ))
    })
}
