//! CUDA's driver API.

use super::library::{open_first, table};
use super::{Error, Opaque, Result};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;

type LaunchKernel = unsafe extern "C" fn(
    Opaque,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Opaque,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// Memory type of addresses that identify their device (unified addressing).
pub const UNIFIED: c_uint = 4;
/// Flag of streams that do not synchronize with the default stream.
pub const NON_BLOCKING: c_uint = 1;
/// Flag of events without timing.
pub const DISABLE_TIMING: c_uint = 2;
/// Flags of registered host memory: of every context, and mapped into the memory of devices.
pub const PORTABLE_AND_MAPPED: c_uint = 3;
/// Flag that enables access to the other GPU with memory of another process.
pub const ENABLE_PEER_ACCESS: c_uint = 1;
/// Error code for peer access that is already enabled, as XLA does.
pub const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;

/// Handle of an allocation for other processes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryHandle(pub [u8; 64]);

/// Source or destination of [`Copy2d`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as in the header")]
pub struct CopyEnd {
    pub x: usize,
    pub y: usize,
    pub kind: c_uint,
    pub host: Opaque,
    pub device: u64,
    pub array: Opaque,
    pub pitch: usize,
}

impl CopyEnd {
    /// Rows at an address, `pitch` bytes apart.
    #[must_use]
    pub fn new(address: usize, pitch: usize) -> Self {
        Self { x: 0, y: 0, kind: UNIFIED, host: null_mut(), device: address as u64, array: null_mut(), pitch }
    }
}

/// `CUDA_MEMCPY2D`: a copy of `height` rows of `width` bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as in the header")]
pub struct Copy2d {
    pub src: CopyEnd,
    pub dst: CopyEnd,
    pub width: usize,
    pub height: usize,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Copy2d>() == 128 && offset_of!(CopyEnd, device) == 32 && offset_of!(Copy2d, dst) == 56);
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
        write_value = b"cuStreamWriteValue32_v2\0": unsafe extern "C" fn(Opaque, u64, u32, c_uint) -> c_int,
        wait_value = b"cuStreamWaitValue32_v2\0": unsafe extern "C" fn(Opaque, u64, u32, c_uint) -> c_int,
    }
}

table! {
    /// Memory shared between processes.
    Sharing {
        allocate = b"cuMemAlloc_v2\0": unsafe extern "C" fn(*mut u64, usize) -> c_int,
        free = b"cuMemFree_v2\0": unsafe extern "C" fn(u64) -> c_int,
        export = b"cuIpcGetMemHandle\0": unsafe extern "C" fn(*mut MemoryHandle, u64) -> c_int,
        open = b"cuIpcOpenMemHandle_v2\0": unsafe extern "C" fn(*mut u64, MemoryHandle, c_uint) -> c_int,
        close = b"cuIpcCloseMemHandle\0": unsafe extern "C" fn(u64) -> c_int,
        host_register = b"cuMemHostRegister_v2\0": unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
        host_address = b"cuMemHostGetDevicePointer_v2\0": unsafe extern "C" fn(*mut u64, *mut c_void, c_uint) -> c_int,
    }
}

table! {
    /// Modules and launches of kernels.
    Launch {
        device_attribute = b"cuDeviceGetAttribute\0": unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
        module_load = b"cuModuleLoadData\0": unsafe extern "C" fn(*mut Opaque, *const c_void) -> c_int,
        module_function = b"cuModuleGetFunction\0": unsafe extern "C" fn(*mut Opaque, Opaque, *const c_char) -> c_int,
        function_set = b"cuFuncSetAttribute\0": unsafe extern "C" fn(Opaque, c_int, c_int) -> c_int,
        launch = b"cuLaunchKernel\0": LaunchKernel,
        memset_async = b"cuMemsetD8Async\0": unsafe extern "C" fn(u64, u8, usize, Opaque) -> c_int,
    }
}

/// All tables of the driver.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as the tables")]
pub struct Tables {
    pub driver: Driver,
    pub streams: Streams,
    pub sharing: Sharing,
    pub launch: Launch,
}

impl Driver {
    /// Converts the code returned by a function.
    ///
    /// # Errors
    /// CUDA's description of the code.
    pub fn check(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = core::ptr::null();
        // SAFETY: writes a pointer to a static string or null.
        unsafe { (self.error_string)(code, &raw mut text) };
        let text = if text.is_null() {
            "unknown error".into()
        } else {
            // SAFETY: a static string of the driver.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(Error(format!("{function}: {text} (CUDA error {code})")))
    }
}

/// Loads CUDA's driver.
///
/// # Errors
/// The reason why it fails to load.
pub fn load() -> Result<Tables> {
    let name = ["libcuda.so.1".to_owned()];
    let (library, _) = open_first("CUDA's driver", &name)?;
    // SAFETY: the symbols' types are those of cuda.h.
    let tables = unsafe {
        Driver::from_library(library).and_then(|driver| {
            let (streams, sharing) = (Streams::from_library(library)?, Sharing::from_library(library)?);
            Ok(Tables { driver, streams, sharing, launch: Launch::from_library(library)? })
        })
    };
    tables.map_err(|missing| Error(format!("libcuda.so.1 has no {missing}")))
}
