//! The two precisions and their fixed-point accumulators.

use core::fmt::Debug;
use core::ops::{Add, Mul, Sub};

/// f32 or f64.
pub trait Real:
    Copy
    + Send
    + Sync
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + xla_ffi::Element
{
    /// Integer that accumulates contributions. Partial sums may wrap around; the total fits.
    type Sum: Copy + Send + Sync;
    /// Integer with as many bits as the value.
    type Whole: Copy + Send + Sync + xla_ffi::Element;
    /// Zero of the accumulator.
    const ZERO_SUM: Self::Sum;
    /// A sum that valid contributions never have.
    const INVALID_SUM: Self::Sum;
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Not a number.
    const NAN: Self;

    /// Rounds to the nearest value.
    fn from_f64(x: f64) -> Self;
    /// Exact for |x| < 2²⁴.
    fn from_i32(x: i32) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
    /// Rounds toward zero. (A checked conversion is slow.)
    ///
    /// # Safety
    /// |self| < 2³¹
    unsafe fn truncate(self) -> i32;
    /// |x|
    #[must_use]
    fn magnitude(self) -> Self;
    /// Rounds to the nearest integer, halves to the even one.
    #[must_use]
    fn rint(self) -> Self;

    /// The integer in the bits of this value, which are the bits of 1 plus the integer.
    fn whole(self) -> Self::Whole;
    /// The value whose bits hold an integer.
    fn holding(whole: Self::Whole) -> Self;
    /// Whether |x| is in the range of [`rounded`](Self::rounded), half of the integers' range; false if NaN.
    fn is_countable(self) -> bool;
    /// The nearest integer, halves to the even one; 0 if not [countable](Self::is_countable).
    fn rounded(self) -> Self::Whole;
    /// `a + b`, which wraps around.
    fn whole_sum(a: Self::Whole, b: Self::Whole) -> Self::Whole;
    /// `a - b`, which wraps around.
    fn whole_difference(a: Self::Whole, b: Self::Whole) -> Self::Whole;
    /// Rounds to the nearest value.
    fn from_whole(whole: Self::Whole) -> Self;

    /// Whether the value is neither infinite nor NaN.
    fn is_finite(self) -> bool;

    /// Bits of the largest contribution of one particle to a cell, such that the sum over `particles` fits.
    fn contribution_bits(particles: usize) -> i32;
    /// Rounds to the nearest integer, for |x| below 2 to the [`contribution_bits`](Self::contribution_bits).
    fn quantize(x: f64) -> Self::Sum;
    /// `a + b`
    fn sum(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// `sum * resolution`
    fn from_sum(sum: Self::Sum, resolution: f64) -> Self;
    /// The lower and the upper half of the bits.
    fn halves(sum: Self::Sum) -> [Self::Whole; 2];
}

/// Smallest n with 2ⁿ >= x.
pub(crate) fn ceil_log2(x: usize) -> i32 {
    x.max(1).next_power_of_two().trailing_zeros() as i32
}

/// Adding this constant rounds an f64 below 2⁵¹ to an integer, which is then in the low bits.
const ROUNDER: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// What both precisions have in common, with the bits of a value and the end of its countable range.
macro_rules! common {
    ($sum:ty, $whole:ty, $bits:ty, $countable:expr) => {
        type Sum = $sum;
        type Whole = $whole;
        const ZERO_SUM: $sum = 0;
        const INVALID_SUM: $sum = <$sum>::MIN;
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        const NAN: Self = Self::NAN;

        fn from_f64(x: f64) -> Self {
            x as Self
        }
        #[inline(always)]
        fn from_i32(x: i32) -> Self {
            x as Self
        }
        #[inline(always)]
        fn to_f64(self) -> f64 {
            self as f64
        }
        #[inline(always)]
        unsafe fn truncate(self) -> i32 {
            // SAFETY: by contract.
            unsafe { self.to_int_unchecked() }
        }
        #[inline(always)]
        fn magnitude(self) -> Self {
            self.abs()
        }
        #[inline(always)]
        fn rint(self) -> Self {
            self.round_ties_even()
        }
        #[inline(always)]
        fn whole(self) -> $whole {
            (self.to_bits() as $whole).wrapping_sub(Self::ONE.to_bits() as $whole)
        }
        #[inline(always)]
        fn holding(whole: $whole) -> Self {
            Self::from_bits(whole.wrapping_add(Self::ONE.to_bits() as $whole) as $bits)
        }
        #[inline(always)]
        fn is_countable(self) -> bool {
            self.abs() < $countable
        }
        #[inline(always)]
        fn rounded(self) -> $whole {
            let some = if self.is_countable() { self.rint() } else { 0.0 };
            // SAFETY: a finite value within half the range.
            unsafe { some.to_int_unchecked() }
        }
        #[inline(always)]
        fn whole_sum(a: $whole, b: $whole) -> $whole {
            a.wrapping_add(b)
        }
        #[inline(always)]
        fn whole_difference(a: $whole, b: $whole) -> $whole {
            a.wrapping_sub(b)
        }
        #[inline(always)]
        fn from_whole(whole: $whole) -> Self {
            whole as Self
        }
        #[inline(always)]
        fn is_finite(self) -> bool {
            Self::is_finite(self)
        }
        #[inline(always)]
        fn sum(a: $sum, b: $sum) -> $sum {
            a.wrapping_add(b)
        }
        #[inline(always)]
        fn from_sum(sum: $sum, resolution: f64) -> Self {
            (sum as f64 * resolution) as Self
        }
        #[inline(always)]
        fn halves(sum: $sum) -> [$whole; 2] {
            [sum as $whole, (sum >> <$whole>::BITS) as $whole]
        }
    };
}

impl Real for f32 {
    common!(i64, i32, u32, 1_073_741_824.0);

    fn contribution_bits(particles: usize) -> i32 {
        (62 - ceil_log2(particles)).min(50)
    }
    #[inline(always)]
    fn quantize(x: f64) -> i64 {
        ((x + ROUNDER).to_bits() as i64).wrapping_sub(ROUNDER.to_bits() as i64)
    }
}

impl Real for f64 {
    common!(i128, i64, u64, 4_611_686_018_427_387_904.0);

    fn contribution_bits(_particles: usize) -> i32 {
        61 // of an i64; 2^66 of them fit into the i128
    }
    #[inline(always)]
    fn quantize(x: f64) -> i128 {
        (x as i64).into()
    }
}
