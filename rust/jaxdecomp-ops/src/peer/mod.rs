//! Transforms and halos over the GPUs of one process by peer-to-peer copies.
//!
//! A mesh is divided into slabs. Each GPU transforms its slab along two axes in pieces of planes; its copy engines send each
//! finished piece to its final address on the other GPUs while the next piece is transformed. The last pieces are sent in
//! bands of lines, which are transformed along the third axis while further bands arrive. The inverse runs in the opposite
//! order. Nothing is packed, unpacked or permuted, and no kernel takes part in the exchange.
//!
//! XLA calls the handler of each GPU on a thread of its own. Each exchange has two rendezvous of these threads: one to
//! exchange the addresses of receive buffers, one to exchange the events to wait for. Events order the work of the GPUs.

mod exchange;
pub mod filter;
mod halo;
pub mod handlers;
mod job;
mod node;
mod passes;
mod rendezvous;
mod slabs;
mod transform;

pub use exchange::{Participant, Rendezvous, Rows};
pub use halo::{Planes, Purpose, exchange_planes};
pub use job::{Job, scratch_len};
pub use node::{Libraries, Node};
pub use passes::is_fast_along_x;
pub use slabs::{Share, Slabs};
pub use transform::transform;

use crate::cuda::{Device, Error, Result, cufft, driver};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
static NODES: Mutex<BTreeMap<i32, Arc<Node>>> = Mutex::new(BTreeMap::new());

/// Loads the libraries, cuFFT from the first candidate that loads, and checks that all GPUs can access each other's memory.
///
/// # Errors
/// The library that fails to load, or the GPUs without access.
pub fn probe(ordinals: &[i32], cufft_candidates: &[String]) -> Result<()> {
    let libraries = if let Some(libraries) = LIBRARIES.get() {
        *libraries
    } else {
        let driver::Tables { driver, streams, .. } = driver::load()?;
        let fft = cufft::load(cufft_candidates)?;
        *LIBRARIES.get_or_init(|| Libraries { driver, streams, fft })
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
