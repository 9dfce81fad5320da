//! Transforms and halos over the GPUs of one host by peer-to-peer copies.
//!
//! A mesh is divided into slabs. Each GPU transforms its slab along two axes in pieces of planes; its copy engines send each
//! finished piece to its final address on the other GPUs while the next piece is transformed. The last pieces are sent in
//! bands of lines, which are transformed along the third axis while further bands arrive. The inverse runs in the opposite
//! order. Nothing is packed, unpacked or permuted, and no kernel takes part in the exchange.
//!
//! In a process that drives all GPUs, XLA calls the handler of each GPU on a thread of its own. Each exchange has two
//! rendezvous of these threads: one to exchange the addresses of receive buffers, one to exchange the events to wait for.
//! Events order the work of the GPUs. Where each GPU has a process, receive buffers are mailboxes, and words of shared memory
//! take the place of events, see [`link`].

mod exchange;
pub mod filter;
mod halo;
pub mod handlers;
mod job;
mod link;
mod node;
mod passes;
mod rendezvous;
mod slabs;
mod sockets;
mod transform;
mod words;

pub use exchange::{Participant, Rendezvous, Rows};
pub use halo::{Planes, Purpose, exchange_planes};
pub use job::{Job, scratch_len};
pub use link::Link;
pub use node::{Libraries, Node};
pub use passes::is_fast_along_x;
pub use slabs::{Share, Slabs};
pub use transform::transform;

use crate::cuda::{Device, Error, Result, cufft, driver};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::Duration;

static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
static NODES: Mutex<BTreeMap<i32, Arc<Node>>> = Mutex::new(BTreeMap::new());
/// Name that the processes of this program have in common, and the number of this one.
static PROCESS: OnceLock<(String, i32)> = OnceLock::new();
static LINKS: Mutex<BTreeMap<Vec<i32>, Arc<Link>>> = Mutex::new(BTreeMap::new());

/// Time until all processes have joined, the first time, and for further groups, whose programs may be compiled before.
const JOIN_TIMEOUTS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(300)];
/// Number of seconds for which a process waits for one that has ended.
const GRACE: u32 = 10;

/// Loads the libraries, cuFFT from the first candidate that loads, and checks that all GPUs can access each other's memory.
///
/// # Errors
/// The library that fails to load, or the GPUs without access.
pub fn probe(ordinals: &[i32], cufft_candidates: &[String]) -> Result<()> {
    let libraries = if let Some(libraries) = LIBRARIES.get() {
        *libraries
    } else {
        let driver::Tables { driver, streams, sharing, .. } = driver::load()?;
        let fft = cufft::load(cufft_candidates)?;
        *LIBRARIES.get_or_init(|| Libraries { driver, streams, sharing, fft })
    };
    let devices = ordinals.iter().map(|&ordinal| Device::new(libraries.driver, ordinal));
    let devices: Vec<Device> = devices.collect::<Result<_>>()?;
    for (a, from) in devices.iter().enumerate() {
        for (b, to) in devices.iter().enumerate() {
            if a != b && !from.can_access(&libraries.streams, to)? {
                let (a, b) = (ordinals[a], ordinals[b]);
                return Err(Error(format!("GPU {a} cannot write into the memory of GPU {b}")));
            }
        }
    }
    Ok(())
}

/// GPU of an ordinal, initialised once.
///
/// # Errors
/// Errors of CUDA; a missing call of [`probe`].
pub fn node(ordinal: i32) -> Result<Arc<Node>> {
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = nodes.get(&ordinal) {
        return Ok(node.clone());
    }
    let unloaded = || Error("NVIDIA's libraries are not loaded in this process".to_owned());
    let node = Arc::new(Node::new(*LIBRARIES.get().ok_or_else(unloaded)?, ordinal)?);
    nodes.insert(ordinal, node.clone());
    Ok(node)
}

/// Joins processes of one host, each with one GPU, and checks that they can write into each other's memory. Collective; call
/// [`probe`] before.
///
/// # Errors
/// Errors of CUDA; a process that does not join.
pub fn join_processes(key: &str, group: &[i32], process: i32, ordinal: i32) -> Result<()> {
    let (joined, _) = PROCESS.get_or_init(|| (key.to_owned(), process));
    if joined != key {
        return Err(Error("this process has joined others before".to_owned()));
    }
    let (link, node) = (open_link(group, ordinal, JOIN_TIMEOUTS[0])?, node(ordinal)?);
    node.enter()?;
    link.mailbox(&node.local, 1).map(drop)
}

/// Number of this process among those that have joined.
///
/// # Errors
/// A missing call of [`join_processes`].
pub(crate) fn process() -> Result<i32> {
    PROCESS.get().map(|(_, process)| *process).ok_or_else(|| Error("this process has not joined others".to_owned()))
}

/// Link to the processes of a group, which the first call opens. Collective.
///
/// # Errors
/// As [`join_processes`].
pub(crate) fn link(group: &[i32], ordinal: i32) -> Result<Arc<Link>> {
    open_link(group, ordinal, JOIN_TIMEOUTS[1])
}

fn open_link(group: &[i32], ordinal: i32, timeout: Duration) -> Result<Arc<Link>> {
    let own = process()?;
    let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(link) = links.get(group) {
        return Ok(link.clone());
    }
    let stranger = || Error(format!("process {own} is not among {group:?}"));
    let rank = group.iter().position(|&other| other == own).ok_or_else(stranger)?;
    let key = PROCESS.get().map_or("", |(key, _)| key);
    let link = Arc::new(Link::open(node(ordinal)?, key, group, rank, timeout)?);
    links.insert(group.to_vec(), link.clone());
    Ok(link)
}

/// Returns once this process has waited for one that has ended, which would go on forever.
pub fn watch() {
    let mut seconds = 0;
    while seconds < GRACE {
        sleep(Duration::from_secs(1));
        let links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
        seconds = if links.values().any(|link| link.is_stuck()) { seconds + 1 } else { 0 };
    }
}
