//! NVRTC: compilation of CUDA C++ at run time.

use super::library::{open_first, table};
use super::{Error, Opaque, Result};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::{null, null_mut};
use std::ffi::CString;

type Size = unsafe extern "C" fn(Opaque, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Opaque, *mut c_char) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Opaque,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

table! {
    /// Functions of NVRTC 11.2 and later.
    Functions {
        version = b"nvrtcVersion\0": unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
        num_archs = b"nvrtcGetNumSupportedArchs\0": unsafe extern "C" fn(*mut c_int) -> c_int,
        archs = b"nvrtcGetSupportedArchs\0": unsafe extern "C" fn(*mut c_int) -> c_int,
        error_string = b"nvrtcGetErrorString\0": unsafe extern "C" fn(c_int) -> *const c_char,
        create = b"nvrtcCreateProgram\0": Create,
        destroy = b"nvrtcDestroyProgram\0": unsafe extern "C" fn(*mut Opaque) -> c_int,
        compile = b"nvrtcCompileProgram\0": unsafe extern "C" fn(Opaque, c_int, *const *const c_char) -> c_int,
        log_size = b"nvrtcGetProgramLogSize\0": Size,
        log = b"nvrtcGetProgramLog\0": Get,
        cubin_size = b"nvrtcGetCUBINSize\0": Size,
        cubin = b"nvrtcGetCUBIN\0": Get,
        ptx_size = b"nvrtcGetPTXSize\0": Size,
        ptx = b"nvrtcGetPTX\0": Get,
    }
}

/// A loaded NVRTC.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: [c_int; 2],
    /// Supported compute capabilities, as 10 * major + minor.
    archs: Vec<c_int>,
}

/// Loads NVRTC from the first candidate path or name that loads.
///
/// # Errors
/// The reason why the last candidate fails to load, or errors of NVRTC.
pub fn load(candidates: &[String]) -> Result<Nvrtc> {
    let (library, path) = open_first("NVRTC", candidates)?;
    // SAFETY: the symbols' types are those of nvrtc.h.
    let functions = unsafe { Functions::from_library(library) };
    let functions = functions.map_err(|missing| Error(format!("{path} has no {missing}")))?;
    let (mut version, mut count) = ([0; 2], 0);
    // SAFETY: writes to the variables.
    unsafe {
        functions.check("nvrtcVersion", (functions.version)(&raw mut version[0], &raw mut version[1]))?;
        functions.check("nvrtcGetNumSupportedArchs", (functions.num_archs)(&raw mut count))?;
    }
    let mut archs = vec![0; count as usize];
    // SAFETY: writes `count` values.
    functions.check("nvrtcGetSupportedArchs", unsafe { (functions.archs)(archs.as_mut_ptr()) })?;
    Ok(Nvrtc { functions, version, archs })
}

impl Functions {
    fn check(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) }.to_string_lossy();
        Err(Error(format!("{function}: {text} (NVRTC error {code})")))
    }

    /// # Safety
    /// Size and content are those of one output of the program.
    unsafe fn output(&self, program: &Program<'_>, size: Size, get: Get) -> Result<Vec<u8>> {
        let mut len = 0;
        // SAFETY: by contract; the second call writes as many bytes as the first one returns.
        unsafe {
            self.check("nvrtcGet...Size", size(program.raw, &raw mut len))?;
            let mut bytes = vec![0_u8; len];
            self.check("nvrtcGet...", get(program.raw, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }
}

struct Program<'a> {
    functions: &'a Functions,
    raw: Opaque,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `Nvrtc::compile`.
        unsafe { (self.functions.destroy)(&raw mut self.raw) };
    }
}

impl Nvrtc {
    /// Major and minor version.
    #[must_use]
    pub fn version(&self) -> [c_int; 2] {
        self.version
    }

    /// Target for a compute capability (10 * major + minor): machine code (`sm_`), or for a GPU newer than NVRTC portable code
    /// (`compute_`), which the driver compiles.
    ///
    /// # Errors
    /// If the GPU is older than all targets.
    pub fn target(&self, capability: c_int) -> Result<String> {
        match self.archs.iter().filter(|&&arch| arch <= capability).max() {
            Some(&arch) if arch == capability => Ok(format!("sm_{arch}")),
            Some(arch) => Ok(format!("compute_{arch}")),
            None => {
                let ([major, minor], archs) = (self.version, &self.archs);
                Err(Error(format!("NVRTC {major}.{minor} supports {archs:?}, not compute capability {capability}")))
            }
        }
    }

    /// Compiles a source; returns an image that the driver loads.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, source: &str, target: &str, options: &[String]) -> Result<Vec<u8>> {
        let string = |text: &str| CString::new(text).map_err(|error| Error(error.to_string()));
        let mut strings = vec![string(&format!("--gpu-architecture={target}"))?];
        for option in options {
            strings.push(string(option)?);
        }
        let (source, functions) = (string(source)?, &self.functions);
        let options: Vec<*const c_char> = strings.iter().map(|option| option.as_ptr()).collect();
        let mut program = Program { functions, raw: null_mut() };
        // SAFETY: strings with terminators; no headers.
        unsafe {
            let code = (functions.create)(&raw mut program.raw, source.as_ptr(), null(), 0, null(), null());
            functions.check("nvrtcCreateProgram", code)?;
            let code = (functions.compile)(program.raw, options.len() as c_int, options.as_ptr());
            if let Err(Error(error)) = functions.check("nvrtcCompileProgram", code) {
                let log = functions.output(&program, functions.log_size, functions.log)?;
                return Err(Error(format!(
                    "{error}: {}",
                    String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n'])
                )));
            }
            if target.starts_with("sm_") {
                functions.output(&program, functions.cubin_size, functions.cubin)
            } else {
                functions.output(&program, functions.ptx_size, functions.ptx)
            }
        }
    }
}
