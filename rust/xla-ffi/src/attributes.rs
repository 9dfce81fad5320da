//! Attributes by name: numbers and arrays of numbers.

use crate::buffer::{Dtype, slice};
use crate::error::{Error, Result};
use crate::sys::{self, dtype};
use core::ffi::c_int;

/// Numbers of an array attribute, or the number of a scalar attribute.
pub(crate) struct Numbers<'a> {
    name: &'a str,
    dtype: Dtype,
    len: usize,
    data: *const core::ffi::c_void,
}

impl Numbers<'_> {
    /// Accepts 64- and 32-bit integers: JAX passes either, depending on its configuration.
    pub(crate) fn integers(&self) -> Result<Vec<i64>> {
        match self.dtype.0 {
            // SAFETY: the runtime gives `len` values of type `dtype`.
            dtype::S64 => Ok(unsafe { slice(self.data.cast::<i64>(), self.len) }.to_vec()),
            // SAFETY: as above.
            dtype::S32 => Ok(unsafe { slice(self.data.cast::<i32>(), self.len) }.iter().map(|&x| x.into()).collect()),
            _ => Err(self.mismatch("integers (s64 or s32)")),
        }
    }

    pub(crate) fn floats(&self) -> Result<Vec<f64>> {
        match self.dtype.0 {
            // SAFETY: the runtime gives `len` values of type `dtype`.
            dtype::F64 => Ok(unsafe { slice(self.data.cast::<f64>(), self.len) }.to_vec()),
            // SAFETY: as above.
            dtype::F32 => Ok(unsafe { slice(self.data.cast::<f32>(), self.len) }.iter().map(|&x| x.into()).collect()),
            _ => Err(self.mismatch("floats (f64 or f32)")),
        }
    }

    fn mismatch(&self, expected: &str) -> Error {
        Error::invalid(format!("attribute '{}': expected {expected}, got {}", self.name, self.dtype))
    }
}

/// Numbers of an attribute.
///
/// # Safety
/// `attrs` belongs to a live call frame.
pub(crate) unsafe fn find<'a>(attrs: &sys::Attrs, name: &'a str) -> Result<Numbers<'a>> {
    let size = usize::try_from(attrs.size).unwrap_or(0);
    // SAFETY: the runtime gives `size` names, types and values.
    let names = unsafe { slice(attrs.names, size) };
    let found = names.iter().position(|&span| {
        // SAFETY: each points to a span of `len` bytes.
        let span = unsafe { &*span };
        // SAFETY: as above.
        unsafe { slice(span.ptr.cast::<u8>(), span.len) == name.as_bytes() }
    });
    let index = found.ok_or_else(|| Error::invalid(format!("attribute '{name}' is missing")))?;
    // SAFETY: `index < size`.
    let (kind, value) = unsafe { (*attrs.types.add(index), *attrs.attrs.add(index)) };
    // SAFETY: `value` points to what `kind` says.
    unsafe { numbers(name, kind, value) }
}

/// # Safety
/// `value` points to an attribute of type `kind`.
unsafe fn numbers(name: &str, kind: c_int, value: *mut core::ffi::c_void) -> Result<Numbers<'_>> {
    match kind {
        sys::ATTR_ARRAY => {
            // SAFETY: by contract.
            let array = unsafe { &*value.cast::<sys::Array>() };
            Ok(Numbers { name, dtype: Dtype(array.dtype), len: array.size, data: array.data })
        }
        sys::ATTR_SCALAR => {
            // SAFETY: by contract.
            let scalar = unsafe { &*value.cast::<sys::Scalar>() };
            Ok(Numbers { name, dtype: Dtype(scalar.dtype), len: 1, data: scalar.value })
        }
        _ => {
            Err(Error::invalid(format!("attribute '{name}': expected a number or an array, got attribute type {kind}")))
        }
    }
}
