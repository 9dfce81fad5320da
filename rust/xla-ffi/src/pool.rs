//! The thread pool that XLA shares with handlers on the CPU.

use crate::error::Error;
use crate::parallel::{Body, Job, Parallel};
use crate::sys;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::Arc;

/// XLA's thread pool, for the time of one call. A pool of our own would oversubscribe the cores.
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

    /// Whether XLA took the task.
    fn schedule(&self, job: &Arc<Job>) -> bool {
        let Some(schedule) = self.api.thread_pool_schedule else { return false };
        let data = Arc::into_raw(job.clone());
        let mut args = sys::ThreadPoolScheduleArgs {
            struct_size: size_of::<sys::ThreadPoolScheduleArgs>(),
            extension_start: null_mut(),
            ctx: self.ctx,
            task: Some(work),
            data: data.cast_mut().cast(),
        };
        // SAFETY: `args` is complete, and `work` takes what `data` is.
        let taken = self.succeeded(unsafe { schedule(&raw mut args) });
        if !taken {
            // SAFETY: the task will not run, so the reference is still ours.
            drop(unsafe { Arc::from_raw(data) });
        }
        taken
    }

    /// Errors of the pool only mean fewer workers.
    fn succeeded(&self, error: *mut sys::Error) -> bool {
        if error.is_null() {
            return true;
        }
        // SAFETY: the runtime made the error.
        unsafe { Error::destroy(error, self.api) };
        false
    }
}

impl Parallel for Pool<'_> {
    fn threads(&self) -> usize {
        let Some(count) = self.api.thread_pool_num_threads else { return 1 };
        let mut num_threads = 1;
        let mut args = sys::ThreadPoolNumThreadsArgs {
            struct_size: size_of::<sys::ThreadPoolNumThreadsArgs>(),
            extension_start: null_mut(),
            ctx: self.ctx,
            num_threads: &raw mut num_threads,
        };
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
