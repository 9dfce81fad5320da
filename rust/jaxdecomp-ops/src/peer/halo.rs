//! Halos of blocks that are divided along their first axis.

use super::exchange::{Exchange, Hall, Party, Rows};
use super::node::Node;
use crate::cuda::Result;
use core::ffi::c_void;

/// Blocks of planes that follow each other in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Number of blocks.
    pub batch: usize,
    /// Planes of a block, without halos.
    pub count: usize,
    /// Planes of a halo, on each side; no more than those of a block.
    pub halo: usize,
    /// Bytes of a plane.
    pub bytes: usize,
}

/// What is done with the halos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Blocks get halos: the result is padded.
    Pad,
    /// Operand and result are pairs of edges, below and above; those above go to the next GPU's below, and the other way
    /// round.
    Swap,
}

impl Planes {
    /// Planes of a block of the operand and of the result.
    #[must_use]
    pub fn extents(&self, purpose: Purpose) -> [usize; 2] {
        match purpose {
            Purpose::Pad => [self.count, self.count + 2 * self.halo],
            Purpose::Swap => [2 * self.halo; 2],
        }
    }

    /// So many planes of each block, from one place in the operand to one in the result.
    fn rows(&self, purpose: Purpose, planes: usize, from: usize, to: usize) -> impl Iterator<Item = Rows> {
        let ([before, after], bytes) = (self.extents(purpose), self.bytes);
        // A block may be longer than the pitch of rows may be.
        (0..self.batch).map(move |mesh| {
            let offsets = [(mesh * before + from) * bytes, (mesh * after + to) * bytes];
            Rows { offsets, pitches: [planes * bytes; 2], width: planes * bytes, height: 1 }
        })
    }

    /// What goes to the GPU below, to the one above, and what stays.
    fn routes(&self, purpose: Purpose, party: &Party) -> Vec<(usize, Rows)> {
        let (parts, halo, count) = (party.row.len(), self.halo, self.count);
        let (below, above) = ((party.place + parts - 1) % parts, (party.place + 1) % parts);
        let routes = match purpose {
            Purpose::Pad => {
                vec![(above, halo, count - halo, 0), (below, halo, 0, halo + count), (party.place, count, 0, halo)]
            }
            Purpose::Swap => vec![(above, halo, halo, 0), (below, halo, 0, halo)],
        };
        let each = |(to, planes, from, at)| self.rows(purpose, planes, from, at).map(move |rows| (to, rows));
        routes.into_iter().flat_map(each).collect()
    }
}

/// Fills halos, or exchanges edges.
///
/// # Safety
/// `input` and `output` are memory of the GPU `party.row[party.place]`, of the extents of `planes`.
///
/// # Errors
/// What failed on this GPU or on another, or who did not come; the result is then arbitrary.
pub unsafe fn exchange_planes(
    node: &Node,
    hall: &Hall,
    party: &Party,
    (planes, purpose): (&Planes, Purpose),
    input: *const c_void,
    output: *mut c_void,
) -> Result<()> {
    let exchange = Exchange { node, hall, party };
    let begin = || {
        node.enter()?;
        node.reach(&party.row)?;
        let stream = exchange.stream();
        // What others may write to is free once the operand is there: XLA's stream does one thing after the other.
        Ok((stream.record()?, vec![stream.record()?]))
    };
    // SAFETY: by contract.
    let sent = unsafe { exchange.trade(input.cast_mut(), output, begin(), &[planes.routes(purpose, party)]) };
    hall.told(party, sent.and_then(|sent| exchange.wait_for(&sent, None)))
}
