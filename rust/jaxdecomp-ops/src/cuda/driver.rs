//! CUDA's driver API: on every machine that has a GPU.

use super::{Error, Opaque, Result, table};
use core::ffi::{CStr, c_char, c_int, c_uint};
use libloading::Library;

/// Memory that the driver locates by its address, on whichever device it is.
pub const UNIFIED: c_uint = 4;
/// A stream that doesn't wait for the default stream.
pub const NON_BLOCKING: c_uint = 1;
/// An event without a clock.
pub const DISABLE_TIMING: c_uint = 2;
/// Access to a peer that this process enabled before: XLA does.
pub const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;

/// `CUDA_MEMCPY2D`: rows of so many bytes, between two addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as in the header")]
pub struct Copy2d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_kind: c_uint,
    pub src_host: *const core::ffi::c_void,
    pub src: u64,
    pub src_array: Opaque,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_kind: c_uint,
    pub dst_host: Opaque,
    pub dst: u64,
    pub dst_array: Opaque,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Copy2d>() == 128 && offset_of!(Copy2d, src) == 32 && offset_of!(Copy2d, dst) == 88);
};

table! {
    /// Devices and their contexts.
    Driver {
        init = b"cuInit\0": unsafe extern "C" fn(c_uint) -> c_int,
        device_get = b"cuDeviceGet\0": unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
        primary_context_retain = b"cuDevicePrimaryCtxRetain\0": unsafe extern "C" fn(*mut Opaque, c_int) -> c_int,
        primary_context_release = b"cuDevicePrimaryCtxRelease_v2\0": unsafe extern "C" fn(c_int) -> c_int,
        context_set = b"cuCtxSetCurrent\0": unsafe extern "C" fn(Opaque) -> c_int,
        context_synchronize = b"cuCtxSynchronize\0": unsafe extern "C" fn() -> c_int,
        copy_async = b"cuMemcpyDtoDAsync_v2\0": unsafe extern "C" fn(u64, u64, usize, Opaque) -> c_int,
        error_string = b"cuGetErrorString\0": unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    }
}

table! {
    /// Streams, events, and copies from one device to another.
    Streams {
        can_access_peer = b"cuDeviceCanAccessPeer\0": unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
        enable_peer_access = b"cuCtxEnablePeerAccess\0": unsafe extern "C" fn(Opaque, c_uint) -> c_int,
        stream_create = b"cuStreamCreate\0": unsafe extern "C" fn(*mut Opaque, c_uint) -> c_int,
        stream_wait_event = b"cuStreamWaitEvent\0": unsafe extern "C" fn(Opaque, Opaque, c_uint) -> c_int,
        stream_synchronize = b"cuStreamSynchronize\0": unsafe extern "C" fn(Opaque) -> c_int,
        event_create = b"cuEventCreate\0": unsafe extern "C" fn(*mut Opaque, c_uint) -> c_int,
        event_record = b"cuEventRecord\0": unsafe extern "C" fn(Opaque, Opaque) -> c_int,
        event_destroy = b"cuEventDestroy_v2\0": unsafe extern "C" fn(Opaque) -> c_int,
        copy_2d_async = b"cuMemcpy2DAsync_v2\0": unsafe extern "C" fn(*const Copy2d, Opaque) -> c_int,
    }
}

impl Driver {
    /// The result of a function.
    ///
    /// # Errors
    /// CUDA's text for the code.
    pub fn check(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = core::ptr::null();
        // SAFETY: writes a pointer to a static string, or null.
        unsafe { (self.error_string)(code, &raw mut text) };
        let text = if text.is_null() {
            "unknown error".into()
        } else {
            // SAFETY: a string of the driver.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(Error(format!("{function}: {text} (CUDA error {code})")))
    }
}

/// Loads CUDA's driver.
///
/// # Errors
/// Why it doesn't load.
pub fn load() -> Result<(Driver, Streams)> {
    // SAFETY: CUDA's own library.
    let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| Error(error.to_string()))?;
    // Never unloaded: the tables' functions live as long as the process.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the symbols' types are those of cuda.h.
    let tables =
        unsafe { Driver::from_library(library).and_then(|driver| Ok((driver, Streams::from_library(library)?))) };
    tables.map_err(|missing| Error(format!("libcuda.so.1 has no {missing}")))
}
