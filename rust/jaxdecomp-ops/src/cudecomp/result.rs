//! Errors of cuDecomp, by whether the job can continue.

use super::sys::Code;
use crate::cuda;
use core::fmt;

/// Failure of cuDecomp or of CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Rejected on every process alike before anything was sent: no process waits, and the job can continue.
    InvalidArgument(String),
    /// Failed inside a collective: other processes may wait for this one forever, and the library's state is undefined.
    Fatal(String),
}

/// Result of a call into cuDecomp or CUDA.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(message) | Self::Fatal(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// Returns [`Error::InvalidArgument`].
pub(super) fn invalid_argument<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::InvalidArgument(message.into()))
}

/// Converts the code returned by `function` of cuDecomp.
///
/// # Errors
/// The meaning of the code. The library prints details to the standard error.
pub fn check(function: &str, code: Code) -> Result<()> {
    let meaning = match code {
        0 => return Ok(()),
        1 => "invalid usage",
        2 => "not supported by this build, or with these options",
        3 => "internal error",
        4 => "CUDA failed",
        5 => "cuTENSOR failed",
        6 => "MPI failed",
        7 => "NCCL failed",
        8 => "NVSHMEM failed",
        9 => "NVML failed",
        _ => "unknown code",
    };
    let message = format!("cudecomp{function}: {meaning} (code {code}; details are on the standard error)");
    // The library checks usage and support before it sends, with arguments that are equal on all processes.
    Err(if matches!(code, 1 | 2) { Error::InvalidArgument(message) } else { Error::Fatal(message) })
}

impl From<cuda::Error> for Error {
    fn from(cuda::Error(message): cuda::Error) -> Self {
        Self::Fatal(message)
    }
}
