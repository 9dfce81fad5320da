//! Transposes and halos by NVIDIA's cuDecomp, loaded at run time.
//!
//! A process has at most one [`Session`]. [`open`], [`open_grid`] and [`close`] are collective: they are called by name,
//! by every process in the same order, and never from tracing, from a handler or from a destructor. Handlers find
//! descriptors by their [`Grid`], which a compiled program carries whole: a program that was compiled by another process, or
//! for a session since closed, finds its own descriptor or an error, never another's.

mod calls;
mod grid;
pub mod handlers;
mod result;
mod safe;
pub mod sys;

pub use calls::Buffers;
pub use grid::{Grid, Step};
pub use result::{Error, Result, check};
pub use safe::{Member, Session};

use crate::cuda::{Device, driver};
use std::sync::{Mutex, MutexGuard, PoisonError};

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with the open session.
///
/// # Errors
/// If none is open, and those of `body`.
pub fn with_session<T>(body: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
    match lock().as_mut() {
        Some(session) => body(session),
        None => {
            result::refused("cuDecomp is not open: open it on every process before the program is compiled and run")
        }
    }
}

/// Whether a library, and CUDA's driver, can be loaded. Not collective.
///
/// # Errors
/// Why not.
pub fn probe(library: &str) -> core::result::Result<(), String> {
    sys::load(library)?;
    driver::load().map(drop).map_err(|error| error.0)
}

/// Starts cuDecomp for the GPU of this ordinal, unless it was started before. Collective.
///
/// # Errors
/// What doesn't load; a session with other members; or a failure, after which others may wait.
pub fn open(library: &str, ordinal: i32, member: Member) -> Result<()> {
    let mut session = lock();
    if let Some(open) = session.as_ref() {
        if open.member() == member {
            return Ok(());
        }
        let open = open.member();
        return result::refused(format!("cuDecomp is open for {open:?}; close it before opening it for {member:?}"));
    }
    let (api, queries) = sys::load(library).map_err(Error::Refused)?;
    let (driver, _) = driver::load().map_err(|error| Error::Refused(error.0))?;
    *session = Some(Session::open(api, queries, Device::new(driver, ordinal)?, member)?);
    Ok(())
}

/// Creates the descriptor of a grid, unless there is one. Collective. See [`Session::open_grid`].
///
/// # Errors
/// As there.
pub fn open_grid(grid: &Grid, item_bytes: usize, halo: i64) -> Result<()> {
    with_session(|session| session.open_grid(grid, item_bytes, halo))
}

/// Ends cuDecomp, if it was started. Collective.
///
/// # Errors
/// The library's or CUDA's.
pub fn close() -> Result<()> {
    lock().take().map_or(Ok(()), Session::close)
}
