//! Exchange of addresses and marks between the GPUs' threads or processes, and the copies between them.

use super::link::{Link, Sent};
use super::node::Node;
use super::rendezvous::{Failure, RendezvousMap};
use crate::cuda::driver::{Copy2d, CopyEnd};
use crate::cuda::{Error, Mark, Opaque, Result, Stream};
use core::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// Key of a rendezvous: run and group of GPUs.
type Key = (i64, Vec<i32>);
/// Address of a GPU's receive buffer, and the mark after which peers may write to it.
type ReceiveBuffer = Result<(usize, Mark)>;

/// The two rendezvous of each exchange.
#[derive(Debug)]
pub struct Rendezvous {
    receive_buffers: RendezvousMap<Key, ReceiveBuffer>,
    sent: RendezvousMap<Key, Sent>,
}

impl Rendezvous {
    /// Creates a rendezvous; `timeout` bounds the wait of each participant.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self { receive_buffers: RendezvousMap::new(timeout), sent: RendezvousMap::new(timeout) }
    }

    /// Returns the outcome of a call. After a failure, aborts the run for the other participants.
    pub(super) fn abort_on_error<T>(&self, participant: &Participant, outcome: Result<T>) -> Result<T> {
        if let (Err(error), Some(link)) = (&outcome, &participant.link) {
            link.abort(participant.stream, error);
        } else if let Err(error) = &outcome {
            let (key, reason) = (participant.key(), format!("on GPU {}: {error}", participant.ordinal()));
            self.receive_buffers.abort(&key, &reason);
            self.sent.abort(&key, &reason);
        }
        outcome
    }
}

/// One GPU among those of a call.
#[derive(Clone, Debug)]
pub struct Participant {
    /// XLA's number of the run.
    pub run_id: i64,
    /// Ordinals of the GPUs by rank, or numbers of their processes.
    pub group: Vec<i32>,
    /// Rank of this GPU in the group.
    pub rank: usize,
    /// XLA's stream.
    pub stream: Opaque,
    /// Link to the processes of the other GPUs; none if this process drives them all.
    pub link: Option<Arc<Link>>,
}

impl Participant {
    fn key(&self) -> Key {
        (self.run_id, self.group.clone())
    }

    /// Enables access of the current GPU to the memory of the others.
    pub(super) fn enable_access(&self, node: &Node) -> Result<()> {
        if self.link.is_some() { Ok(()) } else { node.enable_peer_access(&self.group) }
    }

    fn ordinal(&self) -> i32 {
        self.group[self.rank]
    }
}

/// A copy of rows of bytes from one memory to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Offsets of the first row in source and destination.
    pub offsets: [usize; 2],
    /// Distances of rows in source and destination.
    pub pitches: [usize; 2],
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl Rows {
    /// The copy in the opposite direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        let ([a, b], [c, d]) = (self.offsets, self.pitches);
        Self { offsets: [b, a], pitches: [d, c], ..self }
    }

    pub(super) fn copy(&self, from: usize, to: usize) -> Copy2d {
        Copy2d {
            src: CopyEnd::new(from + self.offsets[0], self.pitches[0]),
            dst: CopyEnd::new(to + self.offsets[1], self.pitches[1]),
            width: self.width,
            height: self.height,
        }
    }
}

/// Marks after which peers may write to the receive buffer, and after which each piece can be sent. The last one also
/// applies to all further pieces.
pub(super) type SendReady = Result<(Mark, Vec<Mark>)>;

/// The exchange of one GPU with others.
pub(super) struct Exchange<'a> {
    pub(super) node: &'a Node,
    pub(super) rendezvous: &'a Rendezvous,
    pub(super) participant: &'a Participant,
    /// Name, the same on all GPUs.
    pub(super) label: &'a str,
}

impl Exchange<'_> {
    /// XLA's stream.
    pub(super) fn stream(&self) -> Stream {
        self.node.stream(self.participant.stream)
    }

    /// Memory that peers write to: `own`, or a mailbox where they are other processes.
    pub(super) fn receive_buffer(&self, own: *mut c_void, bytes: usize) -> Result<*mut c_void> {
        match &self.participant.link {
            None => Ok(own),
            Some(link) => Ok(link.mailbox(&self.stream(), bytes)? as *mut c_void),
        }
    }

    /// The mark after which peers may write to the receive buffer.
    pub(super) fn mark_free(&self) -> Result<Mark> {
        let Some(link) = &self.participant.link else { return self.stream().record() };
        let word = link.free(self.participant.rank);
        self.stream().write(word)?;
        Ok(Mark::Word(word))
    }

    /// Exchanges pieces between all GPUs of the group. `pieces[i]` lists the destination rank and the rows of piece `i`. Returns
    /// the addresses of all receive buffers, too.
    ///
    /// # Safety
    /// `send_buffer` and `receive_buffer` are device memory that contains all rows.
    pub(super) unsafe fn all_to_all(
        &self,
        send_buffer: *mut c_void,
        receive_buffer: *mut c_void,
        ready: SendReady,
        pieces: &[Vec<(usize, Rows)>],
    ) -> Result<(Vec<usize>, Arc<[Sent]>)> {
        let addresses = |all: &[&(usize, Mark)]| all.iter().map(|(address, _)| *address).collect();
        if let Some(link) = &self.participant.link {
            let mailboxes = link.mailboxes();
            let mailboxes: Vec<_> = mailboxes.iter().collect();
            // SAFETY: by contract.
            let send = |(_, done): (Mark, Vec<Mark>)| unsafe { self.send(send_buffer, &mailboxes, &done, pieces) };
            let sent = link.conclude(self.label, ready.and_then(send), pieces.len())?;
            return Ok((addresses(&mailboxes), sent));
        }
        let (own, done) = match ready {
            Ok((free, done)) => (Ok((receive_buffer as usize, free)), done),
            Err(error) => (Err(error), Vec::new()),
        };
        let receive_buffers = self.join(&self.rendezvous.receive_buffers, own)?;
        let receive_buffers = self.successes(&receive_buffers)?;
        // SAFETY: by contract.
        let sent = unsafe { self.send(send_buffer, &receive_buffers, &done, pieces) };
        if sent.is_err() {
            self.finish_copies();
        }
        let sent = self.join(&self.rendezvous.sent, sent).inspect_err(|_| self.finish_copies())?;
        if let Err(error) = self.successes(&sent) {
            // XLA reuses memory in stream order, while peers may still write to it.
            self.wait_for(&sent, None)?;
            return Err(error);
        }
        Ok((addresses(&receive_buffers), sent))
    }

    /// Makes XLA's stream wait until all GPUs have sent a piece, by default the last one.
    pub(super) fn wait_for(&self, sent: &[Sent], piece: Option<usize>) -> Result<()> {
        let stream = self.stream();
        for (rank, pieces) in sent.iter().enumerate() {
            let Ok(pieces) = pieces else { continue };
            let Some([remote, local]) = piece.map_or_else(|| pieces.last(), |piece| pieces.get(piece)) else {
                continue;
            };
            stream.wait(remote)?;
            if rank == self.participant.rank {
                stream.wait(local)?;
            }
        }
        Ok(())
    }

    /// Marks the end of the waits for an exchange.
    pub(super) fn finish(&self) -> Result<()> {
        self.participant.link.as_ref().map_or(Ok(()), |link| self.stream().write(link.done()))
    }

    /// Waits for the copies of this GPU. After a failure, peers may free their memory as soon as they are notified.
    fn finish_copies(&self) {
        // A failed stream runs no further work.
        let _ = self.node.remote.finish();
        let _ = self.node.local.finish();
    }

    /// # Safety
    /// As for [`Self::all_to_all`].
    unsafe fn send(
        &self,
        send_buffer: *mut c_void,
        receive_buffers: &[&(usize, Mark)],
        done: &[Mark],
        pieces: &[Vec<(usize, Rows)>],
    ) -> Sent {
        let Node { remote, local, .. } = self.node;
        // This GPU's own buffer is free once its first piece is done: XLA's stream is sequential.
        for (rank, (_, free)) in receive_buffers.iter().enumerate() {
            if rank != self.participant.rank {
                remote.wait(free)?;
            }
        }
        let mut sent = Vec::new();
        for (piece, rows) in pieces.iter().enumerate() {
            if let Some(done) = done.get(piece) {
                remote.wait(done)?;
                local.wait(done)?;
            }
            for (to, rows) in rows {
                let (receive_buffer, _) = receive_buffers[*to];
                let stream = if *to == self.participant.rank { local } else { remote };
                // SAFETY: by contract.
                unsafe { stream.copy(&rows.copy(send_buffer as usize, *receive_buffer)) }?;
            }
            let mark = if let Some(link) = &self.participant.link {
                let word = link.sent(self.participant.rank, piece);
                remote.write(word)?;
                Mark::Word(word)
            } else {
                remote.record()?
            };
            sent.push([mark, local.record()?]);
        }
        Ok(sent)
    }

    /// Values of all GPUs by rank.
    fn join<T>(&self, map: &RendezvousMap<Key, Result<T>>, value: Result<T>) -> Result<Arc<[Result<T>]>> {
        let Participant { group, rank, .. } = self.participant;
        let (own, size) = (value.as_ref().err().cloned(), group.len());
        map.join(&self.participant.key(), *rank, size, value).map_err(|failure| match (own, failure) {
            (Some(error), _) => error,
            (None, Failure::Aborted(reason)) => Error(reason),
            (None, Failure::Timeout(joined)) => {
                let what = format!("timeout: {joined} of the {size} GPUs {group:?} joined the exchange");
                Error(format!("{what}; the others run another program, or failed"))
            }
        })
    }

    /// Values of all GPUs, or the first failure among them.
    fn successes<'t, T>(&self, all: &'t [Result<T>]) -> Result<Vec<&'t T>> {
        let own = self.participant.ordinal();
        let each = self.participant.group.iter().zip(all).map(|(&ordinal, value)| {
            let remote = |error: &Error| Error(format!("on GPU {ordinal}: {error}"));
            value.as_ref().map_err(|error| if ordinal == own { error.clone() } else { remote(error) })
        });
        each.collect()
    }
}
