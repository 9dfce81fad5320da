//! Transposes and halos by cuDecomp, loaded at run time.
//!
//! A process has at most one [`Session`]. [`open`], [`open_grid`] and [`close`] are collective: every process calls them
//! explicitly and in the same order, never during tracing, in a handler or in a destructor. Handlers look up descriptors by
//! their [`Grid`], all of which is part of a compiled program: a program that another process compiled, or that was compiled
//! for a closed session, finds its own descriptor or none.

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

/// Calls `body` with the open session.
///
/// # Errors
/// If no session is open; errors of `body`.
pub fn with_session<T>(body: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
    match lock().as_mut() {
        Some(session) => body(session),
        None => result::invalid_argument("cuDecomp is not open; open it on every process before compiling the program"),
    }
}

/// Loads the library and CUDA's driver. Not collective.
///
/// # Errors
/// The reason why one of them fails to load.
pub fn probe(library: &str) -> core::result::Result<(), String> {
    sys::load(library)?;
    driver::load().map(drop).map_err(|error| error.0)
}

/// Opens a session on the GPU of an ordinal, unless it is open. Collective.
///
/// # Errors
/// A library that fails to load; an open session of another communicator; or a fatal failure.
pub fn open(library: &str, ordinal: i32, member: Member) -> Result<()> {
    let mut session = lock();
    if let Some(open) = session.as_ref() {
        if open.member() == member {
            return Ok(());
        }
        let open = open.member();
        return result::invalid_argument(format!(
            "cuDecomp is open for {open:?}; close it before opening it for {member:?}"
        ));
    }
    let (api, queries) = sys::load(library).map_err(Error::InvalidArgument)?;
    let tables = driver::load().map_err(|error| Error::InvalidArgument(error.0))?;
    *session = Some(Session::open(api, queries, Device::new(tables.driver, ordinal)?, member)?);
    Ok(())
}

/// Creates the descriptor of a grid, unless it exists. Collective. See [`Session::open_grid`].
///
/// # Errors
/// Errors of [`Session::open_grid`].
pub fn open_grid(grid: &Grid, item_bytes: usize, halo: i64) -> Result<()> {
    with_session(|session| session.open_grid(grid, item_bytes, halo))
}

/// Closes the session, if one is open. Collective.
///
/// # Errors
/// Errors of the library and of CUDA.
pub fn close() -> Result<()> {
    lock().take().map_or(Ok(()), Session::close)
}
