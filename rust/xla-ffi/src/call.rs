//! One call of a handler.

use crate::attributes;
use crate::buffer::{Input, Output, slice};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::sys;
use core::cell::Cell;
use core::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Operands, results and attributes of one call.
pub struct Call<'a> {
    frame: *const sys::CallFrame,
    /// Bits of the results that have an owner.
    taken: Cell<u64>,
    lifetime: PhantomData<&'a sys::CallFrame>,
}

impl<'a> Call<'a> {
    pub(crate) fn frame(&self) -> &'a sys::CallFrame {
        // SAFETY: the runtime keeps the frame for the whole call, which is `'a`.
        unsafe { &*self.frame }
    }

    /// Checks the numbers of operands and results.
    ///
    /// # Errors
    /// If the numbers differ.
    pub fn expect_arity(&self, inputs: usize, outputs: usize) -> Result<()> {
        let got = (self.frame().args.size, self.frame().rets.size);
        if got == (inputs as i64, outputs as i64) {
            return Ok(());
        }
        Err(Error::invalid(format!("expected {inputs} operands and {outputs} results, got {} and {}", got.0, got.1)))
    }

    /// Returns operand `index`, named `name` in error messages.
    ///
    /// # Errors
    /// If it is missing.
    pub fn input(&self, index: usize, name: &'static str) -> Result<Input<'a>> {
        let args = &self.frame().args;
        // SAFETY: the runtime gives `size` types and operands.
        let raw = unsafe { buffer(args.size, args.types, args.args, index, name) }?;
        // SAFETY: an operand of a frame that lives for `'a`.
        unsafe { Input::new(raw, name) }
    }

    /// Returns result `index`, named `name` in error messages, once.
    ///
    /// # Errors
    /// If it is missing or was returned before.
    pub fn output(&self, index: usize, name: &'static str) -> Result<Output<'a>> {
        let rets = &self.frame().rets;
        // SAFETY: the runtime gives `size` types and results.
        let raw = unsafe { buffer(rets.size, rets.types, rets.rets, index, name) }?;
        let bit = 1_u64.checked_shl(index as u32).unwrap_or(0);
        if bit == 0 || self.taken.get() & bit != 0 {
            return Err(Error::internal(format!("result '{name}' was taken before, or its index is above 63")));
        }
        self.taken.set(self.taken.get() | bit);
        // SAFETY: a result of a frame that lives for `'a`, and `taken` makes this its only owner.
        unsafe { Output::new(raw, name) }
    }

    /// Integers of an array or scalar attribute.
    ///
    /// # Errors
    /// If it is missing or of another type.
    pub fn integers(&self, name: &str) -> Result<Vec<i64>> {
        // SAFETY: the frame is live.
        unsafe { attributes::find(&self.frame().attrs, name) }?.integers()
    }

    /// Floats of an array or scalar attribute.
    ///
    /// # Errors
    /// If it is missing or of another type.
    pub fn floats(&self, name: &str) -> Result<Vec<f64>> {
        // SAFETY: the frame is live.
        unsafe { attributes::find(&self.frame().attrs, name) }?.floats()
    }

    /// `N` integers of an attribute.
    ///
    /// # Errors
    /// If the attribute is missing, of another type or of another length.
    pub fn integer_array<const N: usize>(&self, name: &str) -> Result<[i64; N]> {
        self.integers(name)?.try_into().map_err(|got: Vec<i64>| wrong_length(name, N, got.len()))
    }

    /// `N` floats of an attribute.
    ///
    /// # Errors
    /// If the attribute is missing, of another type or of another length.
    pub fn float_array<const N: usize>(&self, name: &str) -> Result<[f64; N]> {
        self.floats(name)?.try_into().map_err(|got: Vec<f64>| wrong_length(name, N, got.len()))
    }

    /// Thread pool of the runtime.
    #[must_use]
    pub fn pool(&self) -> Pool<'a> {
        // SAFETY: the runtime's table and context outlive the call.
        unsafe { Pool::new(&*self.frame().api, self.frame().ctx) }
    }
}

fn wrong_length(name: &str, expected: usize, got: usize) -> Error {
    Error::invalid(format!("attribute '{name}': expected {expected} numbers, got {got}"))
}

/// # Safety
/// `types` and `values` have `size` entries.
unsafe fn buffer(
    size: i64,
    types: *const i32,
    values: *const *mut core::ffi::c_void,
    index: usize,
    name: &str,
) -> Result<*const sys::Buffer> {
    let size = usize::try_from(size).unwrap_or(0);
    // SAFETY: by contract.
    let (types, values) = unsafe { (slice(types, size), slice(values, size)) };
    match types.get(index) {
        Some(&sys::BUFFER) => Ok(values[index].cast()),
        Some(kind) => Err(Error::invalid(format!("'{name}': expected a buffer, got type {kind}"))),
        None => Err(Error::invalid(format!("'{name}': missing; the call has {size}"))),
    }
}

/// Stage at which a handler runs, and its traits.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    stage: core::ffi::c_int,
    traits: u32,
}

impl Role {
    /// Runs with the program.
    pub const EXECUTE: Self = Self { stage: sys::STAGE_EXECUTE, traits: 0 };
    /// Runs with the program, and always launches the same work: the runtime may record and replay it (CUDA graphs).
    pub const RECORDABLE: Self = Self { traits: sys::COMMAND_BUFFER_COMPATIBLE, ..Self::EXECUTE };
    /// Runs before the program, with the same operands and results.
    pub const INITIALIZE: Self = Self { stage: sys::STAGE_INITIALIZE, traits: 0 };
}

/// Fills in metadata or calls `body`; returns errors and panics to the runtime. See [`handler!`](crate::handler).
///
/// # Safety
/// `frame` is what the runtime passed to a handler.
#[must_use]
pub unsafe fn handle(frame: *mut sys::CallFrame, role: Role, body: fn(&Call<'_>) -> Result<()>) -> *mut sys::Error {
    // SAFETY: by contract.
    unsafe {
        if filled_metadata((*frame).extension_start, role) || (*frame).stage != role.stage {
            return core::ptr::null_mut();
        }
    }
    let call = Call { frame, taken: Cell::new(0), lifetime: PhantomData };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&call)))
        .unwrap_or_else(|payload| Err(Error::from_panic(payload.as_ref())));
    match outcome {
        Ok(()) => core::ptr::null_mut(),
        // SAFETY: the runtime's table is live.
        Err(error) => unsafe { error.into_raw(&*(*frame).api) },
    }
}

/// Fills in the metadata if an extension requests it.
///
/// # Safety
/// `extension` heads the list of a call frame.
unsafe fn filled_metadata(mut extension: *mut sys::ExtensionBase, role: Role) -> bool {
    while !extension.is_null() {
        // SAFETY: by contract; the type says what the extension is.
        unsafe {
            if (*extension).kind == sys::EXTENSION_METADATA {
                let metadata = (*extension.cast::<sys::MetadataExtension>()).metadata;
                (*metadata).api_version.major_version = sys::API_VERSION.0;
                (*metadata).api_version.minor_version = sys::API_VERSION.1;
                (*metadata).traits = role.traits;
                return true;
            }
            extension = (*extension).next;
        }
    }
    false
}

/// Defines a C function that XLA can call from a function `fn(&Call) -> Result<()>`, by default [`Role::EXECUTE`].
#[macro_export]
macro_rules! handler {
    ($(#[$doc:meta])* $name:ident => $body:expr) => {
        $crate::handler!($(#[$doc])* $name => $body, $crate::Role::EXECUTE);
    };
    ($(#[$doc:meta])* $name:ident => $body:expr, $role:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// For XLA to call, with a call frame.
        pub unsafe extern "C" fn $name(frame: *mut $crate::sys::CallFrame) -> *mut $crate::sys::Error {
            // SAFETY: XLA passes a call frame.
            unsafe { $crate::handle(frame, $role, $body) }
        }
    };
}
