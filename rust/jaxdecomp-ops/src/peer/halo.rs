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
    /// Number of planes of a halo on each side, to be filled at most `count`.
    pub halo: usize,
    /// Bytes of a plane.
    pub bytes: usize,
}

/// Kind of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Fills halos: the result is padded.
    Pad,
    /// Swaps the halos of padded blocks: the lower one becomes the upper one of the result on the GPU below, and vice versa.
    Swap,
}

impl Planes {
    /// Number of planes of a block of the operand and of the result.
    #[must_use]
    pub fn extents(&self, purpose: Purpose) -> [usize; 2] {
        match purpose {
            Purpose::Pad => [self.count, self.count + 2 * self.halo],
            Purpose::Swap => [self.count + 2 * self.halo, 2 * self.halo],
        }
    }

    /// Copies of `planes` planes of each block, between plane indices in blocks of `extents`.
    fn rows(&self, extents: [usize; 2], planes: usize, from: usize, to: usize) -> impl Iterator<Item = Rows> {
        let ([before, after], bytes) = (extents, self.bytes);
        // One copy for each block: a block may exceed the largest pitch.
        (0..self.batch).map(move |mesh| {
            let offsets = [(mesh * before + from) * bytes, (mesh * after + to) * bytes];
            Rows { offsets, pitches: [planes * bytes; 2], width: planes * bytes, height: 1 }
        })
    }

    /// Destination ranks and rows of the edges. They go to the result, or to mailboxes that hold nothing else.
    fn edges(&self, purpose: Purpose, participant: &Participant) -> Vec<(usize, Rows)> {
        let (num_shards, rank, halo) = (participant.group.len(), participant.rank, self.halo);
        let (below, above) = ((rank + num_shards - 1) % num_shards, (rank + 1) % num_shards);
        let [before, mut after] = self.extents(purpose);
        if participant.link.is_some() {
            after = 2 * halo;
        }
        let each = |(to, from, at)| self.rows([before, after], halo, from, at).map(move |rows| (to, rows));
        [(above, before - halo, 0), (below, 0, after - halo)].into_iter().flat_map(each).collect()
    }

    /// Copies of the block itself to the result, and of edges from the mailbox to the result.
    fn moves(&self, purpose: Purpose) -> [Vec<Rows>; 2] {
        let (halo, extents @ [_, after]) = (self.halo, self.extents(purpose));
        let own = if purpose == Purpose::Pad { self.count } else { 0 };
        let edges = [(0, 0), (halo, after - halo)].map(|(from, to)| self.rows([2 * halo, after], halo, from, to));
        [
            self.rows(extents, own, 0, halo).filter(|rows| rows.width > 0).collect(),
            edges.into_iter().flatten().collect(),
        ]
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
    let label = format!("halo of {planes:?}, {purpose:?}");
    let exchange = Exchange { node, rendezvous, participant, label: &label };
    let _turn = participant.link.as_ref().map(|link| link.turn());
    let (stream, [block, edges]) = (exchange.stream(), planes.moves(purpose));
    let mut routes = planes.edges(purpose, participant);
    if participant.link.is_none() {
        routes.extend(block.iter().map(|rows| (participant.rank, *rows)));
    }
    let work = || {
        node.enter()?;
        participant.enable_access(node)?;
        let receive = exchange.receive_buffer(output, 2 * planes.halo * planes.batch * planes.bytes)?;
        // The receive buffer is free once the operand is present: XLA's stream is sequential.
        let begin = || Ok((exchange.mark_free()?, vec![stream.record()?]));
        // SAFETY: by contract.
        let (_, sent) = unsafe { exchange.all_to_all(input.cast_mut(), receive, begin(), &[routes]) }?;
        let copy = |rows: &Rows, from: usize| {
            // SAFETY: by contract.
            unsafe { stream.copy(&rows.copy(from, output as usize)) }
        };
        if participant.link.is_some() {
            block.iter().try_for_each(|rows| copy(rows, input as usize))?;
        }
        exchange.wait_for(&sent, None)?;
        if participant.link.is_some() {
            edges.iter().try_for_each(|rows| copy(rows, receive as usize))?;
        }
        exchange.finish()
    };
    rendezvous.abort_on_error(participant, work())
}
