//! One GPU with its plans and streams.

use crate::cuda::cufft::{Cufft, Kind, Layout, Plan};
use crate::cuda::driver::{Driver, Streams};
use crate::cuda::{Device, Opaque, Result, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Functions of NVIDIA's libraries.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as the libraries")]
pub struct Libraries {
    pub driver: Driver,
    pub streams: Streams,
    pub fft: Cufft,
}

/// A plan that one thread uses at a time.
pub(super) type SharedPlan = Arc<Mutex<Plan>>;

/// One GPU with its plans and the streams of its copies.
#[derive(Debug)]
pub struct Node {
    libraries: Libraries,
    device: Device,
    /// Stream of copies to peers. Several streams would compete for the links.
    pub(super) remote: Stream,
    /// Stream of copies within the GPU.
    pub(super) local: Stream,
    plans: Mutex<BTreeMap<(Kind, bool, Layout), SharedPlan>>,
    /// Ordinals of the peers to which access is enabled.
    peers: Mutex<BTreeSet<i32>>,
}

impl Node {
    /// Prepares the GPU of this ordinal.
    ///
    /// # Errors
    /// CUDA's own.
    pub fn new(libraries: Libraries, ordinal: i32) -> Result<Self> {
        let device = Device::new(libraries.driver, ordinal)?;
        device.enter()?;
        let stream = || Stream::new(libraries.driver, libraries.streams);
        let (remote, local) = (stream()?, stream()?);
        let peers = Mutex::new(BTreeSet::from([ordinal]));
        Ok(Self { libraries, device, remote, local, plans: Mutex::default(), peers })
    }

    /// Makes the GPU current on the calling thread.
    pub(super) fn enter(&self) -> Result<()> {
        self.device.enter()
    }

    /// Enables access of the current GPU to the memory of peers.
    pub(super) fn enable_peer_access(&self, ordinals: &[i32]) -> Result<()> {
        let mut peers = lock(&self.peers);
        for &ordinal in ordinals {
            if !peers.contains(&ordinal) {
                let other = Device::new(self.libraries.driver, ordinal)?;
                self.device.enable_peer_access(&self.libraries.streams, &other)?;
                peers.insert(ordinal);
            }
        }
        Ok(())
    }

    /// Wraps a stream of XLA.
    pub(super) fn stream(&self, raw: Opaque) -> Stream {
        Stream::wrap(self.libraries.driver, self.libraries.streams, raw)
    }

    /// Plan of a layout, created once.
    pub(super) fn plan(&self, kind: Kind, double: bool, layout: Layout) -> Result<SharedPlan> {
        let mut plans = lock(&self.plans);
        let key = (kind, double, layout);
        if let Some(plan) = plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(Mutex::new(Plan::new(self.libraries.fft, kind, double, &key.2)?));
        plans.insert(key, plan.clone());
        Ok(plan)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
