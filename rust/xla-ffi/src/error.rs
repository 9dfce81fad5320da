//! Errors of handlers and of the runtime.

use crate::sys::{self, args};
use core::any::Any;
use core::fmt;
use std::ffi::CString;

/// The canonical codes that handlers use (of Abseil's `StatusCode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The caller passed an invalid argument.
    InvalidArgument = 3,
    /// Memory or another resource is exhausted.
    ResourceExhausted = 8,
    /// The platform lacks a required feature.
    Unimplemented = 12,
    /// A defect of the handler.
    Internal = 13,
}

/// Failure of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Kind of failure.
    pub code: Code,
    /// Description: what, expected, got.
    pub message: String,
}

/// Result of a handler.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// Error of an invalid argument.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into() }
    }

    /// Error of a defect of the handler.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: Code::Internal, message: message.into() }
    }

    /// Prefixes the message with `what`.
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

    /// Destroys an error that a function of the API returned.
    ///
    /// # Safety
    /// The runtime of `api` created the error, and it has not been destroyed.
    pub(crate) unsafe fn destroy(error: *mut sys::Error, api: &sys::Api) {
        if let Some(destroy) = api.error_destroy {
            let mut args = args!(ErrorDestroyArgs { error });
            // SAFETY: by contract.
            unsafe { destroy(&raw mut args) };
        }
    }

    /// Message of an error that a function of the API returned.
    ///
    /// # Safety
    /// The runtime of `api` created the error, and it has not been destroyed.
    pub(crate) unsafe fn text(error: *mut sys::Error, api: &sys::Api) -> String {
        let mut args = args!(ErrorGetMessageArgs { error, message: core::ptr::null() });
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

    /// Converts the error to one that the runtime owns.
    ///
    /// # Safety
    /// `api` is the table of a live call frame.
    pub(crate) unsafe fn into_raw(self, api: &sys::Api) -> *mut sys::Error {
        let message = CString::new(self.message.replace('\0', " ")).unwrap_or_default();
        let mut args = args!(ErrorCreateArgs { message: message.as_ptr(), errc: self.code as i32 });
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
