//! Tables of functions of a library.

/// Defines a struct of functions and how to find them in a library.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "named as in the header")]
        pub struct $name {
            $(pub $field: $type),*
        }

        impl $name {
            /// The functions of a library, or the name of one that it lacks.
            ///
            /// # Safety
            /// The library's functions of these names have these types, and it is never unloaded.
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
