//! Transforms and halos over several GPUs, which are fake.

mod fake_gpus;
mod halo;
mod transforms;
