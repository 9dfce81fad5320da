//! Parallel loops over numbered chunks, which workers pull from a counter.
//!
//! The caller is a worker too. It waits for workers that have begun, never for queued tasks: a pool whose threads are all
//! busy (other devices of the same program, nested calls) can't block it.

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};

/// Iterator of chunk numbers, shared by all workers.
pub struct Chunks<'a> {
    next: &'a AtomicUsize,
    end: usize,
}

impl Iterator for Chunks<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let chunk = self.next.fetch_add(1, SeqCst);
        (chunk < self.end).then_some(chunk)
    }
}

/// Function of a worker: allocates scratch memory and processes chunks.
pub type Body<'a> = dyn Fn(Chunks<'_>) + Sync + 'a;

/// A pool of threads.
pub trait Parallel: Sync {
    /// Largest number of workers, including the caller.
    fn threads(&self) -> usize;

    /// Runs `body` on up to [`threads`](Self::threads) workers; returns when all chunks are done.
    ///
    /// # Panics
    /// If a worker panicked.
    fn run(&self, chunks: usize, body: &Body<'_>);
}

/// Threads started for each run, for tests and benchmarks.
#[derive(Clone, Copy, Debug)]
pub struct Threads(pub usize);

impl Parallel for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, chunks: usize, body: &Body<'_>) {
        thread::scope(|scope| {
            let job = Job::new(chunks, body);
            for _ in 1..self.0.min(chunks) {
                let job = job.clone();
                scope.spawn(move || job.work());
            }
            job.finish();
        });
    }
}

/// State of a run, shared by its workers.
pub(crate) struct Job {
    next: AtomicUsize,
    chunks: usize,
    /// Number of workers between their first access to `next` and the end of `body`.
    active: AtomicUsize,
    /// Borrowed from the caller. Used only by active workers that found a chunk, for which `finish` waits.
    body: *const Body<'static>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

// SAFETY: `body` points to something `Sync`; all else is Send and Sync by itself.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// The caller must call [`finish`](Self::finish) before `body` goes away.
    pub(crate) fn new(chunks: usize, body: &Body<'_>) -> Arc<Self> {
        #[allow(clippy::transmute_ptr_to_ptr, reason = "a cast can't lengthen a lifetime")]
        // SAFETY: only the lifetime changes; `finish` keeps every use within the true one.
        let body = unsafe { core::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        Arc::new(Self {
            next: AtomicUsize::new(0),
            chunks,
            active: AtomicUsize::new(0),
            body,
            panic: Mutex::new(None),
            caller: thread::current(),
        })
    }

    /// Runs one worker. Has no effect after the end of the run.
    pub(crate) fn work(&self) {
        self.active.fetch_add(1, SeqCst);
        // `finish` first exhausts `next`, then reads `active`: in the total order of SeqCst operations, either it observes
        // this worker, or this worker observes no chunk.
        if self.next.load(SeqCst) < self.chunks {
            self.run_body();
        }
        if self.active.fetch_sub(1, SeqCst) == 1 {
            self.caller.unpark();
        }
    }

    fn run_body(&self) {
        let chunks = Chunks { next: &self.next, end: self.chunks };
        // SAFETY: this worker is active and there was a chunk left, so `finish` has not returned.
        let body = unsafe { &*self.body };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(chunks))) {
            self.next.store(self.chunks, SeqCst);
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
    }

    /// Runs the caller as a worker, waits for active workers, and propagates a panic.
    pub(crate) fn finish(&self) {
        self.work();
        self.next.store(self.chunks, SeqCst);
        while self.active.load(SeqCst) != 0 {
            thread::park();
        }
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 5] {
            for chunks in [0, 1, 2, 3, 1000] {
                let seen: Vec<AtomicU64> = (0..chunks).map(|_| AtomicU64::new(0)).collect();
                Threads(threads).run(chunks, &|mine| {
                    for chunk in mine {
                        seen[chunk].fetch_add(1, SeqCst);
                    }
                });
                assert!(seen.iter().all(|n| n.load(SeqCst) == 1));
            }
        }
    }

    #[test]
    fn a_task_that_starts_after_the_end_does_nothing() {
        let job = {
            let data = [1, 2, 3];
            let body = |mine: Chunks<'_>| mine.for_each(|chunk| assert!(data[chunk] > 0));
            let job = Job::new(3, &body);
            job.finish();
            job
        };
        job.work();
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let run = || {
            Threads(3).run(100, &|mine| {
                for chunk in mine {
                    assert!(chunk != 50, "chunk fifty");
                }
            });
        };
        let payload = catch_unwind(run).expect_err("the worker panicked");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"chunk fifty"));
    }
}
