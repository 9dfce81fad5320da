//! XLA's thread pool on the CPU.

use crate::error::Error;
use crate::parallel::{Body, Job, Parallel};
use crate::sys::{self, args};
use core::ffi::c_void;
use std::sync::Arc;

/// XLA's thread pool for the duration of a call. A second pool would oversubscribe the cores.
pub struct Pool<'a> {
    api: &'a sys::Api,
    ctx: *mut sys::ExecutionContext,
}

// SAFETY: XLA's API table and execution context may be used from any thread.
unsafe impl Sync for Pool<'_> {}

impl<'a> Pool<'a> {
    /// # Safety
    /// `ctx` belongs to the call for which the pool is used.
    pub(crate) unsafe fn new(api: &'a sys::Api, ctx: *mut sys::ExecutionContext) -> Self {
        Self { api, ctx }
    }

    /// Schedules a task; returns whether XLA accepted it.
    fn schedule(&self, job: &Arc<Job>) -> bool {
        let Some(schedule) = self.api.thread_pool_schedule else { return false };
        let data = Arc::into_raw(job.clone());
        let mut args = args!(ThreadPoolScheduleArgs { ctx: self.ctx, task: Some(work), data: data.cast_mut().cast() });
        // SAFETY: `args` is complete, and `data` has the type that `work` expects.
        let taken = self.succeeded(unsafe { schedule(&raw mut args) });
        if !taken {
            // SAFETY: the task does not run, so the reference is still owned here.
            drop(unsafe { Arc::from_raw(data) });
        }
        taken
    }

    /// Destroys an error: without a worker, the others do its share.
    fn succeeded(&self, error: *mut sys::Error) -> bool {
        if error.is_null() {
            return true;
        }
        // SAFETY: the runtime created the error.
        unsafe { Error::destroy(error, self.api) };
        false
    }
}

impl Parallel for Pool<'_> {
    fn threads(&self) -> usize {
        let Some(count) = self.api.thread_pool_num_threads else { return 1 };
        let mut num_threads = 1;
        let mut args = args!(ThreadPoolNumThreadsArgs { ctx: self.ctx, num_threads: &raw mut num_threads });
        // SAFETY: `args` is complete.
        let known = self.succeeded(unsafe { count(&raw mut args) });
        if known { usize::try_from(num_threads).map_or(1, |n| n.max(1)) } else { 1 }
    }

    fn run(&self, chunks: usize, body: &Body<'_>) {
        let job = Job::new(chunks, body);
        for _ in 1..self.threads().min(chunks) {
            if !self.schedule(&job) {
                break;
            }
        }
        job.finish();
    }
}

/// # Safety
/// `data` is a reference to a [`Job`] that was leaked for this task.
unsafe extern "C" fn work(data: *mut c_void) {
    // SAFETY: by contract.
    let job = unsafe { Arc::from_raw(data.cast::<Job>().cast_const()) };
    job.work();
}
