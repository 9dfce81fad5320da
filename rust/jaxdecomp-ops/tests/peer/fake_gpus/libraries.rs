//! Fake CUDA driver and cuFFT, which record the work of streams.

use super::{CURRENT, Plan, Work, code, new_stream, push, with};
use jaxdecomp_ops::cuda::Opaque;
use jaxdecomp_ops::cuda::cufft::Cufft;
use jaxdecomp_ops::cuda::driver::{Copy2d, CopyEnd, Driver, MemoryHandle, Sharing, Streams};
use jaxdecomp_ops::peer::Libraries;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! constants {
    ($($name:ident($($argument:ty),*) = $code:literal;)*) => {
        $(unsafe extern "C" fn $name($(_: $argument),*) -> c_int { $code })*
    };
}
constants! {
    init(c_uint) = 0;
    release(c_int) = 0;
    synchronize() = 0;
    event_destroy(Opaque) = 0;
    destroy(c_int) = 0;
    free(u64) = 0;
    host_register(*mut c_void, usize, c_uint) = 0;
    error_string(c_int, *mut *const c_char) = 1;
}

unsafe extern "C" fn device_get(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: the caller's variable, here and below.
    unsafe { *device = ordinal };
    0
}
unsafe extern "C" fn retain(context: *mut Opaque, device: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *context = (100 + device) as usize as Opaque };
    0
}
unsafe extern "C" fn context_set(context: Opaque) -> c_int {
    CURRENT.set(context as usize as i32 - 100);
    0
}
unsafe extern "C" fn copy_async(dst: u64, src: u64, bytes: usize, stream: Opaque) -> c_int {
    let (src, dst) = (CopyEnd::new(src as usize, bytes), CopyEnd::new(dst as usize, bytes));
    let copy = Copy2d { src, dst, width: bytes, height: 1 };
    // SAFETY: of this function.
    unsafe { copy_2d_async(&raw const copy, stream) }
}
unsafe extern "C" fn can_access_peer(can: *mut c_int, _: c_int, _: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *can = 1 };
    0
}
unsafe extern "C" fn enable_peer_access(context: Opaque, _: c_uint) -> c_int {
    let new = with(|world| world.peer_access.insert((CURRENT.get(), context as usize as i32 - 100)));
    if new { 0 } else { 704 }
}
unsafe extern "C" fn stream_create(stream: *mut Opaque, _: c_uint) -> c_int {
    // SAFETY: as above.
    unsafe { *stream = new_stream(CURRENT.get()) };
    0
}
unsafe extern "C" fn stream_wait_event(stream: Opaque, event: Opaque, _: c_uint) -> c_int {
    push(stream, Work::Wait(event as usize));
    0
}
unsafe extern "C" fn stream_synchronize(stream: Opaque) -> c_int {
    with(|world| world.synchronized.push(stream as usize));
    0
}
unsafe extern "C" fn event_create(event: *mut Opaque, _: c_uint) -> c_int {
    let number = with(|world| {
        world.events += 1;
        world.events
    });
    // SAFETY: as above.
    unsafe { *event = number as Opaque };
    0
}
unsafe extern "C" fn event_record(event: Opaque, stream: Opaque) -> c_int {
    push(stream, Work::Record(event as usize));
    0
}
unsafe extern "C" fn copy_2d_async(copy: *const Copy2d, stream: Opaque) -> c_int {
    // SAFETY: as above.
    let copy = unsafe { *copy };
    with(|world| {
        let (from, to) = (world.gpu_of(copy.src.device), world.gpu_of(copy.dst.device));
        assert_eq!(from, CURRENT.get(), "copies start on the current GPU");
        assert!(from == to || world.peer_access.contains(&(from, to)), "{from} has no access to {to}");
    });
    push(stream, Work::Copy(copy));
    code("copy")
}

unsafe extern "C" fn write_value(stream: Opaque, address: u64, value: u32, _: c_uint) -> c_int {
    push(stream, Work::Write(address as usize, value));
    0
}
unsafe extern "C" fn wait_value(stream: Opaque, address: u64, value: u32, _: c_uint) -> c_int {
    push(stream, Work::WaitFor(address as usize, value));
    0
}
unsafe extern "C" fn allocate(address: *mut u64, bytes: usize) -> c_int {
    let memory = vec![f64::NAN; bytes / 8].leak().as_ptr() as usize;
    with(|world| world.memory.push((memory, memory + bytes, CURRENT.get())));
    // SAFETY: as above.
    unsafe { *address = memory as u64 };
    code("allocate")
}
unsafe extern "C" fn export(handle: *mut MemoryHandle, address: u64) -> c_int {
    // SAFETY: as above.
    unsafe { (&mut (*handle).0)[..8].copy_from_slice(&address.to_le_bytes()) };
    0
}
unsafe extern "C" fn open(address: *mut u64, handle: MemoryHandle, _: c_uint) -> c_int {
    let memory = u64::from_le_bytes(*handle.0.first_chunk().expect("64 bytes"));
    with(|world| {
        let gpu = world.gpu_of(memory);
        world.peer_access.insert((CURRENT.get(), gpu))
    });
    // SAFETY: as above.
    unsafe { *address = memory };
    0
}
unsafe extern "C" fn host_address(address: *mut u64, host: *mut c_void, _: c_uint) -> c_int {
    // SAFETY: as above.
    unsafe { *address = host as u64 };
    0
}

unsafe extern "C" fn create(plan: *mut c_int) -> c_int {
    let empty = Plan { dims: vec![], stride: 0, distances: [0; 2], batch: 0, kind: 0 };
    // SAFETY: as above.
    unsafe {
        *plan = with(|world| {
            world.plans.push(empty);
            world.plans.len() as c_int - 1
        });
    }
    0
}
unsafe extern "C" fn set_auto_allocation(_: c_int, on: c_int) -> c_int {
    on
}
unsafe extern "C" fn make_plan_many(
    plan: c_int,
    rank: c_int,
    dims: *const i64,
    before: *const i64,
    stride: i64,
    from: i64,
    after: *const i64,
    stride_after: i64,
    to: i64,
    kind: c_int,
    batch: i64,
    work: *mut usize,
) -> c_int {
    // SAFETY: as above; each points to `rank` numbers.
    let read = |p: *const i64| unsafe { std::slice::from_raw_parts(p, rank as usize) }.to_vec();
    let (dims, before, after) = (read(dims), read(before), read(after));
    let half = |dims: &[i64]| [&dims[..dims.len() - 1], &[dims[dims.len() - 1] / 2 + 1]].concat();
    let expected = match kind {
        0x2a | 0x6a => (dims.clone(), half(&dims)),
        0x2c | 0x6c => (half(&dims), dims.clone()),
        _ => (dims.clone(), dims.clone()),
    };
    assert_eq!((before, after), expected);
    assert_eq!(stride, stride_after);
    let dims = dims.iter().map(|&n| n as usize).collect();
    let distances = [from as usize, to as usize];
    let made = Plan { dims, stride: stride as usize, distances, batch: batch as usize, kind };
    let work_bytes = if made.dims.len() == 1 && made.dims[0] % 4 == 0 { 0 } else { 24 };
    with(|world| world.plans[plan as usize] = made);
    // SAFETY: as above.
    unsafe { *work = work_bytes };
    code("plan")
}

thread_local! {
    static STREAM: Cell<usize> = const { Cell::new(0) };
}
unsafe extern "C" fn set_stream(_: c_int, stream: Opaque) -> c_int {
    STREAM.set(stream as usize);
    0
}
unsafe extern "C" fn set_work_area(_: c_int, work: *mut c_void) -> c_int {
    assert!(!work.is_null(), "work area");
    0
}
unsafe extern "C" fn exec(plan: c_int, from: *mut c_void, to: *mut c_void) -> c_int {
    // SAFETY: the same.
    unsafe { exec_with_sign(plan, from, to, 0) }
}
unsafe extern "C" fn exec_with_sign(plan: c_int, from: *mut c_void, to: *mut c_void, sign: c_int) -> c_int {
    let work = Work::Transform { plan: plan as usize, from: from as usize, to: to as usize, sign: sign.into() };
    push(STREAM.get() as Opaque, work);
    let lines = with(|world| world.plans[plan as usize].dims.len() == 1);
    if lines { code("lines") } else { code("exec") }
}

pub const LIBRARIES: Libraries = Libraries {
    driver: Driver {
        init,
        device_get,
        primary_context_retain: retain,
        primary_context_release: release,
        context_set,
        context_synchronize: synchronize,
        copy_async,
        error_string,
    },
    streams: Streams {
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
        wait_value,
    },
    sharing: Sharing { allocate, free, export, open, close: free, host_register, host_address },
    fft: Cufft {
        create,
        destroy,
        set_auto_allocation,
        make_plan_many,
        set_stream,
        set_work_area,
        exec_r2c: exec,
        exec_c2r: exec,
        exec_c2c: exec_with_sign,
        exec_d2z: exec,
        exec_z2d: exec,
        exec_z2z: exec_with_sign,
    },
};
