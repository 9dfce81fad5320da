//! Transform of slabs on the thread of one GPU.

use super::exchange::{Exchange, Rendezvous, Rows};
use super::job::{Job, sends_scratch};
use super::node::Node;
use super::passes::{Passes, offset};
use super::slabs::{Share, Slabs};
use crate::cuda::Result;
use core::ffi::c_void;

/// Transforms slabs divided along x to slabs divided along y, or the inverse.
///
/// # Safety
/// Pointers and stream belong to a call on the participant's GPU, with buffers of the extents of `slabs`. `memory` allocates
/// device memory for the duration of the call.
///
/// # Errors
/// The failure of this GPU or of a peer, or a timeout; the result is then undefined.
pub unsafe fn transform(
    node: &Node,
    rendezvous: &Rendezvous,
    slabs: &Slabs,
    job: &Job,
    memory: impl FnOnce(usize) -> Result<*mut c_void>,
) -> Result<()> {
    let (participant, Job { inverse, sign, planes_only, .. }) = (&job.participant, job);
    let label = format!("transform of {slabs:?}, inverse {inverse}, sign {sign}, planes only {planes_only}");
    let exchange = Exchange { node, rendezvous, participant, label: &label };
    let _turn = participant.link.as_ref().map(|link| link.turn());
    let outcome = Passes::new(node, slabs, job, memory).and_then(|passes| {
        let routes = passes.routes();
        (0..job.batch).try_for_each(|mesh| {
            let mut at = Buffers::new(slabs, job, mesh);
            at.receive = exchange.receive_buffer(at.receive, slabs.values() as usize * slabs.item())?;
            // SAFETY: by contract.
            unsafe {
                match (slabs.num_shards, job.inverse) {
                    (1, false) => passes.forward_on_one(&at),
                    (1, true) => passes.inverse_on_one(&at),
                    (_, false) => passes.forward(&exchange, &routes, &at),
                    (_, true) => passes.inverse(&exchange, &routes, &at),
                }
            }
        })
    });
    rendezvous.abort_on_error(&job.participant, outcome)
}

/// Addresses of the buffers of one mesh.
struct Buffers {
    input: *mut c_void,
    output: *mut c_void,
    send: *mut c_void,
    /// Memory that peers write to.
    receive: *mut c_void,
}

impl Buffers {
    fn new(slabs: &Slabs, job: &Job, mesh: usize) -> Self {
        let spectrum = slabs.values() as usize * slabs.item();
        let field = slabs.field_block().iter().product::<i64>() as usize * slabs.field_item();
        let (before, after) = if job.inverse { (spectrum, field) } else { (field, spectrum) };
        let output = offset(job.output, mesh * after);
        let input = offset(job.input.cast_mut(), mesh * before);
        let receives_scratch = job.inverse && slabs.real.is_some();
        let sends_scratch = sends_scratch(slabs, job.inverse, job.planes_only);
        let behind = if sends_scratch { spectrum } else { 0 };
        Self {
            input,
            output,
            send: if sends_scratch { job.scratch } else { input },
            receive: if receives_scratch { offset(job.scratch, behind) } else { output },
        }
    }
}

impl Passes<'_> {
    /// # Safety
    /// As for [`transform`].
    unsafe fn forward_on_one(&self, at: &Buffers) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            (0..self.slabs.pieces).try_for_each(|piece| self.piece(piece, at.input, at.output))?;
            self.along_x(at.output, at.output)
        }
    }

    /// # Safety
    /// As for [`transform`].
    unsafe fn inverse_on_one(&self, at: &Buffers) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            self.along_x(at.input, at.receive)?;
            (0..self.slabs.pieces).try_for_each(|piece| self.piece(piece, at.receive, at.output))
        }
    }

    /// Destination ranks and rows of each share. All GPUs send over the same distance at a time, so that no two send to the
    /// same GPU.
    pub(super) fn routes(&self) -> Vec<Vec<(usize, Rows)>> {
        let num_shards = self.slabs.num_shards as usize;
        let rows = |share: &Share, to: usize| {
            // The slab along x is the sender's in the forward, the receiver's in the inverse direction.
            if self.inverse {
                self.slabs.common(to as i64, self.rank as i64, share).reversed()
            } else {
                self.slabs.common(self.rank as i64, to as i64, share)
            }
        };
        let hops = || (0..num_shards).map(|hop| (self.rank + hop) % num_shards);
        let shares = self.slabs.shares(self.inverse);
        shares.iter().map(|share| hops().map(|to| (to, rows(share, to))).collect()).collect()
    }

    /// # Safety
    /// As for [`transform`].
    unsafe fn forward(&self, exchange: &Exchange<'_>, routes: &[Vec<(usize, Rows)>], at: &Buffers) -> Result<()> {
        let Slabs { pieces, bands, .. } = *self.slabs;
        let banded = self.slabs.banded();
        let begin = || {
            let (free, mut done) = (exchange.mark_free()?, Vec::new());
            for piece in 0..pieces {
                // SAFETY: by contract.
                unsafe { self.piece(piece, at.input, at.send) }?;
                if piece < pieces - banded || piece == pieces - 1 {
                    done.push(self.stream.record()?);
                }
            }
            Ok((free, done))
        };
        // SAFETY: by contract.
        let (_, sent) = unsafe { exchange.all_to_all(at.send, at.receive, begin(), routes) }?;
        for band in 0..bands {
            if banded > 0 {
                exchange.wait_for(&sent, Some((pieces - banded + band) as usize))?;
            } else if band == 0 {
                exchange.wait_for(&sent, None)?;
            }
            // SAFETY: by contract.
            unsafe { self.band(band, at.receive, at.output) }?;
        }
        exchange.finish()
    }

    /// # Safety
    /// As for [`transform`].
    unsafe fn inverse(&self, exchange: &Exchange<'_>, routes: &[Vec<(usize, Rows)>], at: &Buffers) -> Result<()> {
        let Slabs { pieces, bands, .. } = *self.slabs;
        let banded = self.slabs.banded();
        let begin = || {
            let (free, mut done) = (exchange.mark_free()?, Vec::new());
            for band in 0..bands {
                // SAFETY: by contract.
                unsafe { self.band(band, at.input, at.send) }?;
                if banded > 0 || band == bands - 1 {
                    done.push(self.stream.record()?);
                }
            }
            Ok((free, done))
        };
        // SAFETY: by contract.
        let (_, sent) = unsafe { exchange.all_to_all(at.send, at.receive, begin(), routes) }?;
        let whole = routes.len() as i64 - (pieces - banded);
        for piece in 0..pieces {
            if piece >= banded || piece == 0 {
                let share = if piece < banded { whole - 1 } else { whole + piece - banded };
                exchange.wait_for(&sent, Some(share as usize))?;
            }
            // SAFETY: by contract.
            unsafe { self.piece(piece, at.receive, at.output) }?;
        }
        exchange.finish()
    }
}
