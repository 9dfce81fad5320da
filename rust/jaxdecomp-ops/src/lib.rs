//! Particle-mesh operators as XLA FFI targets.
//!
//! [`cpu`] holds the numerical core, which knows neither XLA nor Python; [`handlers`] unpacks XLA's calls;
//! the Python module (feature `python`) hands the handlers to JAX.

pub mod cpu;
pub mod handlers;
#[cfg(feature = "python")]
mod python;
