//! XLA's FFI C API for handlers written in Rust.
//!
//! [`sys`] mirrors the part of `xla/ffi/api/c_api.h` that is used here. The rest is safe: a handler is a function from a
//! [`Call`] to a `Result`, exported as a C function by [`handler!`](crate::handler).
//!
//! ```
//! use xla_ffi::{Call, Result};
//!
//! fn double(call: &Call<'_>) -> Result<()> {
//!     let x = call.input(0, "x")?;
//!     let mut y = call.output(0, "y")?;
//!     y.expect_dims(x.dims())?;
//!     for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(x.as_slice::<f32>()?) {
//!         *y = 2.0 * x;
//!     }
//!     Ok(())
//! }
//!
//! xla_ffi::handler!(double_handler => double);
//! ```

mod attributes;
mod buffer;
mod call;
mod error;
mod gpu;
pub mod parallel;
mod pool;
pub mod sys;

pub use buffer::{Dtype, Element, Input, Output};
pub use call::{Call, Role, handle};
pub use error::{Code, Error, Result};
pub use gpu::DeviceMemory;
pub use parallel::{Chunks, Parallel, Threads};
pub use pool::Pool;
