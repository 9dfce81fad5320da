//! The GPU of this process.

use super::result::{Result, check_cuda};
use super::sys::{Driver, Opaque};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// A GPU, by the context that XLA and the CUDA runtime share.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: Driver,
    number: c_int,
    context: Opaque,
}

impl Device {
    /// The GPU of this ordinal.
    ///
    /// # Errors
    /// CUDA's own.
    pub fn new(driver: Driver, ordinal: i32) -> Result<Self> {
        let (mut number, mut context) = (0, null_mut());
        // SAFETY: the driver writes to the two variables.
        unsafe {
            check_cuda(&driver, "cuInit", (driver.init)(0))?;
            check_cuda(&driver, "cuDeviceGet", (driver.device_get)(&raw mut number, ordinal))?;
            let code = (driver.primary_context_retain)(&raw mut context, number);
            check_cuda(&driver, "cuDevicePrimaryCtxRetain", code)?;
        }
        Ok(Self { driver, number, context })
    }

    /// Makes the GPU the calling thread's. Every entry begins with it: which thread calls is XLA's choice.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained.
        check_cuda(&self.driver, "cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.context) })
    }

    /// Waits for all that the GPU has to do.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: takes no arguments.
        check_cuda(&self.driver, "cuCtxSynchronize", unsafe { (self.driver.context_synchronize)() })
    }

    /// Copies device memory, on the stream.
    ///
    /// # Safety
    /// Both are device memory of so many bytes.
    pub(super) unsafe fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize, stream: Opaque) -> Result<()> {
        // SAFETY: by contract.
        let code = unsafe { (self.driver.copy_async)(to as u64, from as u64, bytes, stream) };
        check_cuda(&self.driver, "cuMemcpyDtoDAsync", code)
    }

    /// Gives the context back; it lives on as long as XLA holds it.
    pub(super) fn release(&self) -> Result<()> {
        // SAFETY: retained once, released once.
        let code = unsafe { (self.driver.primary_context_release)(self.number) };
        check_cuda(&self.driver, "cuDevicePrimaryCtxRelease", code)
    }
}
