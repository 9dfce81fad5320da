//! One transform as a participant sees it.

use super::exchange::Participant;
use super::slabs::Slabs;
use core::ffi::c_void;

/// One call of a transform on one GPU.
#[derive(Clone, Debug)]
pub struct Job {
    /// This GPU among those of the call.
    pub participant: Participant,
    /// Whether the input is divided along y and the output along x.
    pub inverse: bool,
    /// Sign of the exponent.
    pub sign: i64,
    /// Whether the transform along x is left to the caller.
    pub planes_only: bool,
    /// Number of meshes, consecutive in memory.
    pub batch: usize,
    /// Slabs to transform.
    pub input: *const c_void,
    /// Memory of the result.
    pub output: *mut c_void,
    /// Memory of [`scratch_len`] complex values, which may be that of the slabs for one mesh on one GPU.
    pub scratch: *mut c_void,
}

/// Number of complex values of scratch memory that a call needs.
#[must_use]
pub fn scratch_len(slabs: &Slabs, inverse: bool, planes_only: bool) -> i64 {
    let send_buffer = i64::from(sends_scratch(slabs, inverse, planes_only));
    let receive_buffer = i64::from(inverse && slabs.real.is_some()); // else the result receives
    (send_buffer + receive_buffer) * slabs.values()
}

/// Whether a call sends intermediate values rather than its input.
pub(super) fn sends_scratch(slabs: &Slabs, inverse: bool, planes_only: bool) -> bool {
    slabs.num_shards > 1 && !(inverse && planes_only)
}
