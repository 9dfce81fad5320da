//! Libraries loaded at run time, and tables of their functions.

use super::{Error, Result};
use libloading::Library;

/// Defines a struct of the functions of a library.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "named as in the header")]
        pub struct $name {
            $(pub $field: $type),*
        }

        impl $name {
            /// Looks up all functions; fails with the name of a missing one.
            ///
            /// # Safety
            /// The functions have these types, and the library is never unloaded.
            unsafe fn from_library(library: &libloading::Library) -> core::result::Result<Self, &'static str> {
                $(
                    // SAFETY: by contract.
                    let found = unsafe { library.get::<$type>($symbol) };
                    let $field = *found.map_err(|_| {
                        let name = core::ffi::CStr::from_bytes_with_nul($symbol).ok();
                        name.and_then(|name| name.to_str().ok()).unwrap_or("?")
                    })?;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(crate) use table;

/// Opens the first candidate path or name of a library that loads; returns it and its candidate.
///
/// # Errors
/// The reason why the last candidate fails to load.
pub(crate) fn open_first<'a>(name: &str, candidates: &'a [String]) -> Result<(&'static Library, &'a str)> {
    let mut reason = "no candidate path".to_owned();
    for candidate in candidates {
        // SAFETY: a library of NVIDIA, whose initialisers are safe to run.
        match unsafe { Library::new(candidate) } {
            // Never unloaded, since tables hold its functions.
            Ok(library) => return Ok((Box::leak(Box::new(library)), candidate)),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(Error(format!("{name} does not load: {reason}")))
}
