//! Fake GPUs in host memory. The work of their streams is recorded, and run later in a random order that streams and events
//! permit. A missing event results in wrong values.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses its part")]

mod libraries;
mod play;
mod run;

pub use libraries::LIBRARIES;
pub use play::{dft, play, random};
pub use run::{by_processes, on_all};

use jaxdecomp_ops::cuda::Opaque;
use jaxdecomp_ops::cuda::driver::Copy2d;
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A complex number.
pub type Complex = [f64; 2];

/// Work of a stream.
pub enum Work {
    Record(usize),
    Wait(usize),
    /// Writes a word (address and value).
    Write(usize, u32),
    /// Waits for a word to have this value, or a later one.
    WaitFor(usize, u32),
    Copy(Copy2d),
    Transform {
        plan: usize,
        from: usize,
        to: usize,
        sign: i64,
    },
    /// Other work of XLA's stream that overwrites memory (address and number of reals).
    Overwrite(usize, usize),
}

#[derive(Default)]
pub struct World {
    /// GPU and work of each stream.
    streams: Vec<(i32, VecDeque<Work>)>,
    events: usize,
    plans: Vec<Plan>,
    /// Pairs of GPUs of which the first has access to the memory of the second.
    peer_access: BTreeSet<(i32, i32)>,
    /// Start, end and GPU of each allocation.
    pub memory: Vec<(usize, usize, i32)>,
    /// Streams synchronized by the host.
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

impl World {
    fn gpu_of(&self, address: u64) -> i32 {
        let found = self.memory.iter().find(|(begin, end, _)| (*begin..*end).contains(&(address as usize)));
        found.expect("memory of a GPU").2
    }
}

// SAFETY: one test at a time accesses the addresses.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// Held by the running test.
static TEST: Mutex<()> = Mutex::new(());

thread_local! {
    pub static CURRENT: Cell<i32> = const { Cell::new(-1) };
    /// Whether streams ignore events.
    pub static IGNORE_EVENTS: Cell<bool> = const { Cell::new(false) };
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
