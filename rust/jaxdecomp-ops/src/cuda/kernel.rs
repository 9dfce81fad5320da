//! Kernels: compiled, loaded and launched.

use super::cache::Cache;
use super::device::Device;
use super::driver::Tables;
use super::nvrtc::Nvrtc;
use super::{Opaque, Result};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

const MULTIPROCESSOR_COUNT: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// An attribute of GPUs, and one of kernels.
const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;

/// A source and the options with which it is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// CUDA C++.
    pub source: &'static str,
    /// Options of the compiler, without the target.
    pub options: Vec<String>,
}

/// NVRTC and the cache of its results.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The compiler itself.
    pub nvrtc: Nvrtc,
    /// Results of this and other processes.
    pub cache: Option<Cache>,
}

impl Compiler {
    /// Key of a variant for a target in the cache.
    #[must_use]
    pub fn key(&self, target: &str, variant: &Variant) -> String {
        let [major, minor] = self.nvrtc.version();
        format!("NVRTC {major}.{minor} {target} {}\n{}", variant.options.join(" "), variant.source)
    }

    /// Image of a variant for a target, from the cache or compiled.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub fn image(&self, target: &str, variant: &Variant) -> Result<Vec<u8>> {
        self.load(target, variant, |image| Ok(image.to_vec()))
    }

    /// Loads the image of a variant for a target. One from the cache that does not load is compiled again, once.
    ///
    /// # Errors
    /// Errors of the compiler, and of loading what it compiled.
    pub fn load<T>(&self, target: &str, variant: &Variant, mut load: impl FnMut(&[u8]) -> Result<T>) -> Result<T> {
        let key = self.key(target, variant);
        let kept = self.cache.as_ref().and_then(|cache| cache.load(&key));
        if let Some(loaded) = kept.and_then(|image| load(&image).ok()) {
            return Ok(loaded);
        }
        let image = self.nvrtc.compile(variant.source, target, &variant.options)?;
        if let Some(cache) = &self.cache {
            cache.store(&key, &image);
        }
        load(&image)
    }
}

/// A GPU that runs kernels.
#[derive(Debug)]
pub struct Gpu {
    tables: Tables,
    device: Device,
    multiprocessors: u32,
    /// Compute capability, as 10 * major + minor.
    capability: c_int,
    shared_memory: usize,
    modules: Mutex<HashMap<Variant, Arc<Module>>>,
}

/// A loaded variant. Never unloaded, since streams may still run its kernels.
#[derive(Debug)]
pub struct Module {
    tables: Tables,
    raw: Opaque,
}

// SAFETY: modules may be used from any thread on which their context is current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Gpu {
    /// Initialises the GPU of an ordinal.
    ///
    /// # Errors
    /// Errors of CUDA.
    pub fn new(tables: Tables, ordinal: i32) -> Result<Self> {
        let device = Device::new(tables.driver, ordinal)?;
        let attribute = |number| device.attribute(&tables.launch, number);
        let capability = 10 * attribute(CAPABILITY_MAJOR)? + attribute(CAPABILITY_MINOR)?;
        let multiprocessors = attribute(MULTIPROCESSOR_COUNT)? as u32;
        let shared_memory = attribute(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        Ok(Self { tables, device, multiprocessors, capability, shared_memory, modules: Mutex::default() })
    }

    /// Number of multiprocessors.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Compute capability, as 10 * major + minor.
    #[must_use]
    pub fn capability(&self) -> i32 {
        self.capability
    }

    /// Largest shared memory of a block [bytes].
    #[must_use]
    pub fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    /// Makes the GPU current and returns a variant, compiled and loaded by the first call.
    ///
    /// # Errors
    /// Errors of the compiler and of CUDA.
    pub fn module(&self, compiler: &Compiler, variant: &Variant) -> Result<Arc<Module>> {
        self.device.enter()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(variant) {
            return Ok(module.clone());
        }
        let raw = compiler.load(&compiler.nvrtc.target(self.capability)?, variant, |image| {
            let mut raw = null_mut();
            // SAFETY: an image with its own length, or PTX with a terminator.
            let code = unsafe { (self.tables.launch.module_load)(&raw mut raw, image.as_ptr().cast()) };
            self.tables.driver.check("cuModuleLoadData", code).map(|()| raw)
        })?;
        let module = Arc::new(Module { tables: self.tables, raw });
        modules.insert(variant.clone(), module.clone());
        Ok(module)
    }

    /// Sets device memory to zero on a stream.
    ///
    /// # Safety
    /// The GPU is current, and the memory has at least `bytes` bytes.
    ///
    /// # Errors
    /// Errors of CUDA.
    pub unsafe fn clear(&self, memory: *mut c_void, bytes: usize, stream: Opaque) -> Result<()> {
        // SAFETY: by contract.
        let code = unsafe { (self.tables.launch.memset_async)(memory as u64, 0, bytes, stream) };
        self.tables.driver.check("cuMemsetD8Async", code)
    }
}

impl Module {
    /// Launches a kernel on a stream with `[blocks, threads]` along one axis.
    ///
    /// # Safety
    /// The GPU is current; `arguments` point to values of the types of the kernel's parameters.
    ///
    /// # Errors
    /// Errors of CUDA.
    pub unsafe fn launch(
        &self,
        kernel: &CStr,
        [blocks, threads]: [u32; 2],
        stream: Opaque,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: by contract.
        unsafe { self.launch_grid(kernel, ([blocks, 1, 1], threads), 0, stream, arguments) }
    }

    /// Launches a kernel on a stream with blocks along three axes and the threads of one, and with so many bytes of shared
    /// memory besides that which the kernel declares.
    ///
    /// # Safety
    /// As for [`Self::launch`].
    ///
    /// # Errors
    /// Errors of CUDA, which has a largest size.
    pub unsafe fn launch_grid(
        &self,
        kernel: &CStr,
        ([x, y, z], threads): ([u32; 3], u32),
        shared: u32,
        stream: Opaque,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let (launch, driver, mut function) = (&self.tables.launch, &self.tables.driver, null_mut());
        // SAFETY: by contract.
        unsafe {
            let code = (launch.module_function)(&raw mut function, self.raw, kernel.as_ptr());
            driver.check("cuModuleGetFunction", code)?;
            if shared > 0 {
                let code = (launch.function_set)(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as c_int);
                driver.check("cuFuncSetAttribute", code)?;
            }
            let arguments = arguments.as_mut_ptr();
            let code = (launch.launch)(function, x, y, z, threads, 1, 1, shared, stream, arguments, null_mut());
            driver.check("cuLaunchKernel", code)
        }
    }
}

/// Pointers to the arguments of a kernel.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        [$((&raw const $value).cast_mut().cast::<core::ffi::c_void>()),*]
    };
}
pub(crate) use arguments;
