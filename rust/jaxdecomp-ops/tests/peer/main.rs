//! Transforms and halos over several GPUs, which are fake.

#![cfg(target_os = "linux")]

mod fake_gpus;
mod filter;
mod halo;
mod transforms;
