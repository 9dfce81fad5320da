//! Cloud-in-cell paint and read on the CPU, for f32 and f64.
//!
//! With W(u) = 1 - |u| along an axis, or its derivative where a mask says so,
//!
//! ```text
//! paint:  mesh[c, f]   = sum_p sum_k weight[p, k, f] W_k(x_p - c)
//! read:   out[p, k, f] = sum_c fields[c, f]          W_k(x_p - c),  or its weighted sum over k or f
//! ```
//!
//! Particles are visited in batches of up to [`batch::SIZE`] that are located together (which vectorises), then
//! deposited one by one. Painting tasks own blocks of x-planes and accumulate integers, so that neither the number of
//! threads nor the order of particles changes a bit.

mod batch;
mod bounds;
mod geometry;
mod lanes;
mod order;
mod paint;
mod read;
mod real;
mod simd;
mod tile;
mod weights;

pub use geometry::{Geometry, Spec};
pub use paint::paint;
pub use read::{Values, read};
pub use real::Real;
pub use weights::Mask;
