//! Paint and read on NVIDIA GPUs: CUDA C++ that NVRTC compiles at run time for the GPU at hand.
//!
//! Painting accumulates the same integers as on the CPU, so that both paint the same bits.

mod force_transpose;
mod handlers;
mod launch;
mod steps;
pub mod variants;

use xla_ffi::sys::Handler;

/// FFI targets of the platform "CUDA", each with the handlers of the stages "initialize" and "execute".
#[must_use]
pub fn targets() -> Vec<(&'static str, [Handler; 2])> {
    [&handlers::CUDA[..], &[force_transpose::CUDA], &steps::CUDA].concat()
}
