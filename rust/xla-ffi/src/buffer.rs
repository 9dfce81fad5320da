//! Operands and results as typed slices.

use crate::error::{Error, Result};
use crate::sys::{self, dtype};
use core::ffi::c_int;
use core::fmt;
use core::marker::PhantomData;

/// XLA's number of a data type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dtype(pub c_int);

impl Dtype {
    /// Signed 32-bit integer.
    pub const S32: Self = Self(dtype::S32);
    /// Signed 64-bit integer.
    pub const S64: Self = Self(dtype::S64);
    /// IEEE single precision.
    pub const F32: Self = Self(dtype::F32);
    /// IEEE double precision.
    pub const F64: Self = Self(dtype::F64);
    /// Complex number of two single-precision parts.
    pub const C64: Self = Self(dtype::C64);
    /// Complex number of two double-precision parts.
    pub const C128: Self = Self(dtype::C128);
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            dtype::S32 => f.write_str("s32"),
            dtype::S64 => f.write_str("s64"),
            dtype::F32 => f.write_str("f32"),
            dtype::F64 => f.write_str("f64"),
            dtype::C64 => f.write_str("c64"),
            dtype::C128 => f.write_str("c128"),
            other => write!(f, "XLA data type {other}"),
        }
    }
}

impl fmt::Debug for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A Rust type of buffer elements. Every bit pattern is valid.
///
/// # Safety
/// Buffers of type `DTYPE` consist of values of this type.
pub unsafe trait Element: Copy + 'static {
    /// XLA's number of the type.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty = $dtype:ident),*) => {
        $(
            // SAFETY: XLA's type of this name.
            unsafe impl Element for $type {
                const DTYPE: Dtype = Dtype(dtype::$dtype);
            }
        )*
    };
}
elements!(f32 = F32, f64 = F64, i32 = S32, i64 = S64);

/// Name, type, shape and address of an operand or result.
struct Header {
    name: &'static str,
    dtype: Dtype,
    dims: Vec<usize>,
    data: *mut core::ffi::c_void,
}

impl Header {
    /// # Safety
    /// `raw` points to a buffer of a live call frame.
    unsafe fn new(raw: *const sys::Buffer, name: &'static str) -> Result<Self> {
        // SAFETY: by contract.
        let raw = unsafe { &*raw };
        // SAFETY: the runtime gives `rank` dimensions.
        let dims = unsafe { slice(raw.dims, usize::try_from(raw.rank).unwrap_or(0)) };
        let dims: Option<Vec<usize>> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
        let dims = dims.ok_or_else(|| Error::internal(format!("{name}: negative extent")))?;
        Ok(Self { name, dtype: Dtype(raw.dtype), dims, data: raw.data })
    }

    fn expect_dtype<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(Error::invalid(format!("{}: expected {}, got {}", self.name, T::DTYPE, self.dtype)))
    }

    fn expect_dims(&self, expected: &[usize]) -> Result<()> {
        if self.dims == expected {
            return Ok(());
        }
        Err(Error::invalid(format!("{}: expected shape {expected:?}, got {:?}", self.name, self.dims)))
    }

    fn expect_rank<const N: usize>(&self, axes: &str) -> Result<[usize; N]> {
        <[usize; N]>::try_from(self.dims.as_slice()).map_err(|_| {
            Error::invalid(format!("{}: expected {N} axes ({axes}), got shape {:?}", self.name, self.dims))
        })
    }

    fn add_axes(&mut self, rank: usize) {
        let missing = rank.saturating_sub(self.dims.len());
        self.dims.splice(0..0, core::iter::repeat_n(1, missing));
    }

    fn len(&self) -> usize {
        self.dims.iter().product()
    }
}

macro_rules! header_methods {
    () => {
        /// Extent of each axis.
        #[must_use]
        pub fn dims(&self) -> &[usize] {
            &self.header.dims
        }

        /// Type of the elements.
        #[must_use]
        pub fn dtype(&self) -> Dtype {
            self.header.dtype
        }

        /// Checks the shape.
        ///
        /// # Errors
        /// If the shape is not `expected`.
        pub fn expect_dims(&self, expected: &[usize]) -> Result<()> {
            self.header.expect_dims(expected)
        }

        /// Returns the shape; `axes` names its `N` axes in the error message.
        ///
        /// # Errors
        /// If the number of axes is not `N`.
        pub fn expect_rank<const N: usize>(&self, axes: &str) -> Result<[usize; N]> {
            self.header.expect_rank(axes)
        }

        /// Adds leading axes of one element, up to so many axes.
        #[must_use]
        pub fn with_rank(mut self, rank: usize) -> Self {
            self.header.add_axes(rank);
            self
        }
    };
}

/// An operand.
pub struct Input<'a> {
    header: Header,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> Input<'a> {
    header_methods!();

    /// # Safety
    /// `raw` points to an operand of a call frame that lives for `'a`.
    pub(crate) unsafe fn new(raw: *const sys::Buffer, name: &'static str) -> Result<Self> {
        // SAFETY: by contract.
        let header = unsafe { Header::new(raw, name) }?;
        Ok(Self { header, lifetime: PhantomData })
    }

    /// Takes integers for the bits of floating-point numbers of the same size.
    #[must_use]
    pub fn with_bits_of_reals(mut self) -> Self {
        self.header.dtype = match self.header.dtype {
            Dtype::S32 => Dtype::F32,
            Dtype::S64 => Dtype::F64,
            other => other,
        };
        self
    }

    /// Address of the elements, in device memory on a GPU.
    #[must_use]
    pub fn as_ptr(&self) -> *const core::ffi::c_void {
        self.header.data
    }

    /// Row-major elements in host memory.
    ///
    /// # Errors
    /// If they are not of type `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        self.header.expect_dtype::<T>()?;
        // SAFETY: XLA's buffers are dense and aligned, and live as long as the call.
        Ok(unsafe { slice(self.header.data.cast(), self.header.len()) })
    }
}

/// A result.
pub struct Output<'a> {
    header: Header,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl Output<'_> {
    header_methods!();

    /// # Safety
    /// `raw` points to a result of a call frame that lives for `'a`, and nothing else refers to its data.
    pub(crate) unsafe fn new(raw: *const sys::Buffer, name: &'static str) -> Result<Self> {
        // SAFETY: by contract.
        let header = unsafe { Header::new(raw, name) }?;
        Ok(Self { header, lifetime: PhantomData })
    }

    /// Address of the elements, in device memory on a GPU.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut core::ffi::c_void {
        self.header.data
    }

    /// Row-major elements in host memory; their content is arbitrary until written.
    ///
    /// # Errors
    /// If they are not of type `T`.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.header.expect_dtype::<T>()?;
        let (data, len) = (self.header.data.cast(), self.header.len());
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: XLA's buffers are dense, aligned and live as long as the call; `self` is the only owner of the result.
        Ok(unsafe { core::slice::from_raw_parts_mut(data, len) })
    }
}

/// A slice that may be empty with a null pointer.
///
/// # Safety
/// `data` points to `len` values unless `len` is zero.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { core::slice::from_raw_parts(data, len) }
}
