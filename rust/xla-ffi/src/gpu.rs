//! Stream, device and memory of a call on a GPU.

use crate::call::Call;
use crate::error::{Error, Result};
use crate::sys::{self, args};
use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::null_mut;

/// Alignment requested by [`Call::device_memory`] [bytes]. XLA rejects larger values, but aligns to 256.
const ALIGNMENT: usize = 16;

impl<'a> Call<'a> {
    /// GPU stream of the call.
    ///
    /// # Errors
    /// If the runtime has no streams, as on the CPU.
    pub fn stream(&self) -> Result<*mut c_void> {
        let mut args = args!(StreamGetArgs { ctx: self.frame().ctx, stream: null_mut() });
        let get = self.api().stream_get.ok_or_else(|| Error::internal("the runtime has no streams"))?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { get(&raw mut args) };
        self.succeeded(error, "stream: this op runs on a GPU only")?;
        Ok(args.stream)
    }

    /// Ordinal of the device among those visible to the process.
    ///
    /// # Errors
    /// If the runtime is older than API 0.3.
    pub fn device_ordinal(&self) -> Result<i32> {
        self.expect_recent()?;
        let mut args = args!(DeviceOrdinalGetArgs { ctx: self.frame().ctx, device_ordinal: -1 });
        let get = self.api().device_ordinal_get.ok_or_else(too_old)?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { get(&raw mut args) };
        self.succeeded(error, "device")?;
        Ok(args.device_ordinal)
    }

    /// Number of this execution of the program, equal on all its devices.
    ///
    /// # Errors
    /// If the runtime is older than API 0.3.
    pub fn run_id(&self) -> Result<i64> {
        self.expect_recent()?;
        let mut args = args!(RunIdGetArgs { ctx: self.frame().ctx, run_id: 0 });
        let get = self.api().run_id_get.ok_or_else(too_old)?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { get(&raw mut args) };
        self.succeeded(error, "run")?;
        Ok(args.run_id)
    }

    /// Allocates device memory for this call. Later work of the stream may reuse it.
    ///
    /// # Errors
    /// If memory is exhausted, or the runtime has no allocator, as on the CPU.
    pub fn device_memory(&self, bytes: usize) -> Result<DeviceMemory<'a>> {
        let memory =
            DeviceMemory { api: self.api(), ctx: self.frame().ctx, bytes, data: null_mut(), call: PhantomData };
        if bytes == 0 {
            return Ok(memory);
        }
        let mut args = args!(DeviceMemoryAllocateArgs {
            ctx: self.frame().ctx,
            size: bytes,
            alignment: ALIGNMENT,
            data: null_mut(),
        });
        let allocate = self.api().device_memory_allocate.ok_or_else(|| Error::internal("the runtime has no memory"))?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { allocate(&raw mut args) };
        let exhausted = |error| Error { code: crate::Code::ResourceExhausted, ..error };
        self.succeeded(error, &format!("memory of {bytes} bytes")).map_err(exhausted)?;
        Ok(DeviceMemory { data: args.data, ..memory })
    }

    fn api(&self) -> &'a sys::Api {
        // SAFETY: the runtime's table outlives the call.
        unsafe { &*self.frame().api }
    }

    fn succeeded(&self, error: *mut sys::Error, what: &str) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the runtime created the error, which the caller destroys.
        let why = unsafe {
            let why = Error::text(error, self.api());
            Error::destroy(error, self.api());
            why
        };
        Err(Error::internal(format!("the runtime returned no {what} ({why})")))
    }

    /// Checks that the runtime's table is recent enough.
    fn expect_recent(&self) -> Result<()> {
        // SAFETY: every table has this field.
        let size = unsafe { (*self.frame().api).struct_size };
        if size > offset_of!(sys::Api, device_ordinal_get) { Ok(()) } else { Err(too_old()) }
    }
}

fn too_old() -> Error {
    Error { code: crate::Code::Unimplemented, message: "this jaxlib is too old; XLA FFI 0.3 is required".to_owned() }
}

/// Device memory that is freed when dropped. The address of empty memory is null.
pub struct DeviceMemory<'a> {
    api: &'a sys::Api,
    ctx: *mut sys::ExecutionContext,
    bytes: usize,
    data: *mut c_void,
    call: PhantomData<&'a sys::CallFrame>,
}

impl DeviceMemory<'_> {
    /// Address of the memory.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        self.data
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        let (false, Some(free)) = (self.data.is_null(), self.api.device_memory_free) else { return };
        let mut args = args!(DeviceMemoryFreeArgs { ctx: self.ctx, size: self.bytes, data: self.data });
        // SAFETY: `args` is complete, and the runtime allocated this memory.
        let error = unsafe { free(&raw mut args) };
        if !error.is_null() {
            // SAFETY: the runtime created the error, which the caller destroys.
            unsafe { Error::destroy(error, self.api) };
        }
    }
}
