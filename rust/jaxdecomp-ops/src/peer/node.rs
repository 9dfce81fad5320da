//! One GPU with its plans and streams.

use crate::cuda::cufft::{Cufft, Kind, Layout, Plan};
use crate::cuda::driver::{Driver, ENABLE_PEER_ACCESS, MemoryHandle, PORTABLE_AND_MAPPED, Sharing, Streams};
use crate::cuda::{Device, Opaque, Result, Stream};
use core::ffi::c_void;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Functions of NVIDIA's libraries.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named as the libraries")]
pub struct Libraries {
    pub driver: Driver,
    pub streams: Streams,
    pub sharing: Sharing,
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

    /// Address for GPUs of host memory.
    ///
    /// # Safety
    /// The memory is never unmapped.
    pub(super) unsafe fn register(&self, host: *mut c_void, bytes: usize) -> Result<u64> {
        let Libraries { driver, sharing, .. } = &self.libraries;
        let mut address = 0;
        // SAFETY: by contract; writes to the variable.
        unsafe {
            driver.check("cuMemHostRegister", (sharing.host_register)(host, bytes, PORTABLE_AND_MAPPED))?;
            driver.check("cuMemHostGetDevicePointer", (sharing.host_address)(&raw mut address, host, 0))?;
        }
        Ok(address)
    }

    /// Allocates device memory for other processes.
    pub(super) fn allocate(&self, bytes: usize) -> Result<(u64, MemoryHandle)> {
        let Libraries { driver, sharing, .. } = &self.libraries;
        let (mut address, mut handle) = (0, MemoryHandle([0; 64]));
        // SAFETY: writes to the variables.
        unsafe {
            driver.check("cuMemAlloc", (sharing.allocate)(&raw mut address, bytes))?;
            let exported = driver.check("cuIpcGetMemHandle", (sharing.export)(&raw mut handle, address));
            exported.inspect_err(|_| self.release(address, true))?;
        }
        Ok((address, handle))
    }

    /// Address of memory of another process.
    pub(super) fn open(&self, handle: MemoryHandle) -> Result<u64> {
        let Libraries { driver, sharing, .. } = &self.libraries;
        let mut address = 0;
        // SAFETY: writes to the variable.
        let code = unsafe { (sharing.open)(&raw mut address, handle, ENABLE_PEER_ACCESS) };
        driver.check("cuIpcOpenMemHandle", code)?;
        Ok(address)
    }

    /// Releases memory of [`Self::allocate`] (own) or [`Self::open`]; without effect where that fails.
    pub(super) fn release(&self, address: u64, own: bool) {
        let Sharing { free, close, .. } = self.libraries.sharing;
        // SAFETY: memory of this module, which nobody uses any more.
        let _ = unsafe { if own { free(address) } else { close(address) } };
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
