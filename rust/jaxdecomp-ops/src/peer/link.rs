//! Processes of one host, each of which drives one GPU.
//!
//! XLA's buffers can't be shared with other processes, so that each process has a mailbox: device memory of its own that the
//! others write to. Marks are words of shared host memory. Once in each exchange the processes tell each other over sockets
//! that their work is enqueued, or that it failed. After a failure no exchange is possible.

use super::node::{Node, lock};
use super::sockets::{connect, receive, send};
use super::words::{Kind, Words};
use crate::cuda::driver::MemoryHandle;
use crate::cuda::{Error, Mark, Opaque, Result, Stream, Word};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Sizes of mailboxes are multiples: smaller allocations may share one handle [bytes].
const GRAIN: usize = 2 << 20;
/// Number of marks by which no process is ever ahead of another.
const FAR: u32 = 1 << 30;

/// Marks after which each piece of a GPU has been sent: to peers, to itself.
pub(super) type Sent = Result<Vec<[Mark; 2]>>;

/// One process among those of a group.
#[derive(Debug)]
pub struct Link {
    node: Arc<Node>,
    rank: usize,
    size: usize,
    words: Words,
    /// Number of marks so far, equal on all processes.
    count: AtomicU32,
    /// Whether another process has ended.
    lost: Arc<AtomicBool>,
    /// Held during a call.
    turn: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Numbers of the processes by rank.
    group: Vec<i32>,
    others: Vec<Option<Other>>,
    /// Addresses of the mailboxes by rank, of this size [bytes].
    mailboxes: Vec<u64>,
    bytes: usize,
    /// The first failure.
    broken: Option<Error>,
}

/// Connection with another process.
#[derive(Debug)]
struct Other {
    socket: UnixStream,
    messages: Receiver<Vec<u8>>,
}

impl Link {
    /// Joins the processes of a group. Collective.
    ///
    /// # Errors
    /// A process that fails, or does not come within the timeout.
    pub fn open(node: Arc<Node>, key: &str, group: &[i32], rank: usize, timeout: Duration) -> Result<Self> {
        let numbers: Vec<String> = group.iter().map(i32::to_string).collect();
        let name = format!("pmwd-{key}-{}", numbers.join("."));
        let lost = Arc::new(AtomicBool::new(false));
        let sockets = connect(&name, rank, group.len(), timeout)?.into_iter();
        let others = sockets.map(|socket| socket.map(|socket| Other::new(socket, lost.clone())).transpose());
        let others = others.collect::<std::io::Result<_>>().map_err(|error| Error(error.to_string()))?;
        let mut state = State { group: group.to_vec(), others, mailboxes: Vec::new(), bytes: 0, broken: None };
        node.enter()?;
        let words = Words::map(&node, &name, group.len());
        let all = state.agree("words", words.as_ref().map(|_| Vec::new()).map_err(Clone::clone));
        Words::unlink(&name);
        all?;
        let (count, turn, state) = (AtomicU32::new(0), Mutex::default(), Mutex::new(state));
        Ok(Self { node, rank, size: group.len(), words: words?, count, lost, turn, state })
    }

    /// Waits until no other call of this process uses the link.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Address of the mailbox, of at least this size. Collective where it grows.
    ///
    /// # Errors
    /// Errors of CUDA, on this process or another.
    pub(super) fn mailbox(&self, stream: &Stream, bytes: usize) -> Result<usize> {
        let (node, mut state) = (&*self.node, lock(&self.state));
        if state.bytes < bytes {
            let bytes = bytes.next_multiple_of(GRAIN);
            // Nobody writes to the present mailboxes any more once all have come here.
            let finished = stream.finish().and_then(|()| node.remote.finish());
            state.agree("end of the mailboxes", finished.map(|()| Vec::new()))?;
            for (rank, address) in std::mem::take(&mut state.mailboxes).into_iter().enumerate() {
                node.release(address, rank == self.rank);
            }
            state.bytes = 0;
            let own = node.allocate(bytes).map_err(|Error(text)| {
                let remedy = "lower XLA_PYTHON_CLIENT_MEM_FRACTION, or use backend='xla'";
                Error(format!("{text}: {} MB are needed beside XLA's memory; {remedy}", bytes >> 20))
            });
            let handle = own.as_ref().map(|(_, handle)| handle.0.to_vec()).map_err(Clone::clone);
            let handles = state.agree(&format!("mailboxes of {bytes} bytes"), handle)?;
            let open = |(rank, handle): (usize, Vec<u8>)| {
                let handle = handle.try_into().map_err(|_| Error("no handle of memory".to_owned()));
                if rank == self.rank { own.clone().map(|(own, _)| own) } else { node.open(MemoryHandle(handle?)) }
            };
            let opened: Result<Vec<u64>> = handles.into_iter().enumerate().map(open).collect();
            state.agree("opened mailboxes", opened.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
            (state.mailboxes, state.bytes) = (opened?, bytes);
        }
        Ok(state.mailboxes[self.rank] as usize)
    }

    /// Mailboxes of all processes, and the marks after which they can be written to.
    pub(super) fn mailboxes(&self) -> Vec<(usize, Mark)> {
        let each = |(rank, &address): (usize, &u64)| (address as usize, Mark::Word(self.free(rank)));
        lock(&self.state).mailboxes.iter().enumerate().map(each).collect()
    }

    /// Word of a process whose mailbox is free for the present exchange.
    pub(super) fn free(&self, rank: usize) -> Word {
        self.words.word(rank, Kind::Free, self.after(1))
    }

    /// Word of a process that has sent a piece of the present exchange.
    pub(super) fn sent(&self, rank: usize, piece: usize) -> Word {
        self.words.word(rank, Kind::Sent, self.after(1 + piece as u32))
    }

    /// Word of this process that waits for no exchange so far.
    pub(super) fn done(&self) -> Word {
        self.words.word(self.rank, Kind::Done, self.after(0))
    }

    /// Ends an exchange whose work is enqueued. `label` names it.
    pub(super) fn conclude(&self, label: &str, own: Sent, pieces: usize) -> Result<Arc<[Sent]>> {
        let outcome = own.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
        lock(&self.state).agree(label, outcome)?;
        let mark = |rank, piece| Mark::Word(self.sent(rank, piece));
        let marks = |rank| Ok((0..pieces).map(|piece| [mark(rank, piece), mark(rank, piece)]).collect());
        let mut all: Vec<Sent> = (0..self.size).map(marks).collect();
        all[self.rank] = own;
        self.count.fetch_add(pieces as u32, SeqCst);
        Ok(all.into())
    }

    /// Fails present and later exchanges of all processes.
    pub(super) fn abort(&self, stream: Opaque, reason: &Error) {
        let word = |kind| self.words.word(self.rank, kind, self.after(FAR));
        // Streams that wait for this process go on. Where its GPU has failed, it ends soon.
        for kind in [Kind::Free, Kind::Done] {
            let _ = self.node.stream(stream).write(word(kind));
        }
        let _ = self.node.remote.write(word(Kind::Sent));
        let _ = lock(&self.state).agree("", Err(reason.clone()));
    }

    /// Value of the number of marks after some more.
    fn after(&self, marks: u32) -> u32 {
        self.count.load(SeqCst).wrapping_add(marks)
    }

    /// Whether this process waits forever, since another one has ended in an exchange.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let done = self.words.read(self.rank, Kind::Done).wrapping_sub(self.after(0)) < 2 * FAR;
        self.lost.load(SeqCst) && !done
    }
}

impl State {
    /// Sends a value or a failure to all other processes; returns the values by rank, or the first failure. `label` names the
    /// step, which must be the same on all.
    fn agree(&mut self, label: &str, own: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        let message = encode(label, &own);
        for other in self.others.iter_mut().flatten() {
            let _ = send(&mut other.socket, &message); // the end of the other process is found below
        }
        let value = |own: &Vec<u8>, (other, process): (&Option<Other>, &i32)| {
            let Some(other) = other else { return Ok(own.clone()) };
            let message = other.messages.recv().map_err(|_| Error(format!("process {process} has ended")))?;
            decode(label, &message).map_err(|error| Error(format!("on process {process}: {error}")))
        };
        let all = own.and_then(|own| self.others.iter().zip(&self.group).map(|other| value(&own, other)).collect());
        all.inspect_err(|error| self.broken = Some(error.clone()))
    }
}

impl Other {
    /// Receives messages on a thread of its own, so that the end of the process is known at once.
    fn new(socket: UnixStream, lost: Arc<AtomicBool>) -> std::io::Result<Self> {
        let ((sender, messages), mut from) = (channel(), socket.try_clone()?);
        let work = move || {
            while let Ok(message) = receive(&mut from) {
                let _ = sender.send(message);
            }
            lost.store(true, SeqCst);
        };
        thread::Builder::new().name("pmwd-link".to_owned()).spawn(work)?;
        Ok(Self { socket, messages })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both); // ends the thread
    }
}

/// First byte of a message with a value. Its label ends with a zero.
const VALUE: u8 = 1;

fn encode(label: &str, value: &Result<Vec<u8>>) -> Vec<u8> {
    match value {
        Ok(value) => [&[VALUE], label.as_bytes(), &[0], value].concat(),
        Err(Error(text)) => [&[0], text.as_bytes()].concat(),
    }
}

fn decode(label: &str, message: &[u8]) -> Result<Vec<u8>> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let [VALUE, rest @ ..] = message else { return Err(Error(text(message.get(1..).unwrap_or_default()))) };
    let (other, value) = rest.split_at(rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len()));
    if other != label.as_bytes() {
        return Err(Error(format!("another program: {}, here {label}", text(other))));
    }
    Ok(value.get(1..).unwrap_or_default().to_vec())
}
