//! cuFFT.

use super::library::{open_first, table};
use super::{Error, Opaque, Result};
use core::ffi::{c_int, c_void};

type Exec = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void) -> c_int;
type ExecWithSign = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, c_int) -> c_int;
type MakePlanMany = unsafe extern "C" fn(
    c_int,
    c_int,
    *const i64,
    *const i64,
    i64,
    i64,
    *const i64,
    i64,
    i64,
    c_int,
    i64,
    *mut usize,
) -> c_int;

table! {
    /// Functions of cuFFT 11 (CUDA 12) and 12 (CUDA 13).
    Cufft {
        create = b"cufftCreate\0": unsafe extern "C" fn(*mut c_int) -> c_int,
        destroy = b"cufftDestroy\0": unsafe extern "C" fn(c_int) -> c_int,
        set_auto_allocation = b"cufftSetAutoAllocation\0": unsafe extern "C" fn(c_int, c_int) -> c_int,
        make_plan_many = b"cufftMakePlanMany64\0": MakePlanMany,
        set_stream = b"cufftSetStream\0": unsafe extern "C" fn(c_int, Opaque) -> c_int,
        set_work_area = b"cufftSetWorkArea\0": unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
        exec_r2c = b"cufftExecR2C\0": Exec,
        exec_c2r = b"cufftExecC2R\0": Exec,
        exec_c2c = b"cufftExecC2C\0": ExecWithSign,
        exec_d2z = b"cufftExecD2Z\0": Exec,
        exec_z2d = b"cufftExecZ2D\0": Exec,
        exec_z2z = b"cufftExecZ2Z\0": ExecWithSign,
    }
}

/// Kind of transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Real to complex.
    R2C,
    /// Complex to real.
    C2R,
    /// Complex to complex.
    C2C,
}

impl Kind {
    fn code(self, double: bool) -> c_int {
        match (self, double) {
            (Self::R2C, false) => 0x2a,
            (Self::C2R, false) => 0x2c,
            (Self::C2C, false) => 0x29,
            (Self::R2C, true) => 0x6a,
            (Self::C2R, true) => 0x6c,
            (Self::C2C, true) => 0x69,
        }
    }
}

/// cuFFT's advanced data layout, with equal strides of input and output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout {
    /// Extents of the real values, or of the complex values of C2C.
    pub dims: Vec<i64>,
    /// Distance of adjacent values along the last axis.
    pub stride: i64,
    /// Distances of consecutive transforms of the batch in input and output.
    pub distances: [i64; 2],
    /// Number of transforms.
    pub batch: i64,
}

/// Plan of the transforms of one layout on one GPU.
#[derive(Debug)]
pub struct Plan {
    library: Cufft,
    raw: c_int,
    kind: Kind,
    double: bool,
    work_bytes: usize,
}

impl Plan {
    /// Creates a plan on the current GPU.
    ///
    /// # Errors
    /// Errors of cuFFT.
    pub fn new(library: Cufft, kind: Kind, double: bool, layout: &Layout) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: writes to the variable.
        check("cufftCreate", unsafe { (library.create)(&raw mut raw) })?;
        let mut plan = Self { library, raw, kind, double, work_bytes: 0 };
        let (real, complex) = embedding(&layout.dims);
        let (before, after) = match kind {
            Kind::R2C => (&real, &complex),
            Kind::C2R => (&complex, &real),
            Kind::C2C => (&real, &real),
        };
        let ([from, to], rank) = (layout.distances, layout.dims.len() as c_int);
        // SAFETY: three arrays of `rank` extents; writes to the variable.
        unsafe {
            check("cufftSetAutoAllocation", (library.set_auto_allocation)(raw, 0))?;
            let code = (library.make_plan_many)(
                raw,
                rank,
                layout.dims.as_ptr(),
                before.as_ptr(),
                layout.stride,
                from,
                after.as_ptr(),
                layout.stride,
                to,
                kind.code(double),
                layout.batch,
                &raw mut plan.work_bytes,
            );
            check("cufftMakePlanMany64", code)?;
        }
        Ok(plan)
    }

    /// Size of the work area that [`Self::run`] needs [bytes].
    #[must_use]
    pub fn work_bytes(&self) -> usize {
        self.work_bytes
    }

    /// Transforms on a stream; `sign` is the sign of the exponent of C2C.
    ///
    /// # Safety
    /// `from` and `to` are device memory of the layout, equal for a transform in place; `work` has `work_bytes` bytes. No
    /// other thread uses the plan. C2R overwrites its input.
    ///
    /// # Errors
    /// Errors of cuFFT.
    pub unsafe fn run(
        &self,
        stream: Opaque,
        work: *mut c_void,
        from: *mut c_void,
        to: *mut c_void,
        sign: i64,
    ) -> Result<()> {
        let library = &self.library;
        // SAFETY: by contract.
        unsafe {
            check("cufftSetStream", (library.set_stream)(self.raw, stream))?;
            if self.work_bytes > 0 {
                check("cufftSetWorkArea", (library.set_work_area)(self.raw, work))?;
            }
            let sign = sign as c_int;
            let code = match (self.kind, self.double) {
                (Kind::R2C, false) => (library.exec_r2c)(self.raw, from, to),
                (Kind::C2R, false) => (library.exec_c2r)(self.raw, from, to),
                (Kind::C2C, false) => (library.exec_c2c)(self.raw, from, to, sign),
                (Kind::R2C, true) => (library.exec_d2z)(self.raw, from, to),
                (Kind::C2R, true) => (library.exec_z2d)(self.raw, from, to),
                (Kind::C2C, true) => (library.exec_z2z)(self.raw, from, to, sign),
            };
            check("cufftExec", code)
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        unsafe { (self.library.destroy)(self.raw) };
    }
}

/// Extents in memory of real and of complex values.
fn embedding(dims: &[i64]) -> (Vec<i64>, Vec<i64>) {
    let mut complex = dims.to_vec();
    if let Some(last) = complex.last_mut() {
        *last = *last / 2 + 1;
    }
    (dims.to_vec(), complex)
}

fn check(function: &str, code: c_int) -> Result<()> {
    let meaning = match code {
        0 => return Ok(()),
        1 => "invalid plan",
        2 => "out of memory",
        4 => "invalid value",
        5 => "internal error",
        6 => "execution failed",
        7 => "setup failed",
        8 => "invalid size",
        _ => "unknown code",
    };
    Err(Error(format!("{function}: {meaning} (cuFFT error {code})")))
}

/// Loads cuFFT from the first candidate path or name that loads.
///
/// # Errors
/// The reason why the last candidate fails to load.
pub fn load(candidates: &[String]) -> Result<Cufft> {
    let (library, path) = open_first("cuFFT", candidates)?;
    // SAFETY: the symbols' types are those of cufft.h.
    unsafe { Cufft::from_library(library) }.map_err(|missing| Error(format!("{path} has no {missing}")))
}
