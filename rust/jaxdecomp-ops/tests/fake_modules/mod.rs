//! A fake CUDA driver of one GPU that loads modules.

#![allow(unreachable_pub, reason = "private to a test")]

use jaxdecomp_ops::cuda::Opaque;
use jaxdecomp_ops::cuda::driver::{Copy2d, Driver, Launch, MemoryHandle, Sharing, Streams, Tables};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Compute capability of the GPU, as 10 * major + minor.
pub const CAPABILITY: c_int = 90;
/// Start of images that do not load.
pub const REFUSED: &[u8] = b"an image of another driver";

thread_local! {
    static LOADS: Cell<usize> = const { Cell::new(0) };
    static REFUSE_ALL: Cell<bool> = const { Cell::new(false) };
}

/// Number of calls that load a module, on this thread.
pub fn loads() -> usize {
    LOADS.get()
}

/// Whether no image loads, on this thread.
pub fn refuse_all(refuse: bool) {
    REFUSE_ALL.set(refuse);
}

unsafe extern "C" fn module_load(module: *mut Opaque, image: *const c_void) -> c_int {
    LOADS.set(LOADS.get() + 1);
    // SAFETY: compiled images are longer; the caller's variable.
    unsafe {
        *module = 1 as Opaque;
        let refused = std::slice::from_raw_parts(image.cast::<u8>(), REFUSED.len()) == REFUSED;
        if refused || REFUSE_ALL.get() { 200 } else { 0 }
    }
}

unsafe extern "C" fn device_attribute(value: *mut c_int, attribute: c_int, _: c_int) -> c_int {
    // SAFETY: the caller's variable, here and below.
    unsafe {
        *value = match attribute {
            75 => CAPABILITY / 10,
            76 => CAPABILITY % 10,
            _ => 100,
        };
    }
    0
}

unsafe extern "C" fn context_retain(context: *mut Opaque, _: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *context = 1 as Opaque };
    0
}

macro_rules! unused {
    ($($name:ident($($argument:ty),*);)*) => {
        $(unsafe extern "C" fn $name($(_: $argument),*) -> c_int { 0 })*
    };
}
unused! {
    init(c_uint);
    device_get(*mut c_int, c_int);
    context_release(c_int);
    context_set(Opaque);
    context_synchronize();
    copy_async(u64, u64, usize, Opaque);
    error_string(c_int, *mut *const c_char);
    can_access_peer(*mut c_int, c_int, c_int);
    enable_peer_access(Opaque, c_uint);
    stream_create(*mut Opaque, c_uint);
    stream_wait_event(Opaque, Opaque, c_uint);
    stream_synchronize(Opaque);
    event_create(*mut Opaque, c_uint);
    event_record(Opaque, Opaque);
    event_destroy(Opaque);
    copy_2d_async(*const Copy2d, Opaque);
    write_value(Opaque, u64, u32, c_uint);
    allocate(*mut u64, usize);
    free(u64);
    export(*mut MemoryHandle, u64);
    open(*mut u64, MemoryHandle, c_uint);
    host_register(*mut c_void, usize, c_uint);
    host_address(*mut u64, *mut c_void, c_uint);
    module_function(*mut Opaque, Opaque, *const c_char);
    function_set(Opaque, c_int, c_int);
    memset_async(u64, u8, usize, Opaque);
}

unsafe extern "C" fn launch(
    _: Opaque,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: Opaque,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> c_int {
    0
}

/// The functions of the driver.
pub fn tables() -> Tables {
    let driver = Driver {
        init,
        device_get,
        primary_context_retain: context_retain,
        primary_context_release: context_release,
        context_set,
        context_synchronize,
        copy_async,
        error_string,
    };
    let streams = Streams {
        can_access_peer,
        enable_peer_access,
        stream_create,
        stream_wait_event,
        stream_synchronize,
        event_create,
        event_record,
        event_destroy,
        copy_2d_async,
        write_value,
        wait_value: write_value,
    };
    let sharing = Sharing { allocate, free, export, open, close: free, host_register, host_address };
    let launch = Launch { device_attribute, module_load, module_function, function_set, launch, memset_async };
    Tables { driver, streams, sharing, launch }
}
