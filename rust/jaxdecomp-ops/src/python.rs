//! The Python module: capsules for `jax.ffi.register_ffi_target`.

use crate::handlers;
use core::ffi::CStr;
use core::ptr::NonNull;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use xla_ffi::sys::Handler;

/// The name that XLA's own capsules bear.
const CAPSULE: &CStr = c"xla._CUSTOM_CALL_TARGET";

/// FFI targets of a platform ("cpu"), each a capsule for `jax.ffi.register_ffi_target`; none if it has none.
#[pyfunction]
fn targets<'py>(py: Python<'py>, platform: &str) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    if platform == "cpu" {
        for (name, handler) in handlers::CPU {
            dict.set_item(name, capsule(py, handler)?)?;
        }
    }
    Ok(dict)
}

fn capsule(py: Python<'_>, handler: Handler) -> PyResult<Bound<'_, PyCapsule>> {
    let pointer = NonNull::new(handler as *mut core::ffi::c_void).expect("functions have addresses");
    // SAFETY: a function lives as long as the process, and needs no destructor.
    unsafe { PyCapsule::new_with_pointer(py, pointer, CAPSULE) }
}

#[pymodule]
fn _jaxdecomp_ops(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(targets, module)?)
}
