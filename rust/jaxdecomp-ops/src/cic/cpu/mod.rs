//! Paint and read on the CPU.
//!
//! Particles are located in batches of up to [`batch::SIZE`], which vectorises, and deposited one by one. Each painting task
//! owns a block of x-planes and accumulates integers: the result does not depend on the number of threads or on the order
//! of the particles.

mod batch;
mod bounds;
mod lanes;
mod mesh;
mod order;
mod paint;
mod read;
mod simd;
mod step;
mod tile;
mod undo;
mod vectors;
mod weights;

pub use lanes::Packed;
pub(crate) use mesh::Mesh;
pub use paint::paint;
pub(crate) use paint::{Scale, paint_as, paint_scaled};
pub use read::{Values, read};
pub use step::KickDrift;
pub use undo::{UndoDrift, UndoDriftAndKick, UndoKick};
