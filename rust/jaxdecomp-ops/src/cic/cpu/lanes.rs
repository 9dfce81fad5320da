//! Several fields of a cell in one vector register.

use crate::cic::real::Real;

/// A precision and its vector of three fields.
pub trait Packed: Real {
    /// Three fields at once.
    type Three: Lanes<Self>;
}

impl Packed for f32 {
    #[cfg(target_arch = "x86_64")]
    type Three = Three;
    #[cfg(not(target_arch = "x86_64"))]
    type Three = [Self; 3];
}

impl Packed for f64 {
    type Three = [Self; 3];
}

/// Values of several fields, one a lane. A further lane may fill the register.
pub trait Lanes<T>: Copy + Sync {
    /// Loads the fields of a cell. A further lane holds the value that follows in memory, if any.
    fn load(values: &[T]) -> Self;
    /// Loads the fields of a cell and the values that follow in memory, one for each further lane.
    ///
    /// # Safety
    /// From `first` on, `values` has a value for each lane.
    unsafe fn load_at(values: &[T], first: usize) -> Self;
    /// Copies a value to all lanes.
    fn splat(value: T) -> Self;
    /// Returns the first field.
    fn first(self) -> T;
    /// `self * factor`
    #[must_use]
    fn scale(self, factor: Self) -> Self;
    /// `self + other`
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// `self - other`
    #[must_use]
    fn minus(self, other: Self) -> Self;
    /// Sum of the products of the fields.
    fn dot(self, other: Self) -> T;
    /// Writes the fields.
    fn store(self, out: &mut [T]);
}

impl<T: Real, const F: usize> Lanes<T> for [T; F] {
    #[inline(always)]
    fn load(values: &[T]) -> Self {
        let mut own = [T::ZERO; F];
        own.copy_from_slice(&values[..F]);
        own
    }
    #[inline(always)]
    unsafe fn load_at(values: &[T], first: usize) -> Self {
        debug_assert!(first + F <= values.len());
        let mut own = [T::ZERO; F];
        for f in 0..F {
            // SAFETY: by contract.
            own[f] = *unsafe { values.get_unchecked(first + f) };
        }
        own
    }
    #[inline(always)]
    fn splat(value: T) -> Self {
        [value; F]
    }
    #[inline(always)]
    fn first(self) -> T {
        self[0]
    }
    #[inline(always)]
    fn scale(mut self, factor: Self) -> Self {
        for f in 0..F {
            self[f] = self[f] * factor[f];
        }
        self
    }
    #[inline(always)]
    fn plus(mut self, other: Self) -> Self {
        for f in 0..F {
            self[f] = self[f] + other[f];
        }
        self
    }
    #[inline(always)]
    fn minus(mut self, other: Self) -> Self {
        for f in 0..F {
            self[f] = self[f] - other[f];
        }
        self
    }
    #[inline(always)]
    fn dot(self, other: Self) -> T {
        let mut sum = self[0] * other[0];
        for f in 1..F {
            sum = sum + self[f] * other[f];
        }
        sum
    }
    #[inline(always)]
    fn store(self, out: &mut [T]) {
        out[..F].copy_from_slice(&self);
    }
}

/// Three single-precision fields in an SSE register, which every x86-64 processor has. For `[f32; 3]` the compiler emits
/// scalar instructions, which take twice as long.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Three(core::arch::x86_64::__m128);

#[cfg(target_arch = "x86_64")]
impl Three {
    #[inline(always)]
    fn from_array(values: [f32; 4]) -> Self {
        // SAFETY: SSE is present; loads four values.
        Self(unsafe { core::arch::x86_64::_mm_loadu_ps(values.as_ptr()) })
    }

    #[inline(always)]
    fn to_array(self) -> [f32; 4] {
        let mut values = [0.0; 4];
        // SAFETY: SSE is present; stores four values.
        unsafe { core::arch::x86_64::_mm_storeu_ps(values.as_mut_ptr(), self.0) };
        values
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes<f32> for Three {
    #[inline(always)]
    fn load(values: &[f32]) -> Self {
        match values.first_chunk() {
            Some(four) => Self::from_array(*four),
            None => Self::from_array([values[0], values[1], values[2], 0.0]),
        }
    }
    #[inline(always)]
    unsafe fn load_at(values: &[f32], first: usize) -> Self {
        debug_assert!(first + 4 <= values.len());
        // SAFETY: SSE is present; there are four values by contract.
        Self(unsafe { core::arch::x86_64::_mm_loadu_ps(values.as_ptr().add(first)) })
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self::from_array([value; 4])
    }
    #[inline(always)]
    fn first(self) -> f32 {
        self.to_array()[0]
    }
    #[inline(always)]
    fn scale(self, factor: Self) -> Self {
        // SAFETY: SSE is present.
        Self(unsafe { core::arch::x86_64::_mm_mul_ps(self.0, factor.0) })
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: SSE is present.
        Self(unsafe { core::arch::x86_64::_mm_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        // SAFETY: SSE is present.
        Self(unsafe { core::arch::x86_64::_mm_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn dot(self, other: Self) -> f32 {
        let [x, y, z, _] = self.scale(other).to_array();
        x + y + z
    }
    #[inline(always)]
    fn store(self, out: &mut [f32]) {
        out[..3].copy_from_slice(&self.to_array()[..3]);
    }
}
