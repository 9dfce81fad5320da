//! What the threads of the GPUs tell each other, and the copies that follow.

use super::meeting::{Absence, Meetings};
use super::node::Node;
use crate::cuda::driver::{Copy2d, UNIFIED};
use crate::cuda::{Error, Event, Opaque, Result, Stream};
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// What makes the threads of one exchange meet: the run, and the GPUs in the order of their blocks.
type Key = (i64, Vec<i32>);
/// Where a GPU wants what is sent to it, and from when on.
type Arrival = Result<(usize, Event)>;
/// When each piece that a GPU sends is where it belongs: what went to others, what stayed.
pub(super) type Sent = Result<Vec<[Event; 2]>>;

/// Where the threads of the GPUs meet.
#[derive(Debug)]
pub struct Hall {
    arrivals: Meetings<Key, Arrival>,
    departures: Meetings<Key, Sent>,
}

impl Hall {
    /// A place where threads wait so long for each other.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { arrivals: Meetings::new(patience), departures: Meetings::new(patience) }
    }

    /// The outcome of a call; where it is a failure, the others are not to wait for this thread in the rest of the run.
    pub(super) fn told<T>(&self, party: &Party, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            let (key, why) = (party.key(), format!("on GPU {}: {error}", party.row[party.place]));
            self.arrivals.give_up(&key, &why);
            self.departures.give_up(&key, &why);
        }
        outcome
    }
}

/// Who takes part in a call, and which of them this is.
#[derive(Clone, Debug)]
pub struct Party {
    /// The run that the call belongs to.
    pub run: i64,
    /// Ordinals of the GPUs, in the order of their blocks.
    pub row: Vec<i32>,
    /// Which of them this is.
    pub place: usize,
    /// XLA's stream.
    pub stream: Opaque,
}

impl Party {
    fn key(&self) -> Key {
        (self.run, self.row.clone())
    }
}

/// Rows of bytes that go from one memory to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where they begin, here and there.
    pub offsets: [usize; 2],
    /// From one row to the next, here and there.
    pub pitches: [usize; 2],
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl Rows {
    /// The same from the other end.
    #[must_use]
    pub fn reversed(self) -> Self {
        let ([a, b], [c, d]) = (self.offsets, self.pitches);
        Self { offsets: [b, a], pitches: [d, c], ..self }
    }

    fn copy(&self, from: usize, to: usize) -> Copy2d {
        Copy2d {
            src_x: 0,
            src_y: 0,
            src_kind: UNIFIED,
            src_host: null(),
            src: (from + self.offsets[0]) as u64,
            src_array: null_mut(),
            src_pitch: self.pitches[0],
            dst_x: 0,
            dst_y: 0,
            dst_kind: UNIFIED,
            dst_host: null_mut(),
            dst: (to + self.offsets[1]) as u64,
            dst_array: null_mut(),
            dst_pitch: self.pitches[1],
            width: self.width,
            height: self.height,
        }
    }
}

/// What a GPU has begun: from when on others may write to it, and when each piece is there to be sent; the last event holds
/// for the pieces that follow.
pub(super) type Begun = Result<(Event, Vec<Event>)>;

/// The exchange of one GPU with others.
pub(super) struct Exchange<'a> {
    pub(super) node: &'a Node,
    pub(super) hall: &'a Hall,
    pub(super) party: &'a Party,
}

impl Exchange<'_> {
    /// XLA's stream.
    pub(super) fn stream(&self) -> Stream {
        self.node.stream(self.party.stream)
    }

    /// Both meetings, and the copies between them. `pieces[i]` are the rows of piece `i` that go to each GPU.
    ///
    /// # Safety
    /// `outgoing` holds what is sent; `incoming` is as large as what all send here.
    pub(super) unsafe fn trade(
        &self,
        outgoing: *mut c_void,
        incoming: *mut c_void,
        begun: Begun,
        pieces: &[Vec<(usize, Rows)>],
    ) -> Result<Arc<[Sent]>> {
        let (brings, done) = match begun {
            Ok((ready, done)) => (Ok((incoming as usize, ready)), done),
            Err(error) => (Err(error), Vec::new()),
        };
        let arrivals = self.meet(&self.hall.arrivals, brings)?;
        let arrivals = self.successes(&arrivals)?;
        // SAFETY: by contract.
        let sent = unsafe { self.send(outgoing, &arrivals, &done, pieces) };
        if sent.is_err() {
            self.finish_copies();
        }
        let sent = self.meet(&self.hall.departures, sent).inspect_err(|_| self.finish_copies())?;
        if let Err(error) = self.successes(&sent) {
            // XLA takes memory back in the order of its stream, which others may still write to.
            self.wait_for(&sent, None)?;
            return Err(error);
        }
        Ok(sent)
    }

    /// Has XLA's stream wait until a piece, or by default the last one, is here from all that sent it, and has gone.
    pub(super) fn wait_for(&self, sent: &[Sent], piece: Option<usize>) -> Result<()> {
        let stream = self.stream();
        for (place, pieces) in sent.iter().enumerate() {
            let Ok(pieces) = pieces else { continue };
            let Some([remote, local]) = piece.map_or_else(|| pieces.last(), |piece| pieces.get(piece)) else {
                continue;
            };
            stream.wait(remote)?;
            if place == self.party.place {
                stream.wait(local)?;
            }
        }
        Ok(())
    }

    /// After a failure: memory of others may be gone once they hear of it.
    fn finish_copies(&self) {
        // A stream that has failed does nothing any more.
        let _ = self.node.remote.finish();
        let _ = self.node.local.finish();
    }

    /// # Safety
    /// As for [`Self::trade`].
    unsafe fn send(
        &self,
        outgoing: *mut c_void,
        arrivals: &[&(usize, Event)],
        done: &[Event],
        pieces: &[Vec<(usize, Rows)>],
    ) -> Sent {
        let Node { remote, local, .. } = self.node;
        // Here there is room once the first piece is done: XLA's stream does one thing after the other.
        for (place, (_, ready)) in arrivals.iter().enumerate() {
            if place != self.party.place {
                remote.wait(ready)?;
            }
        }
        let mut sent = Vec::new();
        for (piece, rows) in pieces.iter().enumerate() {
            if let Some(done) = done.get(piece) {
                remote.wait(done)?;
                local.wait(done)?;
            }
            for (to, rows) in rows {
                let (incoming, _) = arrivals[*to];
                let stream = if *to == self.party.place { local } else { remote };
                // SAFETY: by contract.
                unsafe { stream.copy(&rows.copy(outgoing as usize, *incoming)) }?;
            }
            sent.push([remote.record()?, local.record()?]);
        }
        Ok(sent)
    }

    /// What all bring to a meeting.
    fn meet<T>(&self, meetings: &Meetings<Key, Result<T>>, brings: Result<T>) -> Result<Arc<[Result<T>]>> {
        let Party { row, place, .. } = self.party;
        let (own, size) = (brings.as_ref().err().cloned(), row.len());
        meetings.meet(&self.party.key(), *place, size, brings).map_err(|absence| match (own, absence) {
            (Some(error), _) => error,
            (None, Absence::GivenUp(why)) => Error(why),
            (None, Absence::Late(came)) => {
                let what = format!("{came} of the {size} GPUs {row:?} came to exchange data");
                Error(format!("{what}; the others run another program, or failed"))
            }
        })
    }

    /// What all brought, or the first failure among them.
    fn successes<'t, T>(&self, all: &'t [Result<T>]) -> Result<Vec<&'t T>> {
        let Party { row, place, .. } = self.party;
        let own = row[*place];
        let each = row.iter().zip(all).map(|(&ordinal, brought)| {
            let there = |error: &Error| Error(format!("on GPU {ordinal}: {error}"));
            brought.as_ref().map_err(|error| if ordinal == own { error.clone() } else { there(error) })
        });
        each.collect()
    }
}
