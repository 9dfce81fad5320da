//! Transposes and halos on XLA's streams.

use super::grid::{Grid, Step};
use super::result::{Result, check, invalid_argument};
use super::safe::Session;
use super::sys::Opaque;
use core::ffi::{c_int, c_void};
use xla_ffi::Dtype;

/// Device memory and stream of one call.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The operand.
    pub input: *const c_void,
    /// The result. Halos may be filled in place.
    pub output: *mut c_void,
    /// XLA's scratch memory.
    pub scratch: *mut c_void,
    /// Number of elements of the scratch memory.
    pub scratch_len: i64,
    /// Number of arrays, consecutive in operand and result.
    pub batch: usize,
    /// XLA's stream.
    pub stream: Opaque,
}

impl Session {
    /// Transposes a batch of arrays. Collective.
    ///
    /// # Safety
    /// Input and output are device memory of `batch` pencils of the type; the scratch memory has `scratch_len` elements.
    ///
    /// # Errors
    /// An invalid argument, on every process alike; or a fatal failure, after which the job must end.
    pub unsafe fn transpose(&mut self, grid: &Grid, step: Step, dtype: Dtype, buffers: &Buffers) -> Result<()> {
        let (number, bytes) = data_type(dtype)?;
        let needed = self.descriptor(grid)?.transpose_workspace;
        let (raw, work) = self.workspace(grid, needed, bytes, buffers)?;
        let (from, to) = step.axes();
        let stride = grid.pencil(from)?.iter().product::<i64>() as usize * bytes;
        grid.pencil(to)?;
        let function = match step {
            Step::XToY => self.api.transpose_x_to_y,
            Step::YToZ => self.api.transpose_y_to_z,
            Step::ZToY => self.api.transpose_z_to_y,
            Step::YToX => self.api.transpose_y_to_x,
        };
        let none = core::ptr::null();
        let outcome = self.enter().and_then(|()| {
            (0..buffers.batch).try_for_each(|b| {
                // SAFETY: by contract.
                let code = unsafe {
                    let (input, output) =
                        (buffers.input.cast_mut().byte_add(b * stride), buffers.output.byte_add(b * stride));
                    function(self.handle, raw, input, output, work, number, none, none, none, none, buffers.stream)
                };
                check("Transpose", code)
            })
        });
        self.record_failure(outcome)
    }

    /// Fills the halos of a batch of padded blocks, first along x, then along y. Collective.
    ///
    /// # Safety
    /// Input and output are device memory of `batch` padded blocks; the scratch memory has `scratch_len` elements.
    ///
    /// # Errors
    /// Errors of [`Self::transpose`].
    pub unsafe fn fill_halos(&mut self, grid: &Grid, halo: i64, dtype: Dtype, buffers: &Buffers) -> Result<()> {
        let (number, bytes) = data_type(dtype)?;
        let stride = grid.padded(halo)?.iter().product::<i64>() as usize * bytes;
        let needed = self.halo_workspace(grid, halo)?;
        let (raw, work) = self.workspace(grid, needed, bytes, buffers)?;
        let (extents, periodic, none) = (grid.halo_extents(halo), [true; 3], core::ptr::null());
        let update = |block: *mut c_void, axis: i32| {
            // SAFETY: by contract.
            let code = unsafe {
                let (extents, periodic) = (extents.as_ptr(), periodic.as_ptr());
                let function = self.api.update_halos_z;
                function(self.handle, raw, block, work, number, extents, periodic, axis, none, buffers.stream)
            };
            check("UpdateHalosZ", code)
        };
        let outcome = self.enter().and_then(|()| {
            if !core::ptr::eq(buffers.input, buffers.output) {
                // SAFETY: by contract.
                unsafe { self.device.copy(buffers.output, buffers.input, stride * buffers.batch, buffers.stream) }?;
            }
            (0..buffers.batch).try_for_each(|b| {
                // SAFETY: by contract.
                let block = unsafe { buffers.output.byte_add(b * stride) };
                (0..2).filter(|&axis| extents[axis as usize] > 0).try_for_each(|axis| update(block, axis))
            })
        });
        self.record_failure(outcome)
    }

    /// Descriptor and address of the workspace.
    fn workspace(
        &self,
        grid: &Grid,
        needed: i64,
        item_bytes: usize,
        buffers: &Buffers,
    ) -> Result<(Opaque, *mut c_void)> {
        self.expect_usable()?;
        let descriptor = self.descriptor(grid)?;
        if let Some((memory, bytes)) = descriptor.own {
            let needed = needed as usize * item_bytes;
            if bytes < needed {
                return invalid_argument(format!(
                    "workspace: expected {needed} bytes, got {bytes}: open the grid for this data type and halo"
                ));
            }
            return Ok((descriptor.raw, memory));
        }
        if buffers.scratch_len < needed {
            return invalid_argument(format!("scratch: expected {needed} elements, got {}", buffers.scratch_len));
        }
        Ok((descriptor.raw, buffers.scratch))
    }
}

/// cuDecomp's number of a data type, and its size [bytes].
fn data_type(dtype: Dtype) -> Result<(c_int, usize)> {
    match dtype {
        Dtype::F32 => Ok((-1, 4)),
        Dtype::F64 => Ok((-2, 8)),
        Dtype::C64 => Ok((-3, 8)),
        Dtype::C128 => Ok((-4, 16)),
        other => invalid_argument(format!("expected f32, f64, c64 or c128, got {other}")),
    }
}
