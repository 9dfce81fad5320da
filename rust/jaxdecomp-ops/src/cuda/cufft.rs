//! NVIDIA's Fourier transforms.

use super::{Error, Opaque, Result, table};
use core::ffi::{c_int, c_void};
use libloading::Library;

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

/// What a transform takes and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "R: real, C: complex")]
pub enum Kind {
    R2C,
    C2R,
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

/// Which values are transformed: what cuFFT calls the advanced data layout, with the same strides on both sides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout {
    /// Extents, of real values where there are any.
    pub dims: Vec<i64>,
    /// Between neighbours along the last axis.
    pub stride: i64,
    /// From one transform of the batch to the next, of what goes in and what comes out.
    pub distances: [i64; 2],
    /// Number of transforms.
    pub batch: i64,
}

/// Transforms of one layout on one GPU.
#[derive(Debug)]
pub struct Plan {
    library: Cufft,
    raw: c_int,
    kind: Kind,
    double: bool,
    work_bytes: usize,
}

impl Plan {
    /// Plans for the GPU that has been entered.
    ///
    /// # Errors
    /// cuFFT's own.
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
        // SAFETY: three arrays of `rank` extents; writes to the variable. The work area is ours to give.
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

    /// Bytes of device memory that [`Self::run`] wants to work in.
    #[must_use]
    pub fn work_bytes(&self) -> usize {
        self.work_bytes
    }

    /// Transforms, on the stream; `sign` is that of the exponent, and matters between complex values.
    ///
    /// # Safety
    /// `from` and `to` are device memory of the layout, the same for a transform in place; `work` is of `work_bytes`.
    /// No other thread uses the plan. What goes into C2R is overwritten.
    ///
    /// # Errors
    /// cuFFT's own.
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
        // SAFETY: made by `new`.
        unsafe { (self.library.destroy)(self.raw) };
    }
}

/// Extents of the memory of real and of complex values.
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
        7 => "it was not set up",
        8 => "invalid size",
        _ => "unknown code",
    };
    Err(Error(format!("{function}: {meaning} (cuFFT error {code})")))
}

/// Loads cuFFT from the first of some paths and names that there is.
///
/// # Errors
/// Why the last of them doesn't load.
pub fn load(candidates: &[String]) -> Result<Cufft> {
    let mut problem = "no path or name of it is known".to_owned();
    for candidate in candidates {
        // SAFETY: NVIDIA's own library.
        match unsafe { Library::new(candidate) } {
            Ok(library) => {
                // Never unloaded: the table's functions live as long as the process.
                let library: &'static Library = Box::leak(Box::new(library));
                // SAFETY: the symbols' types are those of cufft.h.
                let table = unsafe { Cufft::from_library(library) };
                return table.map_err(|missing| Error(format!("{candidate} has no {missing}")));
            }
            Err(error) => problem = error.to_string(),
        }
    }
    Err(Error(format!("cuFFT does not load: {problem}")))
}
