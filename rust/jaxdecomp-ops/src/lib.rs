//! Particle-mesh operators as XLA FFI targets.
//!
//! [`cpu`] holds the numerical core, which knows neither XLA nor Python; [`handlers`] unpacks XLA's calls; [`cudecomp`]
//! holds transposes and halos on GPUs, over a library that is loaded where there is one; [`peer`] holds transforms over the
//! GPUs of one process, which write into each other's memory, over [`cuda`], which loads NVIDIA's libraries; the Python module
//! (feature `python`) hands the handlers to JAX.

pub mod cpu;
pub mod cuda;
pub mod cudecomp;
pub mod handlers;
pub mod peer;
#[cfg(feature = "python")]
mod python;
