//! Memory for integer sums, which threads keep: fresh memory costs a page fault every 4 KiB.

use crate::cic::real::Real;
use core::cell::Cell;
use core::marker::PhantomData;

/// Most memory that a thread keeps [bytes].
const KEPT: usize = 1 << 23;

thread_local! {
    static WORDS: Cell<Vec<u128>> = const { Cell::new(Vec::new()) };
}

/// Integer sums of `L` fields for each of some cells.
pub(crate) struct Sums<T, const L: usize> {
    words: Vec<u128>,
    cells: usize,
    real: PhantomData<T>,
}

impl<T: Real, const L: usize> Sums<T, L> {
    const ALIGNED: () = assert!(align_of::<[T::Sum; L]>() <= align_of::<u128>());

    /// No sums, in the memory that this thread has kept.
    pub(crate) fn new() -> Self {
        Self { words: WORDS.take(), cells: 0, real: PhantomData }
    }

    /// Makes sums of zero for some cells.
    #[inline(always)]
    pub(crate) fn clear(&mut self, cells: usize) {
        self.words.clear();
        self.words.resize((cells * size_of::<[T::Sum; L]>()).div_ceil(size_of::<u128>()), 0);
        self.cells = cells;
    }

    /// The sums of all cells.
    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [[T::Sum; L]] {
        let () = Self::ALIGNED;
        // SAFETY: `clear` made as many words as the sums need, which are aligned; integers may have any bits.
        unsafe { core::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.cells) }
    }
}

impl<T, const L: usize> Drop for Sums<T, L> {
    fn drop(&mut self) {
        if self.words.capacity() * size_of::<u128>() <= KEPT {
            WORDS.set(core::mem::take(&mut self.words));
        }
    }
}
