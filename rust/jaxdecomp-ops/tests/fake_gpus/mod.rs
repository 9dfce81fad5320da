//! GPUs that are made up: their memory is the host's, and their streams do what they are told only afterwards, in a random
//! order that streams and events allow. A missing event shows as wrong values.

#![allow(unreachable_pub, reason = "shared by tests")]

mod libraries;
mod play;

pub use libraries::LIBRARIES;
pub use play::{dft, play, random};

use jaxdecomp_ops::cuda::Opaque;
use jaxdecomp_ops::cuda::driver::Copy2d;
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_int;
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
