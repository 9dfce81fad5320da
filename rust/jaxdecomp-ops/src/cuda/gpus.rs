//! The GPUs of the process and the compiler of their kernels, set up once.

use super::cache::Cache;
use super::kernel::{Compiler, Gpu};
use super::{Error, Result, driver, nvrtc};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static LIBRARIES: OnceLock<(driver::Tables, Compiler)> = OnceLock::new();
static GPUS: Mutex<BTreeMap<i32, Arc<Gpu>>> = Mutex::new(BTreeMap::new());

/// Loads CUDA's driver and NVRTC (the first candidate that loads), and checks that NVRTC compiles for all GPUs. Compiled kernels
/// are kept in a folder, if one is given. The first successful call determines library and folder.
///
/// # Errors
/// The library that fails to load, or the GPU that is not supported.
pub fn probe(ordinals: &[i32], nvrtc_candidates: &[String], folder: Option<PathBuf>) -> Result<()> {
    let (_, compiler) = if let Some(libraries) = LIBRARIES.get() {
        libraries
    } else {
        let libraries =
            (driver::load()?, Compiler { nvrtc: nvrtc::load(nvrtc_candidates)?, cache: folder.map(Cache::new) });
        LIBRARIES.get_or_init(|| libraries)
    };
    ordinals.iter().try_for_each(|&ordinal| compiler.nvrtc.target(gpu(ordinal)?.capability()).map(drop))
}

/// The compiler, after a successful [`probe`].
pub(crate) fn compiler() -> Result<&'static Compiler> {
    libraries().map(|(_, compiler)| compiler)
}

/// GPU of an ordinal, initialised once.
pub(crate) fn gpu(ordinal: i32) -> Result<Arc<Gpu>> {
    let (tables, _) = libraries()?;
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = gpus.get(&ordinal) {
        return Ok(gpu.clone());
    }
    let gpu = Arc::new(Gpu::new(*tables, ordinal)?);
    gpus.insert(ordinal, gpu.clone());
    Ok(gpu)
}

/// Largest shared memory that a block may have on every GPU of [`probe`] [bytes].
///
/// # Errors
/// A missing call of [`probe`].
pub fn shared_memory() -> Result<usize> {
    let gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let smallest = gpus.values().map(|gpu| gpu.shared_memory()).min();
    smallest.ok_or_else(|| Error("no GPU is set up for kernels in this process".to_owned()))
}

fn libraries() -> Result<&'static (driver::Tables, Compiler)> {
    LIBRARIES.get().ok_or_else(|| Error("CUDA's driver and NVRTC are not loaded in this process".to_owned()))
}
