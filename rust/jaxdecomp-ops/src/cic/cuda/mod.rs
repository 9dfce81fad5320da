//! Paint and read on NVIDIA GPUs: CUDA C++ that NVRTC compiles at run time for the GPU at hand.
//!
//! Painting accumulates the same integers as on the CPU, so that both paint the same bits.

mod force_transpose;
pub mod handlers;
mod launch;
mod steps;
pub mod variants;
