//! Stream, device and memory of calls on a GPU, with a fake runtime.

use std::ffi::{CStr, CString, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use xla_ffi::{Call, Code, Error, Result, Role, sys};

/// The errors of this runtime are boxed C strings.
fn error(why: &CStr) -> *mut sys::Error {
    Box::into_raw(Box::new(why.to_owned())).cast()
}

unsafe extern "C" fn create_error(args: *mut sys::ErrorCreateArgs) -> *mut sys::Error {
    // SAFETY: the crate under test passes complete arguments, here and below.
    error(unsafe { CStr::from_ptr((*args).message) })
}

unsafe extern "C" fn message(args: *mut sys::ErrorGetMessageArgs) {
    // SAFETY: as above.
    unsafe { (*args).message = (*(*args).error.cast::<CString>()).as_ptr() };
}

unsafe extern "C" fn destroy(args: *mut sys::ErrorDestroyArgs) {
    // SAFETY: made by `error`.
    drop(unsafe { Box::from_raw((*args).error.cast::<CString>()) });
}

unsafe extern "C" fn stream(args: *mut sys::StreamGetArgs) -> *mut sys::Error {
    // SAFETY: as above.
    unsafe { (*args).stream = 0x77 as *mut c_void };
    null_mut()
}

unsafe extern "C" fn no_stream(_: *mut sys::StreamGetArgs) -> *mut sys::Error {
    error(c"there are no streams here")
}

unsafe extern "C" fn run_id(args: *mut sys::RunIdGetArgs) -> *mut sys::Error {
    // SAFETY: as above.
    unsafe { (*args).run_id = 12 };
    null_mut()
}

unsafe extern "C" fn ordinal(args: *mut sys::DeviceOrdinalGetArgs) -> *mut sys::Error {
    // SAFETY: as above.
    unsafe { (*args).device_ordinal = 3 };
    null_mut()
}

/// Number of allocated bytes.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Rejects alignments above 16, as XLA does.
unsafe extern "C" fn allocate(args: *mut sys::DeviceMemoryAllocateArgs) -> *mut sys::Error {
    // SAFETY: as above.
    let args = unsafe { &mut *args };
    if args.alignment > 16 {
        return error(c"Unsupported alignment");
    }
    if args.size > 1000 {
        return error(c"Out of memory");
    }
    ALLOCATED.fetch_add(args.size, SeqCst);
    args.data = 0x100 as *mut c_void;
    null_mut()
}

unsafe extern "C" fn free(args: *mut sys::DeviceMemoryFreeArgs) -> *mut sys::Error {
    // SAFETY: as above.
    let args = unsafe { &*args };
    assert_eq!(args.data as usize, 0x100);
    ALLOCATED.fetch_sub(args.size, SeqCst);
    null_mut()
}

fn ask(body: fn(&Call<'_>) -> Result<()>, change: impl FnOnce(&mut sys::Api)) -> Option<String> {
    // SAFETY: null pointers and absent functions are values of all fields.
    let (mut api, mut frame): (sys::Api, sys::CallFrame) = unsafe { (zeroed(), zeroed()) };
    api.struct_size = size_of::<sys::Api>();
    api.error_create = Some(create_error);
    api.error_get_message = Some(message);
    api.error_destroy = Some(destroy);
    api.stream_get = Some(stream);
    api.run_id_get = Some(run_id);
    api.device_ordinal_get = Some(ordinal);
    api.device_memory_allocate = Some(allocate);
    api.device_memory_free = Some(free);
    change(&mut api);
    (frame.api, frame.stage) = (&raw const api, sys::STAGE_EXECUTE);
    // SAFETY: a complete frame.
    let error = unsafe { xla_ffi::handle(&raw mut frame, Role::EXECUTE, body) };
    // SAFETY: made by `error`.
    (!error.is_null()).then(|| unsafe { *Box::from_raw(error.cast::<CString>()) }.into_string().expect("UTF-8"))
}

#[test]
fn a_gpu_has_a_stream_a_run_and_an_ordinal() {
    let body = |call: &Call<'_>| {
        assert_eq!((call.stream()? as usize, call.run_id()?, call.device_ordinal()?), (0x77, 12, 3));
        Ok(())
    };
    assert_eq!(ask(body, |_| ()), None);
    let text = ask(body, |api| api.stream_get = Some(no_stream));
    let expected = "the runtime returned no stream: this op runs on a GPU only (there are no streams here)";
    assert_eq!(text.as_deref(), Some(expected));
}

#[test]
fn an_older_runtime_ends_earlier() {
    let old = |api: &mut sys::Api| api.struct_size = std::mem::offset_of!(sys::Api, future_create);
    let expected = Some("this jaxlib is too old; XLA FFI 0.3 is required");
    assert_eq!(ask(|call| call.run_id().map(drop), old).as_deref(), expected);
    assert_eq!(ask(|call| call.device_ordinal().map(drop), old).as_deref(), expected);
}

#[test]
fn memory_is_freed_at_the_end_of_a_call() {
    let body = |call: &Call<'_>| {
        let mut memory = call.device_memory(24)?;
        assert_eq!((memory.as_mut_ptr() as usize, ALLOCATED.load(SeqCst)), (0x100, 24));
        assert!(call.device_memory(0)?.as_mut_ptr().is_null());
        let Err(Error { code, message }) = call.device_memory(2000).map(drop) else { panic!("there is no more") };
        assert_eq!(code, Code::ResourceExhausted);
        assert_eq!(message, "the runtime returned no memory of 2000 bytes (Out of memory)");
        Ok(())
    };
    assert_eq!(ask(body, |_| ()), None);
    assert_eq!(ALLOCATED.load(SeqCst), 0);
}
