//! Particles sorted by x-plane, for displacements far from lattice order: 4 bytes a particle.

use super::batch::{Batch, SIZE};
use crate::cic::geometry::Geometry;
use crate::cic::real::Real;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Site numbers sorted by the x-plane of the lower cell, in lattice order within a plane.
pub(crate) struct Order {
    sites: Vec<u32>,
    starts: Vec<usize>,
}

impl Order {
    /// Sorts fewer than 2³² particles by counting.
    pub(crate) fn sort<T: Real>(geometry: &Geometry<T>, disp: &[T], pool: &dyn Parallel) -> Self {
        let planes = geometry.cells()[0];
        let share = geometry.sites()[0].div_ceil(4 * pool.threads());
        let shares = geometry.sites()[0].div_ceil(share);
        let mut counts = vec![0_u32; shares * planes];
        let tasks: Vec<_> = counts.chunks_mut(planes).map(Mutex::new).collect();
        pool.run(shares, &|mine| {
            for task in mine {
                let mut counts = tasks[task].lock().unwrap_or_else(PoisonError::into_inner);
                visit(geometry, disp, task * share, share, |_, plane| counts[plane] += 1);
            }
        });
        drop(tasks);
        let starts = cumulate(&mut counts, planes);
        let sites: Vec<AtomicU32> = (0..geometry.particles()).map(|_| AtomicU32::new(0)).collect();
        let tasks: Vec<_> = counts.chunks_mut(planes).map(Mutex::new).collect();
        pool.run(shares, &|mine| {
            for task in mine {
                let mut next = tasks[task].lock().unwrap_or_else(PoisonError::into_inner);
                visit(geometry, disp, task * share, share, |site, plane| {
                    // No two tasks share a slot; relaxed stores compile to plain stores.
                    sites[next[plane] as usize].store(site, Relaxed);
                    next[plane] += 1;
                });
            }
        });
        Self { sites: sites.into_iter().map(AtomicU32::into_inner).collect(), starts }
    }

    /// Particles whose lower cell lies in `planes`.
    pub(crate) fn of(&self, planes: Range<usize>) -> &[u32] {
        &self.sites[self.starts[planes.start]..self.starts[planes.end]]
    }
}

/// Converts counts (by share, then plane) to first slots; returns the first slot of each plane.
fn cumulate(counts: &mut [u32], planes: usize) -> Vec<usize> {
    let mut starts = Vec::with_capacity(planes + 1);
    let mut slot = 0;
    for plane in 0..planes {
        starts.push(slot as usize);
        for count in counts[plane..].iter_mut().step_by(planes) {
            slot += core::mem::replace(count, slot);
        }
    }
    starts.push(slot as usize);
    starts
}

/// Calls `action` with site number and x-plane of each particle of some lattice planes.
fn visit<T: Real>(geometry: &Geometry<T>, disp: &[T], first: usize, planes: usize, mut action: impl FnMut(u32, usize)) {
    let [px, py, pz] = geometry.sites();
    let mut batch = Batch::new();
    for i in first..(first + planes).min(px) {
        for j in 0..py {
            let row = (i * py + j) * pz;
            let pieces = disp[3 * row..3 * (row + pz)].chunks(3 * SIZE);
            for (n, piece) in pieces.enumerate() {
                batch.locate_row(geometry, piece, [i, j, n * SIZE]);
                batch.wrap(geometry);
                let found = batch.site.iter().zip(&batch.cell[0]);
                found.take(batch.len).for_each(|(&site, &cell)| action(site, cell as usize));
            }
        }
    }
}
