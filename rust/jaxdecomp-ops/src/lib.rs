//! Particle-mesh operators as XLA FFI targets.
//!
//! [`cpu`] holds the numerical core, which knows neither XLA nor Python; [`handlers`] unpacks XLA's calls; [`cudecomp`]
//! holds transposes and halos on GPUs, over a library that is loaded where there is one; the Python module (feature `python`) hands the handlers to JAX.

pub mod cpu;
pub mod cudecomp;
pub mod handlers;
#[cfg(feature = "python")]
mod python;
