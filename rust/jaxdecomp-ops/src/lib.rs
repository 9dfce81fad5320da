//! Particle-mesh operators as XLA FFI targets.
//!
//! - [`cic`]: cloud-in-cell paint and read. Its numerical core knows neither XLA nor Python.
//! - [`fft`]: real transforms on CPUs.
//! - [`friends`]: friends-of-friends groups of points on CPUs.
//! - [`stencil`]: finite-difference gradient of a mesh.
//! - [`cuda`]: NVIDIA's libraries, loaded at run time.
//! - `peer` (a feature, on by default; Linux): transforms and halos over the GPUs of one host, by peer-to-peer copies.
//! - [`cudecomp`]: transposes and halos over GPUs of several processes, by cuDecomp.
//!
//! The Python module (feature `python`) passes the handlers to JAX.

pub mod cic;
pub mod cuda;
pub mod cudecomp;
pub mod fft;
pub mod friends;
#[cfg(all(feature = "peer", target_os = "linux"))]
pub mod peer;
#[cfg(feature = "python")]
mod python;
pub mod stencil;
