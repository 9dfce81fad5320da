//! Transforms and halos over the GPUs of one process, which write into each other's memory.
//!
//! A mesh is divided into slabs. Each GPU transforms its slab along two axes, a few planes at a time, and while it goes on
//! with the next ones its copy engines send what is done to the GPUs that need it, right to the place where it is to
//! lie. The last of it is sent a few lines at a time, which are transformed along the third axis while more arrive; back, all
//! goes the other way round. Nothing is packed, unpacked or permuted, and no kernel takes part in the exchange.
//!
//! Every GPU of a run calls the same handler on a thread of its own. The threads meet twice: to learn where the others want
//! their data and from when on, and to learn what to wait for. Only the threads meet; the work of the GPUs is ordered by events.

mod exchange;
mod halo;
pub mod handlers;
mod meeting;
mod node;
mod passes;
mod slabs;
mod transform;

pub use exchange::{Hall, Party, Rows};
pub use halo::{Planes, Purpose, exchange_planes};
pub use node::{Libraries, Node};
pub use passes::is_fast_along_x;
pub use slabs::{Share, Slabs};
pub use transform::{Job, scratch_len, transform};

use crate::cuda::{Device, Error, Result, cufft, driver};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
static NODES: Mutex<BTreeMap<i32, Arc<Node>>> = Mutex::new(BTreeMap::new());

/// Loads the libraries, cuFFT from the first of some paths and names that there is, and sees whether all these GPUs can
/// write into each other's memory.
///
/// # Errors
/// What doesn't load, or which GPUs can't.
pub fn probe(ordinals: &[i32], cufft_candidates: &[String]) -> Result<()> {
    let libraries = if let Some(libraries) = LIBRARIES.get() {
        *libraries
    } else {
        let (driver, streams) = driver::load()?;
        let fft = cufft::load(cufft_candidates)?;
        *LIBRARIES.get_or_init(|| Libraries { driver, streams, fft })
    };
    let devices = ordinals.iter().map(|&ordinal| Device::new(libraries.driver, ordinal));
    let devices: Vec<Device> = devices.collect::<Result<_>>()?;
    for (a, from) in devices.iter().enumerate() {
        for (b, to) in devices.iter().enumerate() {
            if a != b && !from.reaches(&libraries.streams, to)? {
                let (a, b) = (ordinals[a], ordinals[b]);
                return Err(Error(format!("GPU {a} cannot write into the memory of GPU {b}")));
            }
        }
    }
    Ok(())
}

/// The GPU of this ordinal, prepared once.
///
/// # Errors
/// CUDA's own, or that [`probe`] was not called before.
pub fn node(ordinal: i32) -> Result<Arc<Node>> {
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = nodes.get(&ordinal) {
        return Ok(node.clone());
    }
    let unloaded =
        || Error("NVIDIA's libraries were not loaded: the program was compiled in another process".to_owned());
    let node = Arc::new(Node::new(*LIBRARIES.get().ok_or_else(unloaded)?, ordinal)?);
    nodes.insert(ordinal, node.clone());
    Ok(node)
}
