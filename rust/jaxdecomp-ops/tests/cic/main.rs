//! Cloud-in-cell on CPUs, in one program: kernels are generic, and each program would compile them again.

mod common;
mod definition;
mod properties;
