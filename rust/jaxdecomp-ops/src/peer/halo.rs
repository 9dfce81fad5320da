//! Halos of blocks divided along their first axis.

use super::exchange::{Exchange, Participant, Rendezvous, Rows};
use super::node::Node;
use crate::cuda::Result;
use core::ffi::c_void;

/// Blocks of planes, consecutive in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Number of blocks.
    pub batch: usize,
    /// Number of planes of a block without halos.
    pub count: usize,
    /// Number of planes of a halo on each side, at most `count`.
    pub halo: usize,
    /// Bytes of a plane.
    pub bytes: usize,
}

/// Kind of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Fills halos: the result is padded.
    Pad,
    /// Swaps edges: the lower edge of a block becomes the upper edge of the result on the GPU below, and vice versa.
    Swap,
}

impl Planes {
    /// Number of planes of a block of the operand and of the result.
    #[must_use]
    pub fn extents(&self, purpose: Purpose) -> [usize; 2] {
        match purpose {
            Purpose::Pad => [self.count, self.count + 2 * self.halo],
            Purpose::Swap => [2 * self.halo; 2],
        }
    }

    /// Copies of `planes` planes of each block, between plane indices in operand and result.
    fn rows(&self, purpose: Purpose, planes: usize, from: usize, to: usize) -> impl Iterator<Item = Rows> {
        let ([before, after], bytes) = (self.extents(purpose), self.bytes);
        // One copy for each block: a block may exceed the largest pitch.
        (0..self.batch).map(move |mesh| {
            let offsets = [(mesh * before + from) * bytes, (mesh * after + to) * bytes];
            Rows { offsets, pitches: [planes * bytes; 2], width: planes * bytes, height: 1 }
        })
    }

    /// Destination ranks and rows of all copies.
    fn routes(&self, purpose: Purpose, participant: &Participant) -> Vec<(usize, Rows)> {
        let (num_shards, rank, halo, count) = (participant.group.len(), participant.rank, self.halo, self.count);
        let (below, above) = ((rank + num_shards - 1) % num_shards, (rank + 1) % num_shards);
        let routes = match purpose {
            Purpose::Pad => {
                vec![(above, halo, count - halo, 0), (below, halo, 0, halo + count), (rank, count, 0, halo)]
            }
            Purpose::Swap => vec![(above, halo, halo, 0), (below, halo, 0, halo)],
        };
        let each = |(to, planes, from, at)| self.rows(purpose, planes, from, at).map(move |rows| (to, rows));
        routes.into_iter().flat_map(each).collect()
    }
}

/// Fills halos or swaps edges.
///
/// # Safety
/// `input` and `output` are memory of the participant's GPU, with the extents of `planes`.
///
/// # Errors
/// The failure of this GPU or of a peer, or a timeout; the result is then undefined.
pub unsafe fn exchange_planes(
    node: &Node,
    rendezvous: &Rendezvous,
    participant: &Participant,
    (planes, purpose): (&Planes, Purpose),
    input: *const c_void,
    output: *mut c_void,
) -> Result<()> {
    let exchange = Exchange { node, rendezvous, participant };
    let begin = || {
        node.enter()?;
        node.enable_peer_access(&participant.group)?;
        let stream = exchange.stream();
        // The receive buffer is free once the operand is present: XLA's stream is sequential.
        Ok((stream.record()?, vec![stream.record()?]))
    };
    // SAFETY: by contract.
    let sent =
        unsafe { exchange.all_to_all(input.cast_mut(), output, begin(), &[planes.routes(purpose, participant)]) };
    rendezvous.abort_on_error(participant, sent.and_then(|sent| exchange.wait_for(&sent, None)))
}
