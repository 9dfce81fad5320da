//! Words of host memory that the processes of one host share, and that their GPUs write and wait for.

use super::node::Node;
use crate::cuda::{Error, Result, Word};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::Acquire};

/// Distance of words: a line of the cache [bytes].
const DISTANCE: usize = 64;

/// What a GPU has reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Its mailbox is free.
    Free,
    /// It has sent a piece.
    Sent,
    /// It waits for nothing more.
    Done,
}

/// The words of all processes of a group. They are never unmapped, since streams write to them at any time.
#[derive(Debug)]
pub(super) struct Words {
    host: *mut u8,
    device: u64,
}

// SAFETY: words are accessed atomically.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the words of `size` processes; the first one creates them.
    pub(super) fn map(node: &Node, name: &str, size: usize) -> Result<Self> {
        let bytes = (3 * size * DISTANCE).next_multiple_of(4096);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path(name));
        let failed = |error| Error(format!("{}: {error}", path(name)));
        let file = file.and_then(|file| file.set_len(bytes as u64).map(|()| file)).map_err(failed)?;
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file.
        let host = unsafe { libc::mmap(null_mut(), bytes, access, shared, file.as_raw_fd(), 0) };
        if host == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        // SAFETY: the mapping of this size is never removed.
        let device = unsafe { node.register(host, bytes) }?;
        Ok(Self { host: host.cast(), device })
    }

    /// Removes the file; the words remain.
    pub(super) fn unlink(name: &str) {
        let _ = fs::remove_file(path(name)); // by the first process that comes here
    }

    /// The word of a process with a value.
    pub(super) fn word(&self, rank: usize, kind: Kind, value: u32) -> Word {
        Word { address: self.device + Self::offset(rank, kind) as u64, value }
    }

    /// Present value of the word of a process.
    pub(super) fn read(&self, rank: usize, kind: Kind) -> u32 {
        // SAFETY: an aligned word of the mapping.
        unsafe { AtomicU32::from_ptr(self.host.add(Self::offset(rank, kind)).cast()) }.load(Acquire)
    }

    fn offset(rank: usize, kind: Kind) -> usize {
        (3 * rank + kind as usize) * DISTANCE
    }
}

fn path(name: &str) -> String {
    format!("/dev/shm/{name}")
}
