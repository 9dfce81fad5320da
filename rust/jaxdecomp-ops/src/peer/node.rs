//! One GPU and what it keeps from call to call.

use crate::cuda::cufft::{Cufft, Kind, Layout, Plan};
use crate::cuda::driver::{Driver, Streams};
use crate::cuda::{Device, Opaque, Result, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// NVIDIA's libraries.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as the libraries")]
pub struct Libraries {
    pub driver: Driver,
    pub streams: Streams,
    pub fft: Cufft,
}

/// A plan, used by one thread at a time.
pub(super) type Shared = Arc<Mutex<Plan>>;

/// One GPU: its plans, and the streams of its copies.
#[derive(Debug)]
pub struct Node {
    libraries: Libraries,
    device: Device,
    /// What goes to other GPUs, one after the other: several streams would fight over the links.
    pub(super) remote: Stream,
    /// What stays on this one.
    pub(super) local: Stream,
    plans: Mutex<BTreeMap<(Kind, bool, Layout), Shared>>,
    reached: Mutex<BTreeSet<i32>>,
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
        let reached = Mutex::new(BTreeSet::from([ordinal]));
        Ok(Self { libraries, device, remote, local, plans: Mutex::default(), reached })
    }

    /// Makes the GPU the calling thread's.
    pub(super) fn enter(&self) -> Result<()> {
        self.device.enter()
    }

    /// Lets the GPU, which has been entered, write into the memory of others.
    pub(super) fn reach(&self, ordinals: &[i32]) -> Result<()> {
        let mut reached = lock(&self.reached);
        for &ordinal in ordinals {
            if !reached.contains(&ordinal) {
                let other = Device::new(self.libraries.driver, ordinal)?;
                self.device.reach(&self.libraries.streams, &other)?;
                reached.insert(ordinal);
            }
        }
        Ok(())
    }

    /// A stream of XLA's.
    pub(super) fn stream(&self, raw: Opaque) -> Stream {
        Stream::wrap(self.libraries.driver, self.libraries.streams, raw)
    }

    /// The plan of a layout, made once.
    pub(super) fn plan(&self, kind: Kind, double: bool, layout: Layout) -> Result<Shared> {
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
