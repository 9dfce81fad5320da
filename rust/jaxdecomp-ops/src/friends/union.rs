//! Disjoint sets that several threads join at once.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Sets of numbers as trees, whose roots are their least numbers: a parent is below its children, so no cycle arises.
pub(super) struct Sets {
    parents: Vec<AtomicU32>,
}

impl Sets {
    /// Sets of one number each.
    pub(super) fn new(count: usize) -> Self {
        Self { parents: (0..count as u32).map(AtomicU32::new).collect() }
    }

    /// The root of a number's set, halving the path to it. A stale parent is still an ancestor.
    pub(super) fn root(&self, mut number: u32) -> u32 {
        loop {
            let parent = self.parents[number as usize].load(Relaxed);
            if parent == number {
                return number;
            }
            let grandparent = self.parents[parent as usize].load(Relaxed);
            if grandparent != parent {
                self.parents[number as usize].store(grandparent, Relaxed);
            }
            number = parent;
        }
    }

    /// Joins the sets of two numbers.
    pub(super) fn unite(&self, one: u32, other: u32) {
        loop {
            let (one, other) = (self.root(one), self.root(other));
            let (low, high) = (one.min(other), one.max(other));
            // Fails if another thread has joined the upper root to a set in the meantime.
            if low == high || self.parents[high as usize].compare_exchange(high, low, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }
}
