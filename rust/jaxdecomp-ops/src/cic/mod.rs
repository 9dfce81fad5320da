//! Cloud-in-cell paint and read, for f32 and f64, on CPUs and NVIDIA GPUs.
//!
//! With W(u) = 1 - |u| along each axis, or its derivative along the axes that mask k names,
//!
//! ```text
//! paint:  mesh[c, f]   = sum_p sum_k weight[p, k, f] W_k(x_p - c)
//! read:   out[p, k, f] = sum_c fields[c, f]          W_k(x_p - c),  or its weighted sum over k or f
//! ```
//!
//! Lattice, masks, fixed-point format and checks of operands are shared by all platforms.

pub mod cpu;
pub mod cuda;
mod geometry;
pub mod handlers;
mod masks;
mod operands;
mod real;
pub mod steps;

pub use geometry::{Geometry, Spec};
pub use masks::Mask;
pub use operands::Reduction;
pub use real::Real;
