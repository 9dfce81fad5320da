//! Codes become errors that say what failed, and whether the job can go on.

use super::sys::Code;
use crate::cuda;
use core::fmt;

/// What went wrong in cuDecomp or under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Turned down before anything was sent, on every process alike: nothing waits, and work can go on.
    Refused(String),
    /// Failed on the way: other processes may wait for this one for ever, and the library's state is unknown.
    Broken(String),
}

/// Result of a call into cuDecomp or CUDA.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) | Self::Broken(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// Shorthand for [`Error::Refused`].
pub(super) fn refused<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Refused(message.into()))
}

/// The result of `function` of cuDecomp.
///
/// # Errors
/// What the code means. The library's own account of it is on the standard error.
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
    let message = format!("cudecomp{function}: {meaning} (code {code}; its own message is on the standard error)");
    // Usage and support are checked before anything is sent, from arguments that are the same everywhere.
    Err(if matches!(code, 1 | 2) { Error::Refused(message) } else { Error::Broken(message) })
}

impl From<cuda::Error> for Error {
    fn from(cuda::Error(message): cuda::Error) -> Self {
        Self::Broken(message)
    }
}
