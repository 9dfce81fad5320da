//! Errors on their way from a handler to the runtime.

use crate::sys;
use core::any::Any;
use core::fmt;
use core::mem::size_of;
use std::ffi::CString;

/// The canonical codes that handlers use (of Abseil's `StatusCode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The caller passed something wrong.
    InvalidArgument = 3,
    /// Something ran out, memory mostly.
    ResourceExhausted = 8,
    /// The platform lacks what is needed.
    Unimplemented = 12,
    /// A defect of the handler.
    Internal = 13,
}

/// What went wrong in a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub code: Code,
    /// What, expected, got.
    pub message: String,
}

/// Result of a handler or of anything that it calls.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// The caller passed something wrong.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into() }
    }

    /// A defect of the handler.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: Code::Internal, message: message.into() }
    }

    /// The same error, said to have happened in `what`.
    #[must_use]
    pub fn within(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    pub(crate) fn from_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("unknown cause");
        Self::internal(format!("panic in a native op (please report it): {text}"))
    }

    /// Gives an error back that a function of the API returned: such errors are the caller's to destroy.
    ///
    /// # Safety
    /// The runtime of `api` made the error, and nobody destroyed it.
    pub(crate) unsafe fn destroy(error: *mut sys::Error, api: &sys::Api) {
        if let Some(destroy) = api.error_destroy {
            let mut args = sys::ErrorDestroyArgs {
                struct_size: size_of::<sys::ErrorDestroyArgs>(),
                extension_start: core::ptr::null_mut(),
                error,
            };
            // SAFETY: by contract.
            unsafe { destroy(&raw mut args) };
        }
    }

    /// What the runtime says of an error of its own.
    ///
    /// # Safety
    /// The runtime of `api` made the error, and nobody destroyed it.
    pub(crate) unsafe fn text(error: *mut sys::Error, api: &sys::Api) -> String {
        let mut args = sys::ErrorGetMessageArgs {
            struct_size: size_of::<sys::ErrorGetMessageArgs>(),
            extension_start: core::ptr::null_mut(),
            error,
            message: core::ptr::null(),
        };
        if let Some(get) = api.error_get_message {
            // SAFETY: by contract.
            unsafe { get(&raw mut args) };
        }
        if args.message.is_null() {
            return "no reason given".to_owned();
        }
        // SAFETY: a string that lives as long as the error.
        unsafe { core::ffi::CStr::from_ptr(args.message) }.to_string_lossy().into_owned()
    }

    /// Hands the error to the runtime, which owns the result.
    ///
    /// # Safety
    /// `api` is the table of a live call frame.
    pub(crate) unsafe fn into_raw(self, api: &sys::Api) -> *mut sys::Error {
        let message = CString::new(self.message.replace('\0', " ")).unwrap_or_default();
        let mut args = sys::ErrorCreateArgs {
            struct_size: size_of::<sys::ErrorCreateArgs>(),
            extension_start: core::ptr::null_mut(),
            message: message.as_ptr(),
            errc: self.code as i32,
        };
        let create = api.error_create.expect("the runtime can create errors");
        // SAFETY: `args` is a complete argument struct; the runtime copies the message.
        unsafe { create(&raw mut args) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
