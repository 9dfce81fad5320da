//! Hot loops, compiled for the vectors that any processor has and for those that most have.
//!
//! Products and sums are never contracted, so both give the same bits.

/// A hot loop. `run` and all that it calls must be `#[inline(always)]`: only what is inlined is compiled again.
pub(crate) trait Work {
    /// What it returns.
    type Output;
    /// Does the work.
    fn run(self) -> Self::Output;
}

/// Does the work with the widest vectors of this processor.
#[inline]
pub(crate) fn widest<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("bmi2") {
        // SAFETY: the processor has both.
        return unsafe { avx2(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn avx2<W: Work>(work: W) -> W::Output {
    work.run()
}
