//! NVIDIA's libraries, loaded at run time: nothing of CUDA is needed to build this crate.
//!
//! The crate `cudarc` offers the same bindings. It is not used since it panics where a library or a symbol is missing, and
//! looks libraries up by name, while those of pip's wheels are found by path; a missing library must be an error value here.

pub mod cache;
pub mod cufft;
#[cfg_attr(not(feature = "peer"), allow(dead_code, reason = "streams and events are those of peer"))]
mod device;
pub mod driver;
pub mod gpus;
pub mod kernel;
mod library;
pub mod nvrtc;

pub use device::{Device, Mark, Stream, Word};
pub(crate) use library::table;

use core::fmt;

/// An opaque pointer: `CUstream`, `CUcontext`, `CUevent` or the like.
pub type Opaque = *mut core::ffi::c_void;

/// Failure of one of NVIDIA's libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub String);

/// Result of a call into CUDA.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
