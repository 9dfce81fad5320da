//! What a call knows of the GPU on which it runs.

use crate::call::Call;
use crate::error::{Error, Result};
use crate::sys;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use core::ptr::null_mut;

/// Alignment that [`Call::device_memory`] asks for, in bytes. XLA refuses to hear of more; it gives 256.
const ALIGNMENT: usize = 16;

impl<'a> Call<'a> {
    /// The stream of a GPU on which the call's work belongs.
    ///
    /// # Errors
    /// If the runtime has none, as on the CPU.
    pub fn stream(&self) -> Result<*mut c_void> {
        let mut args = sys::StreamGetArgs {
            struct_size: size_of::<sys::StreamGetArgs>(),
            extension_start: null_mut(),
            ctx: self.frame().ctx,
            stream: null_mut(),
        };
        let get = self.api().stream_get.ok_or_else(|| Error::internal("the runtime has no streams"))?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { get(&raw mut args) };
        self.succeeded(error, "stream: this op runs on a GPU only")?;
        Ok(args.stream)
    }

    /// The number of the device among those that the process sees.
    ///
    /// # Errors
    /// If the runtime is older than API 0.3.
    pub fn device_ordinal(&self) -> Result<i32> {
        self.expect_recent()?;
        let mut args = sys::DeviceOrdinalGetArgs {
            struct_size: size_of::<sys::DeviceOrdinalGetArgs>(),
            extension_start: null_mut(),
            ctx: self.frame().ctx,
            device_ordinal: -1,
        };
        let get = self.api().device_ordinal_get.ok_or_else(too_old)?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { get(&raw mut args) };
        self.succeeded(error, "device")?;
        Ok(args.device_ordinal)
    }

    /// What all devices that run this execution of the program have in common, and no other execution.
    ///
    /// # Errors
    /// If the runtime is older than API 0.3.
    pub fn run_id(&self) -> Result<i64> {
        self.expect_recent()?;
        let mut args = sys::RunIdGetArgs {
            struct_size: size_of::<sys::RunIdGetArgs>(),
            extension_start: null_mut(),
            ctx: self.frame().ctx,
            run_id: 0,
        };
        let get = self.api().run_id_get.ok_or_else(too_old)?;
        // SAFETY: `args` is a complete argument struct.
        let error = unsafe { get(&raw mut args) };
        self.succeeded(error, "run")?;
        Ok(args.run_id)
    }

    /// Memory of the device for this call: what the stream does later may get the same memory again.
    ///
    /// # Errors
    /// If there is not enough, or the runtime gives none, as on the CPU.
    pub fn device_memory(&self, bytes: usize) -> Result<DeviceMemory<'a>> {
        let memory =
            DeviceMemory { api: self.api(), ctx: self.frame().ctx, bytes, data: null_mut(), call: PhantomData };
        if bytes == 0 {
            return Ok(memory);
        }
        let mut args = sys::DeviceMemoryAllocateArgs {
            struct_size: size_of::<sys::DeviceMemoryAllocateArgs>(),
            extension_start: null_mut(),
            ctx: self.frame().ctx,
            size: bytes,
            alignment: ALIGNMENT,
            data: null_mut(),
        };
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
        // SAFETY: the runtime made the error, and leaves it to us.
        let why = unsafe {
            let why = Error::text(error, self.api());
            Error::destroy(error, self.api());
            why
        };
        Err(Error::internal(format!("the runtime gave no {what} ({why})")))
    }

    /// Older runtimes have a shorter table.
    fn expect_recent(&self) -> Result<()> {
        // SAFETY: every table has this field.
        let size = unsafe { (*self.frame().api).struct_size };
        if size > offset_of!(sys::Api, device_ordinal_get) { Ok(()) } else { Err(too_old()) }
    }
}

fn too_old() -> Error {
    Error { code: crate::Code::Unimplemented, message: "this jaxlib is too old: it needs XLA's FFI 0.3".to_owned() }
}

/// Memory of a GPU that goes back to the runtime when dropped. Empty memory has no address.
pub struct DeviceMemory<'a> {
    api: &'a sys::Api,
    ctx: *mut sys::ExecutionContext,
    bytes: usize,
    data: *mut c_void,
    call: PhantomData<&'a sys::CallFrame>,
}

impl DeviceMemory<'_> {
    /// Where it begins.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        self.data
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        let (false, Some(free)) = (self.data.is_null(), self.api.device_memory_free) else { return };
        let mut args = sys::DeviceMemoryFreeArgs {
            struct_size: size_of::<sys::DeviceMemoryFreeArgs>(),
            extension_start: null_mut(),
            ctx: self.ctx,
            size: self.bytes,
            data: self.data,
        };
        // SAFETY: `args` is complete, and the runtime gave this memory.
        let error = unsafe { free(&raw mut args) };
        if !error.is_null() {
            // SAFETY: the runtime made the error, and leaves it to us.
            unsafe { Error::destroy(error, self.api) };
        }
    }
}
