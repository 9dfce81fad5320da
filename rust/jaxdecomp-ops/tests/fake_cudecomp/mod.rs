//! A fake cuDecomp and CUDA driver that log all calls, and a session with them.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses its part")]

mod library;

pub use library::{API, DRIVER, Fake, fail, log, with};

use jaxdecomp_ops::cuda::{Device, Opaque};
use jaxdecomp_ops::cudecomp::sys::MpiQueries;
use jaxdecomp_ops::cudecomp::{Buffers, Error, Grid, Member, Result, Session, Step};
use std::ffi::c_void;
use xla_ffi::Dtype;

pub const NCCL: i32 = 4;
pub const NVSHMEM: i32 = 6;
pub const GRID: Grid = Grid { shape: [8, 12, 20], pdims: [2, 2], transpose_comm: NCCL, halo_comm: 3 };

/// Session of a rank among four processes.
pub fn session(rank: i32) -> Session {
    with(|fake| *fake = Fake { rank, ..Fake::default() });
    let device = Device::new(DRIVER, 3).expect("a device");
    let member = Member { communicator: 5, rank: rank.into(), num_processes: 4 };
    let session = Session::open(API, MpiQueries::default(), device, member).expect("a session");
    assert_eq!(log(), ["cuInit", "retain 13", "enter", "synchronize", "init 5"]);
    session
}

pub fn buffers(batch: usize) -> Buffers {
    Buffers {
        input: 0x1000 as *const c_void,
        output: 0x2000 as *mut c_void,
        scratch: 0x3000 as *mut c_void,
        scratch_len: 100,
        batch,
        stream: 0x9 as Opaque,
    }
}

pub fn transpose(session: &mut Session, grid: &Grid, step: Step, dtype: Dtype, buffers: &Buffers) -> Result<()> {
    // SAFETY: the fake library doesn't access the data.
    unsafe { session.transpose(grid, step, dtype, buffers) }
}

pub fn invalid_argument<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::InvalidArgument(message)) => message,
        other => panic!("expected an invalid argument, got {other:?}"),
    }
}

pub fn fatal<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::Fatal(message)) => message,
        other => panic!("expected a fatal failure, got {other:?}"),
    }
}
