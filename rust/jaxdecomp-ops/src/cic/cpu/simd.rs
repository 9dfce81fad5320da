//! Hot loops compiled twice: for the baseline vector instructions and for AVX2.
//!
//! Products and sums are never contracted: both versions return the same bits.

/// A hot loop. `run` and its callees must be `#[inline(always)]`: only inlined code is compiled for AVX2.
pub(crate) trait Work {
    /// Result of the loop.
    type Output;
    /// Runs the loop.
    fn run(self) -> Self::Output;
}

/// Runs a loop with the widest vectors of this processor.
#[inline]
pub(crate) fn widest<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("bmi2") {
        // SAFETY: the processor has both features.
        return unsafe { avx2(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn avx2<W: Work>(work: W) -> W::Output {
    work.run()
}
