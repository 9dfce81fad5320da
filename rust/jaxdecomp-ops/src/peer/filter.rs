//! A real mesh on one GPU, filtered: transformed, multiplied by a filter and transformed back.
//!
//! cuFFT transforms its planes; along x one kernel does all three, in one pass over the spectrum.

use super::exchange::{Participant, Rendezvous};
use super::{Job, Slabs, node, transform};
use crate::cuda::kernel::{Variant, arguments};
use crate::cuda::{Opaque, Result, gpus};
use core::ffi::c_void;

const SOURCE: &str = include_str!("filter.cu");
/// Bytes of a row of the lines of a block: where lines are longer, the latter.
const ROWS: [usize; 2] = [128, 64];
/// Largest shared memory of a block [bytes]: with rows of the former size, and at all.
const SHARED: [usize; 2] = [64 << 10, 160 << 10];
/// Largest number of threads of a block.
const THREADS: usize = 384;
/// Blocks on a multiprocessor, in single precision. (A spectrum of 512³, one H200: 0.42 ms; with 512 threads 0.45.)
const BLOCKS: usize = 3;

/// How the kernel is compiled and launched for a length.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Variant to compile.
    pub variant: Variant,
    columns: usize,
    threads: usize,
    shared: usize,
}

impl Lines {
    /// Chooses the kernel; none for lengths of other factors than 2, 3, 5 and 7, shorter ones than 16 and too long ones.
    #[must_use]
    pub fn new(length: usize, double: bool) -> Option<Self> {
        let factors = factors(length)?;
        let item = if double { 16 } else { 8 };
        let row = if length * ROWS[0] <= SHARED[0] { ROWS[0] } else { ROWS[1] };
        let (columns, shared) = (row / item, length * row);
        if length < 16 || shared > SHARED[1] {
            return None;
        }
        let butterflies = length / factors.iter().max()?;
        let threads = columns * butterflies.clamp(1, THREADS / columns);
        let radices: Vec<String> = factors.iter().map(usize::to_string).collect();
        let options = vec![
            "--std=c++17".to_owned(),
            format!("-DREAL_BITS={}", if double { 64 } else { 32 }),
            format!("-DRADICES={}", radices.join(",")),
            format!("-DCOLUMNS={columns}"),
            format!("-DTHREADS={threads}"),
            format!("-DBLOCKS={}", if double { 1 } else { BLOCKS }),
        ];
        Some(Self { variant: Variant { source: SOURCE, options }, columns, threads, shared })
    }

    /// Whether blocks may have as much shared memory as they take.
    #[must_use]
    pub fn fits(&self, shared_memory: usize) -> bool {
        self.shared <= shared_memory
    }
}

/// Factors of a length among 3, 5, 7, 8, 4 and 2, two or more; none if there are others.
fn factors(length: usize) -> Option<Vec<usize>> {
    let (mut rest, mut found) = (length, Vec::new());
    if length == 0 {
        return None;
    }
    for factor in [7, 5, 3] {
        while rest % factor == 0 {
            rest /= factor;
            found.push(factor);
        }
    }
    // Two fours rather than an eight and a two.
    while rest % 8 == 0 && rest != 16 {
        rest /= 8;
        found.push(8);
    }
    while rest % 4 == 0 {
        rest /= 4;
        found.push(4);
    }
    if rest == 2 {
        rest = 1;
        found.push(2);
    }
    (rest == 1 && found.len() > 1).then_some(found)
}

/// Memory of one GPU: a mesh, its filter, the roots of unity of its length along x, and the filtered mesh, which may be the
/// mesh itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) mesh: *const c_void,
    pub(super) filter: *const c_void,
    pub(super) roots: *const c_void,
    pub(super) result: *mut c_void,
    /// Memory of the spectrum.
    pub(super) spectrum: *mut c_void,
}

/// Filters a real mesh. `allocate` gives device memory for the duration of the call.
///
/// # Safety
/// The memory has the extents of `slabs`, of which there is one. The GPU of the participant has its stream.
///
/// # Errors
/// Errors of CUDA.
pub(super) unsafe fn filtered(
    rendezvous: &Rendezvous,
    participant: &Participant,
    slabs: &Slabs,
    lines: &Lines,
    memory: Memory,
    mut allocate: impl FnMut(usize) -> Result<*mut c_void>,
) -> Result<()> {
    let ordinal = participant.group[0];
    let (node, stream) = (node(ordinal)?, participant.stream);
    let job = |inverse: bool| Job {
        participant: participant.clone(),
        inverse,
        sign: if inverse { 1 } else { -1 },
        planes_only: true,
        batch: 1,
        input: if inverse { memory.spectrum } else { memory.mesh.cast_mut() },
        output: if inverse { memory.result } else { memory.spectrum },
        scratch: memory.spectrum,
    };
    // SAFETY: by contract. The transform of planes back takes them from where the kernel leaves them.
    unsafe {
        transform(&node, rendezvous, slabs, &job(false), &mut allocate)?;
        launch(ordinal, stream, slabs, lines, memory)?;
        transform(&node, rendezvous, slabs, &job(true), &mut allocate)
    }
}

/// # Safety
/// As for [`filtered`].
unsafe fn launch(ordinal: i32, stream: Opaque, slabs: &Slabs, lines: &Lines, memory: Memory) -> Result<()> {
    let [_, ny, nk] = slabs.shape;
    let module = gpus::gpu(ordinal)?.module(gpus::compiler()?, &lines.variant)?;
    let blocks = (ny * nk) as usize;
    let grid = ([blocks.div_ceil(lines.columns) as u32, 1, 1], lines.threads as u32);
    let (ny, nk) = (ny as u32, nk as u32);
    let mut arguments = arguments![memory.spectrum, memory.filter, memory.roots, ny, nk];
    // SAFETY: by contract; the arguments are those of the kernel.
    unsafe { module.launch_grid(c"filter_along_x", grid, lines.shared as u32, stream, &mut arguments) }
}

#[cfg(test)]
mod tests {
    use super::{Lines, factors};

    #[test]
    fn lengths_of_small_factors_have_a_kernel() {
        for (length, found) in [
            (512, Some(vec![8, 8, 8])),
            (1024, Some(vec![8, 8, 4, 4])),
            (128, Some(vec![8, 4, 4])),
            (1000, Some(vec![5, 5, 5, 8])),
            (16, Some(vec![4, 4])),
            (6, Some(vec![3, 2])),
            (8, None),
            (1, None),
            (22, None),
            (0, None),
        ] {
            assert_eq!(factors(length), found, "{length}");
        }
        let lines = |length, double| Lines::new(length, double).map(|l| (l.columns, l.threads, l.shared >> 10));
        assert_eq!(lines(512, false), Some((16, 384, 64)));
        assert_eq!(lines(64, true), Some((8, 64, 8)));
        assert_eq!(lines(2048, false), Some((8, 384, 128)));
        assert_eq!((lines(8, false), lines(4096, false), lines(509, true)), (None, None, None));
        // Shared memory that a block may have: of compute capability 7.5, 8.6 and 8.9, 8.0, and 9.0.
        let longest = [64, 99, 163, 227].map(|kib| {
            let fits = |&n: &usize| Lines::new(n, false).is_some_and(|lines| lines.fits(kib << 10));
            (1..4096).rev().find(fits)
        });
        assert_eq!(longest, [Some(1024), Some(1575), Some(2560), Some(2560)]);
        assert!(Lines::new(512, true).is_some_and(|lines| lines.fits(64 << 10)));
    }
}
