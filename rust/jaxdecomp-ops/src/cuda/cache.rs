//! Compiled kernels on disk.
//!
//! A file holds the complete key (compiler, target, options and source), the image and a checksum. A file that is incomplete,
//! damaged or of another key is never returned; it is replaced after compilation.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const MAGIC: &[u8] = b"jaxdecomp-ops kernel 1\n";

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// Uses a folder, which is created by the first [`Self::store`].
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// File of a key.
    #[must_use]
    pub fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:016x}.kernel", checksum(key.as_bytes())))
    }

    /// Image of a key; None if there is no valid file.
    #[must_use]
    pub fn load(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(key)).ok()?;
        let rest = bytes.strip_prefix(header(key).as_slice())?;
        let (sum, image) = rest.split_first_chunk::<8>()?;
        (*sum == checksum(image).to_le_bytes()).then(|| image.to_vec())
    }

    /// Writes the image of a key. Without effect where the folder can't be written: the cache only saves time.
    pub fn store(&self, key: &str, image: &[u8]) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(".{}-{}.partial", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let partial = self.folder.join(name);
        if self.write(&partial, key, image).and_then(|()| fs::rename(&partial, self.path(key))).is_err() {
            let _ = fs::remove_file(&partial);
        }
    }

    fn write(&self, file: &Path, key: &str, image: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut file = fs::File::create_new(file)?;
        for bytes in [header(key).as_slice(), &checksum(image).to_le_bytes(), image] {
            file.write_all(bytes)?;
        }
        file.sync_all()
    }
}

/// Start of a file: magic, length of the key, key.
fn header(key: &str) -> Vec<u8> {
    [MAGIC, &(key.len() as u64).to_le_bytes(), key.as_bytes()].concat()
}

/// FNV-1a, which also covers the length.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    (bytes.len() as u64).to_le_bytes().iter().chain(bytes).fold(0xcbf2_9ce4_8422_2325, step)
}
