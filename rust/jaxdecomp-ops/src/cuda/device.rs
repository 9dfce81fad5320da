//! Context, streams and events of one GPU.

use super::driver::{Copy2d, DISABLE_TIMING, Driver, Launch, NON_BLOCKING, PEER_ACCESS_ALREADY_ENABLED, Streams};
use super::{Opaque, Result};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// A GPU and its primary context, which XLA and the CUDA runtime use too.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: Driver,
    number: c_int,
    context: Opaque,
}

// SAFETY: CUDA's contexts may be made current on any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Retains the primary context of a GPU.
    ///
    /// # Errors
    /// Errors of CUDA.
    pub fn new(driver: Driver, ordinal: i32) -> Result<Self> {
        let (mut number, mut context) = (0, null_mut());
        // SAFETY: the driver writes to the two variables.
        unsafe {
            driver.check("cuInit", (driver.init)(0))?;
            driver.check("cuDeviceGet", (driver.device_get)(&raw mut number, ordinal))?;
            driver.check("cuDevicePrimaryCtxRetain", (driver.primary_context_retain)(&raw mut context, number))?;
        }
        Ok(Self { driver, number, context })
    }

    /// Value of a device attribute.
    pub(crate) fn attribute(&self, launch: &Launch, attribute: c_int) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: writes to the variable.
        let code = unsafe { (launch.device_attribute)(&raw mut value, attribute, self.number) };
        self.driver.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// Makes the GPU current on the calling thread. Every entry point calls it, since XLA chooses the thread.
    pub(crate) fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.context) })
    }

    /// Waits for all work of the GPU.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: takes no arguments.
        self.driver.check("cuCtxSynchronize", unsafe { (self.driver.context_synchronize)() })
    }

    /// Copies device memory on a stream.
    ///
    /// # Safety
    /// `to` and `from` are device memory of at least `bytes` bytes.
    pub(crate) unsafe fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize, stream: Opaque) -> Result<()> {
        // SAFETY: by contract.
        let code = unsafe { (self.driver.copy_async)(to as u64, from as u64, bytes, stream) };
        self.driver.check("cuMemcpyDtoDAsync", code)
    }

    /// Releases the context.
    pub(crate) fn release(&self) -> Result<()> {
        // SAFETY: retained once, released once.
        let code = unsafe { (self.driver.primary_context_release)(self.number) };
        self.driver.check("cuDevicePrimaryCtxRelease", code)
    }

    /// Whether this GPU can read and write the memory of another.
    pub(crate) fn can_access(&self, streams: &Streams, other: &Self) -> Result<bool> {
        let mut can = 0;
        // SAFETY: writes to the variable.
        let code = unsafe { (streams.can_access_peer)(&raw mut can, self.number, other.number) };
        self.driver.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Enables access of the current GPU to the memory of another.
    pub(crate) fn enable_peer_access(&self, streams: &Streams, other: &Self) -> Result<()> {
        // SAFETY: both contexts are retained.
        let code = unsafe { (streams.enable_peer_access)(other.context, 0) };
        if code == PEER_ACCESS_ALREADY_ENABLED { Ok(()) } else { self.driver.check("cuCtxEnablePeerAccess", code) }
    }
}

/// A stream of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    driver: Driver,
    streams: Streams,
    raw: Opaque,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream of the current GPU. It is never destroyed.
    pub(crate) fn new(driver: Driver, streams: Streams) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: writes to the variable.
        driver.check("cuStreamCreate", unsafe { (streams.stream_create)(&raw mut raw, NON_BLOCKING) })?;
        Ok(Self { driver, streams, raw })
    }

    /// Wraps a stream of XLA.
    pub(crate) fn wrap(driver: Driver, streams: Streams, raw: Opaque) -> Self {
        Self { driver, streams, raw }
    }

    pub(crate) fn raw(&self) -> Opaque {
        self.raw
    }

    /// Records an event after the present work of the stream.
    pub(crate) fn record(&self) -> Result<Mark> {
        let mut raw = null_mut();
        // SAFETY: writes to the variable.
        let code = unsafe { (self.streams.event_create)(&raw mut raw, DISABLE_TIMING) };
        self.driver.check("cuEventCreate", code)?;
        let event = Event { streams: self.streams, raw };
        // SAFETY: event and stream belong to the current GPU.
        self.driver.check("cuEventRecord", unsafe { (self.streams.event_record)(event.raw, self.raw) })?;
        Ok(Mark::Event(event))
    }

    /// Writes a word of memory after the present work of the stream.
    pub(crate) fn write(&self, Word { address, value }: Word) -> Result<()> {
        // SAFETY: the memory of words is never released.
        self.driver.check("cuStreamWriteValue32", unsafe { (self.streams.write_value)(self.raw, address, value, 0) })
    }

    /// Makes the stream wait for a mark of any GPU.
    pub(crate) fn wait(&self, mark: &Mark) -> Result<()> {
        match mark {
            // SAFETY: both are live.
            Mark::Event(event) => self
                .driver
                .check("cuStreamWaitEvent", unsafe { (self.streams.stream_wait_event)(self.raw, event.raw, 0) }),
            // SAFETY: as in `write`. The flag 0 compares cyclically.
            Mark::Word(Word { address, value }) => self
                .driver
                .check("cuStreamWaitValue32", unsafe { (self.streams.wait_value)(self.raw, *address, *value, 0) }),
        }
    }

    /// Blocks until the work of the stream is done.
    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: the stream is live.
        self.driver.check("cuStreamSynchronize", unsafe { (self.streams.stream_synchronize)(self.raw) })
    }

    /// Copies rows between any GPUs.
    ///
    /// # Safety
    /// Source and destination are device memory that contains the rows.
    pub(crate) unsafe fn copy(&self, copy: &Copy2d) -> Result<()> {
        if copy.height == 1 {
            // Contiguous copies are faster, and a row may exceed the largest pitch.
            // SAFETY: by contract.
            let code = unsafe { (self.driver.copy_async)(copy.dst.device, copy.src.device, copy.width, self.raw) };
            return self.driver.check("cuMemcpyDtoDAsync", code);
        }
        // SAFETY: by contract.
        self.driver.check("cuMemcpy2DAsync", unsafe { (self.streams.copy_2d_async)(copy, self.raw) })
    }
}

/// A point in the work of a stream, for which other streams wait.
#[derive(Debug)]
pub enum Mark {
    /// An event of this process.
    Event(Event),
    /// A word that a stream of any process writes: it is reached when the word has this value, or a later one.
    Word(Word),
}

/// Value of a word of memory that all GPUs access; values of a word increase.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Address for the GPUs.
    pub address: u64,
    /// Value to write or to wait for.
    pub value: u32,
}

/// An event of a stream.
#[derive(Debug)]
pub struct Event {
    streams: Streams,
    raw: Opaque,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `record`; the driver defers destruction while streams wait for the event.
        unsafe { (self.streams.event_destroy)(self.raw) };
    }
}
