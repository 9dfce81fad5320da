//! GPUs that are made up: their memory is the host's, and their streams do what they are told only afterwards, in a random
//! order that streams and events allow. A missing event shows as wrong values.

#![allow(unreachable_pub, reason = "shared by tests")]

use jaxdecomp_ops::cuda::Opaque;
use jaxdecomp_ops::cuda::cufft::Cufft;
use jaxdecomp_ops::cuda::driver::{Copy2d, Driver, Streams};
use jaxdecomp_ops::peer::Libraries;
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::f64::consts::TAU;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A complex number.
pub type Complex = [f64; 2];

/// What a stream has to do.
pub enum Work {
    Record(usize),
    Wait(usize),
    Copy(Copy2d),
    Transform {
        plan: usize,
        from: usize,
        to: usize,
        sign: i64,
    },
    /// What ran before and after on XLA's stream overwrites memory of so many numbers.
    Spoil(usize, usize),
}

#[derive(Default)]
pub struct World {
    /// GPU and work of each stream.
    streams: Vec<(i32, VecDeque<Work>)>,
    events: usize,
    plans: Vec<Plan>,
    /// Pairs of GPUs of which the first may write into the memory of the second.
    reach: BTreeSet<(i32, i32)>,
    /// Beginning, end and GPU of what was allocated.
    pub memory: Vec<(usize, usize, i32)>,
    /// Streams that were waited for by the host.
    pub synchronized: Vec<usize>,
    /// A function that fails on a GPU.
    pub failing: Option<(&'static str, i32)>,
}

#[derive(Clone)]
pub struct Plan {
    dims: Vec<usize>,
    stride: usize,
    distances: [usize; 2],
    batch: usize,
    kind: c_int,
}

// SAFETY: addresses are only looked at by one test at a time.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// One test at a time.
static TEST: Mutex<()> = Mutex::new(());

thread_local! {
    pub static CURRENT: Cell<i32> = const { Cell::new(-1) };
    /// Whether streams forget to wait.
    pub static FORGETFUL: Cell<bool> = const { Cell::new(false) };
}

pub fn with<T>(body: impl FnOnce(&mut World) -> T) -> T {
    body(WORLD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

pub fn begin() -> MutexGuard<'static, ()> {
    let guard = TEST.lock().unwrap_or_else(PoisonError::into_inner);
    with(|world| *world = World::default());
    guard
}

fn code(function: &'static str) -> c_int {
    with(|world| if world.failing == Some((function, CURRENT.get())) { 2 } else { 0 })
}

pub fn push(stream: Opaque, work: Work) {
    with(|world| {
        let (gpu, queue) = &mut world.streams[stream as usize - 1];
        assert_eq!(*gpu, CURRENT.get(), "a stream of another GPU");
        queue.push_back(work);
    });
}

pub fn new_stream(gpu: i32) -> Opaque {
    with(|world| {
        world.streams.push((gpu, VecDeque::new()));
        world.streams.len() as Opaque
    })
}

unsafe extern "C" fn init(_: c_uint) -> c_int {
    0
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
unsafe extern "C" fn release(_: c_int) -> c_int {
    0
}
unsafe extern "C" fn context_set(context: Opaque) -> c_int {
    CURRENT.set(context as usize as i32 - 100);
    0
}
unsafe extern "C" fn synchronize() -> c_int {
    0
}
unsafe extern "C" fn copy_async(dst: u64, src: u64, bytes: usize, stream: Opaque) -> c_int {
    let nothing = std::ptr::null_mut();
    let copy = Copy2d {
        src_x: 0,
        src_y: 0,
        src_kind: 4,
        src_host: nothing,
        src,
        src_array: nothing,
        src_pitch: bytes,
        dst_x: 0,
        dst_y: 0,
        dst_kind: 4,
        dst_host: nothing,
        dst,
        dst_array: nothing,
        dst_pitch: bytes,
        width: bytes,
        height: 1,
    };
    // SAFETY: of this function.
    unsafe { copy_2d_async(&raw const copy, stream) }
}
unsafe extern "C" fn error_string(_: c_int, _: *mut *const c_char) -> c_int {
    1
}
unsafe extern "C" fn can_access_peer(can: *mut c_int, _: c_int, _: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *can = 1 };
    0
}
unsafe extern "C" fn enable_peer_access(context: Opaque, _: c_uint) -> c_int {
    let new = with(|world| world.reach.insert((CURRENT.get(), context as usize as i32 - 100)));
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
unsafe extern "C" fn event_destroy(_: Opaque) -> c_int {
    0
}
unsafe extern "C" fn copy_2d_async(copy: *const Copy2d, stream: Opaque) -> c_int {
    // SAFETY: as above.
    let copy = unsafe { *copy };
    with(|world| {
        let gpu_of = |address: u64| {
            let found = world.memory.iter().find(|(begin, end, _)| (*begin..*end).contains(&(address as usize)));
            found.expect("memory of a GPU").2
        };
        let (from, to) = (gpu_of(copy.src), gpu_of(copy.dst));
        assert_eq!(from, CURRENT.get(), "it sends what is its own");
        assert!(from == to || world.reach.contains(&(from, to)), "{from} may not write to {to}");
    });
    push(stream, Work::Copy(copy));
    code("copy")
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
unsafe extern "C" fn destroy(_: c_int) -> c_int {
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
    with(|world| world.plans[plan as usize] = made);
    // SAFETY: as above.
    unsafe { *work = 24 };
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
    },
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

// --- what the streams do, once all is told ------------------------------------------------------------------------

/// A number below `n`.
pub fn random(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n
}

/// Does all that streams have to do.
pub fn play(seed: u64) {
    let (mut state, mut happened) = (seed, BTreeSet::new());
    let (mut streams, plans) = with(|world| (std::mem::take(&mut world.streams), world.plans.clone()));
    loop {
        let free = |queue: &VecDeque<Work>| match queue.front() {
            None => false,
            Some(Work::Wait(event)) => FORGETFUL.get() || happened.contains(event),
            Some(_) => true,
        };
        let ready: Vec<usize> = (0..streams.len()).filter(|&s| free(&streams[s].1)).collect();
        if ready.is_empty() {
            break;
        }
        let chosen = ready[random(&mut state, ready.len())];
        match streams[chosen].1.pop_front().expect("it has work") {
            Work::Wait(_) => {}
            Work::Record(event) => {
                happened.insert(event);
            }
            // SAFETY: memory of the test's, which outlives this.
            Work::Copy(copy) => unsafe {
                for row in 0..copy.height {
                    let (from, to) =
                        (copy.src as usize + row * copy.src_pitch, copy.dst as usize + row * copy.dst_pitch);
                    std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, copy.width);
                }
            },
            Work::Transform { plan, from, to, sign } => fourier(&plans[plan], from, to, sign as f64),
            Work::Spoil(address, numbers) => {
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts_mut(address as *mut f64, numbers) }.fill(f64::NAN);
            }
        }
    }
    assert!(streams.iter().all(|(_, queue)| queue.is_empty()), "some streams wait for ever");
    with(|world| world.streams = streams);
}

/// cuFFT's advanced layout, by the definition of a Fourier transform, in double precision.
fn fourier(plan: &Plan, from: usize, to: usize, sign: f64) {
    let (from, to) = (from as *mut f64, to as *mut f64);
    let [ny, nz] = if let [n] = plan.dims[..] { [1, n] } else { [plan.dims[0], plan.dims[1]] };
    let half = nz / 2 + 1;
    for b in 0..plan.batch {
        let at =
            |side: usize, width: usize, y: usize, z: usize| b * plan.distances[side] + (y * width + z) * plan.stride;
        let (real_in, real_out) = (plan.kind == 0x6a, plan.kind == 0x6c);
        let (width_in, width_out) = (if real_out { half } else { nz }, if real_in { half } else { nz });
        let sign = if real_in {
            -1.0
        } else if real_out {
            1.0
        } else {
            sign
        };
        let value = |y: usize, z: usize| -> Complex {
            // SAFETY: memory of the test's, of the plan's layout.
            unsafe {
                if real_in {
                    return [*from.add(at(0, width_in, y, z)), 0.0];
                }
                if real_out && z >= half {
                    let i = at(0, width_in, (ny - y) % ny, nz - z);
                    return [*from.add(2 * i), -*from.add(2 * i + 1)];
                }
                let i = at(0, width_in, y, z);
                [*from.add(2 * i), *from.add(2 * i + 1)]
            }
        };
        let values: Vec<Complex> = (0..ny * nz).map(|i| value(i / nz, i % nz)).collect();
        for y in 0..ny {
            for z in 0..width_out {
                let [re, im] = dft(&values, [1, ny, nz], [0, y, z], sign);
                let i = at(1, width_out, y, z);
                // SAFETY: as above.
                unsafe {
                    if real_out {
                        *to.add(i) = re;
                    } else {
                        (*to.add(2 * i), *to.add(2 * i + 1)) = (re, im);
                    }
                }
            }
        }
    }
}

/// One value of a Fourier transform.
pub fn dft(values: &[Complex], n: [usize; 3], k: [usize; 3], sign: f64) -> Complex {
    let mut sum = [0.0; 2];
    for (i, [re, im]) in values.iter().enumerate() {
        let x = [i / (n[1] * n[2]), i / n[2] % n[1], i % n[2]];
        let turns: f64 = (0..3).map(|a| (k[a] * x[a] % n[a]) as f64 / n[a] as f64).sum();
        let (sin, cos) = (sign * TAU * turns).sin_cos();
        sum = [sum[0] + re * cos - im * sin, sum[1] + re * sin + im * cos];
    }
    sum
}
