//! The transform itself, on the thread of one GPU.

use super::exchange::{Exchange, Hall, Party, Rows};
use super::node::Node;
use super::passes::{Passes, offset};
use super::slabs::{Share, Slabs};
use crate::cuda::Result;
use core::ffi::c_void;

/// One call on one GPU.
#[derive(Clone, Debug)]
pub struct Job {
    /// Who takes part.
    pub party: Party,
    /// From the mesh divided along y to that divided along x.
    pub inverse: bool,
    /// Sign of the exponent.
    pub sign: i64,
    /// Whether the transform along x is left to the caller.
    pub planes_only: bool,
    /// Number of meshes, one after the other in memory.
    pub batch: usize,
    /// Slabs to be transformed.
    pub input: *const c_void,
    /// Where the result belongs.
    pub output: *mut c_void,
    /// Memory of [`scratch_len`] complex values.
    pub scratch: *mut c_void,
}

/// Complex values of scratch memory that a call needs.
#[must_use]
pub fn scratch_len(slabs: &Slabs, inverse: bool, planes_only: bool) -> i64 {
    // To send from; to receive, where that can't be the result.
    let buffers = i64::from(sends_scratch(slabs, inverse, planes_only)) + i64::from(inverse && slabs.real.is_some());
    buffers * slabs.values()
}

/// Whether something is sent that is not what came in.
fn sends_scratch(slabs: &Slabs, inverse: bool, planes_only: bool) -> bool {
    slabs.parts > 1 && !(inverse && planes_only)
}

/// Transforms slabs along x to slabs along y, or back.
///
/// # Safety
/// Pointers and stream are those of a call on the GPU `party.row[party.place]`, whose buffers have the extents of `slabs`.
/// `memory` gives device memory for the time of the call.
///
/// # Errors
/// What failed on this GPU or on another, or who did not come; the result is then arbitrary.
pub unsafe fn transform(
    node: &Node,
    hall: &Hall,
    slabs: &Slabs,
    job: &Job,
    memory: impl FnOnce(usize) -> Result<*mut c_void>,
) -> Result<()> {
    let exchange = Exchange { node, hall, party: &job.party };
    let outcome = Passes::new(node, slabs, job, memory).and_then(|passes| {
        let routes = passes.routes();
        (0..job.batch).try_for_each(|mesh| {
            let at = Buffers::new(slabs, job, mesh);
            // SAFETY: by contract.
            unsafe {
                match (slabs.parts, job.inverse) {
                    (1, false) => passes.forward_alone(&at),
                    (1, true) => passes.inverse_alone(&at),
                    (_, false) => passes.forward(&exchange, &routes, &at),
                    (_, true) => passes.inverse(&exchange, &routes, &at),
                }
            }
        })
    });
    hall.told(&job.party, outcome)
}

/// Addresses of one mesh.
struct Buffers {
    input: *mut c_void,
    output: *mut c_void,
    /// What is sent.
    outgoing: *mut c_void,
    /// Where others write.
    incoming: *mut c_void,
}

impl Buffers {
    fn new(slabs: &Slabs, job: &Job, mesh: usize) -> Self {
        let spectrum = slabs.values() as usize * slabs.item();
        let field = slabs.field_block().iter().product::<i64>() as usize * slabs.field_item();
        let (before, after) = if job.inverse { (spectrum, field) } else { (field, spectrum) };
        let output = offset(job.output, mesh * after);
        let input = offset(job.input.cast_mut(), mesh * before);
        let own_incoming = job.inverse && slabs.real.is_some();
        let sends_scratch = sends_scratch(slabs, job.inverse, job.planes_only);
        let behind = if sends_scratch { spectrum } else { 0 };
        Self {
            input,
            output,
            outgoing: if sends_scratch { job.scratch } else { input },
            incoming: if own_incoming { offset(job.scratch, behind) } else { output },
        }
    }
}

impl Passes<'_> {
    /// # Safety
    /// As for [`transform`].
    unsafe fn forward_alone(&self, at: &Buffers) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            (0..self.slabs.pieces).try_for_each(|piece| self.piece(piece, at.input, at.output))?;
            self.along_x(at.output, at.output)
        }
    }

    /// # Safety
    /// As for [`transform`].
    unsafe fn inverse_alone(&self, at: &Buffers) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            self.along_x(at.input, at.incoming)?;
            (0..self.slabs.pieces).try_for_each(|piece| self.piece(piece, at.incoming, at.output))
        }
    }

    /// What goes where, share after share. All GPUs send at the same distance, so that no two send to the same one.
    fn routes(&self) -> Vec<Vec<(usize, Rows)>> {
        let parts = self.slabs.parts as usize;
        let rows = |share: &Share, to: usize| {
            // The slab along x is the sender's on the way there, the receiver's on the way back.
            if self.inverse {
                self.slabs.common(to as i64, self.place as i64, share).reversed()
            } else {
                self.slabs.common(self.place as i64, to as i64, share)
            }
        };
        let hops = || (0..parts).map(|hop| (self.place + hop) % parts);
        let shares = self.slabs.shares(self.inverse);
        shares.iter().map(|share| hops().map(|to| (to, rows(share, to))).collect()).collect()
    }

    /// # Safety
    /// As for [`transform`].
    unsafe fn forward(&self, exchange: &Exchange<'_>, routes: &[Vec<(usize, Rows)>], at: &Buffers) -> Result<()> {
        let Slabs { pieces, bands, .. } = *self.slabs;
        let banded = self.slabs.banded();
        let begin = || {
            let (ready, mut done) = (self.stream.record()?, Vec::new());
            for piece in 0..pieces {
                // SAFETY: by contract.
                unsafe { self.piece(piece, at.input, at.outgoing) }?;
                if piece < pieces - banded || piece == pieces - 1 {
                    done.push(self.stream.record()?);
                }
            }
            Ok((ready, done))
        };
        // SAFETY: by contract.
        let sent = unsafe { exchange.trade(at.outgoing, at.incoming, begin(), routes) }?;
        for band in 0..bands {
            if banded > 0 {
                exchange.wait_for(&sent, Some((pieces - banded + band) as usize))?;
            } else if band == 0 {
                exchange.wait_for(&sent, None)?;
            }
            // SAFETY: by contract.
            unsafe { self.band(band, at.output, at.output) }?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`transform`].
    unsafe fn inverse(&self, exchange: &Exchange<'_>, routes: &[Vec<(usize, Rows)>], at: &Buffers) -> Result<()> {
        let Slabs { pieces, bands, .. } = *self.slabs;
        let banded = self.slabs.banded();
        let begin = || {
            let (ready, mut done) = (self.stream.record()?, Vec::new());
            for band in 0..bands {
                // SAFETY: by contract.
                unsafe { self.band(band, at.input, at.outgoing) }?;
                if banded > 0 || band == bands - 1 {
                    done.push(self.stream.record()?);
                }
            }
            Ok((ready, done))
        };
        // SAFETY: by contract.
        let sent = unsafe { exchange.trade(at.outgoing, at.incoming, begin(), routes) }?;
        let whole = routes.len() as i64 - (pieces - banded);
        for piece in 0..pieces {
            if piece >= banded || piece == 0 {
                let share = if piece < banded { whole - 1 } else { whole + piece - banded };
                exchange.wait_for(&sent, Some(share as usize))?;
            }
            // SAFETY: by contract.
            unsafe { self.piece(piece, at.incoming, at.output) }?;
        }
        Ok(())
    }
}
