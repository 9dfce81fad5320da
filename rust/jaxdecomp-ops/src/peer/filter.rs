//! A real mesh filtered: transformed, multiplied by a filter and transformed back.
//!
//! cuFFT transforms its planes; along x one kernel does all three, in one pass over the spectrum. Between GPUs, copy engines send
//! planes while the next ones are transformed, and the kernel writes its results to the slabs of all GPUs.

use super::exchange::{Exchange, Participant, Rendezvous, Rows, SendReady};
use super::node::Node;
use super::passes::Passes;
use super::{Job, Slabs};
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
    pub fn new(length: usize, double: bool, num_shards: i64) -> Option<Self> {
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
            format!("-DSHARDS={num_shards}"),
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

/// Memory of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Slab of the mesh.
    pub mesh: *const c_void,
    /// Memory of the filtered slab, which may be that of the mesh.
    pub result: *mut c_void,
    /// Memory of a slab of the spectrum, and of another one behind it where there are several.
    pub spectrum: *mut c_void,
}

/// Filters a real mesh. `allocate` gives device memory for the duration of the call. `kernel` filters along x on the stream of the
/// participant, given the words of the kernel's `Slabs`.
///
/// # Safety
/// The memory has the extents of `slabs`, and is of the participant's GPU.
///
/// # Errors
/// The failure of this GPU or of a peer, or a timeout; the result is then undefined.
pub unsafe fn filtered(
    node: &Node,
    rendezvous: &Rendezvous,
    participant: &Participant,
    slabs: &Slabs,
    memory: Memory,
    mut allocate: impl FnMut(usize) -> Result<*mut c_void>,
    kernel: impl FnOnce(&[u64]) -> Result<()>,
) -> Result<()> {
    let slabs = &Slabs { bands: 1, ..*slabs };
    let exchange = Exchange { node, rendezvous, participant, label: &format!("filter of {slabs:?}") };
    let _turn = participant.link.as_ref().map(|link| link.turn());
    let (stream, rank) = (exchange.stream(), participant.rank);
    let bytes = slabs.values() as usize * slabs.item();
    let mut pass = |inverse: bool| {
        let (sign, planes_only, batch) = (if inverse { 1 } else { -1 }, true, 1);
        let (input, output, scratch, participant) = (memory.mesh, memory.result, memory.spectrum, participant.clone());
        Passes::new(
            node,
            slabs,
            &Job { participant, inverse, sign, planes_only, batch, input, output, scratch },
            &mut allocate,
        )
    };
    let work = || {
        let forward = pass(false)?;
        let spectrum = exchange.receive_buffer(memory.spectrum, 2 * bytes)?;
        let send = |ready: SendReady, routes: &[Vec<(usize, Rows)>]| {
            if slabs.num_shards == 1 {
                return ready.map(|_| vec![spectrum as usize]);
            }
            // SAFETY: by contract.
            let (all, sent) = unsafe { exchange.all_to_all(spectrum, spectrum, ready, routes) }?;
            exchange.wait_for(&sent, None).map(|()| all)
        };
        let planes = || {
            let (free, mut done) = (exchange.mark_free()?, Vec::new());
            for piece in 0..slabs.pieces {
                // SAFETY: by contract.
                unsafe { forward.piece(piece, memory.mesh.cast_mut(), spectrum) }?;
                done.push(stream.record()?);
            }
            Ok((free, done))
        };
        let behind =
            |(to, rows): (usize, Rows)| (to, Rows { offsets: [rows.offsets[0], bytes + rows.offsets[1]], ..rows });
        let others = |share: Vec<(usize, Rows)>| share.into_iter().filter(|(to, _)| *to != rank).map(behind).collect();
        let routes: Vec<_> = forward.routes().into_iter().map(others).collect();
        let all = send(planes(), &routes)?;
        let lines = kernel(&words(slabs, rank, &all, spectrum as usize + bytes));
        let lines = lines.and_then(|()| Ok((exchange.mark_free()?, vec![stream.record()?])));
        send(lines, &[Vec::new()])?; // once all kernels have written
        let back = pass(true)?;
        // SAFETY: by contract.
        (0..slabs.pieces).try_for_each(|piece| unsafe { back.piece(piece, spectrum, memory.result) })?;
        exchange.finish()
    };
    rendezvous.abort_on_error(participant, work())
}

/// Words of the kernel's `Slabs`, for slabs of the spectrum at given addresses and planes received from the others.
fn words(slabs: &Slabs, rank: usize, all: &[usize], received: usize) -> Vec<u64> {
    let slab = slabs.values() as usize * slabs.item();
    let lines = slab / slabs.shape[0] as usize;
    let first = |(of, &address): (usize, &usize)| address.wrapping_sub(of * slab).wrapping_add(rank * lines) as u64;
    all.iter().enumerate().map(first).chain([received as u64, rank as u64]).collect()
}

impl Lines {
    /// Launches the kernel.
    ///
    /// # Safety
    /// The GPU is current. `words` are those of its slabs, `filter` and `roots` the further operands.
    ///
    /// # Errors
    /// Errors of CUDA.
    pub(super) unsafe fn launch(
        &self,
        ordinal: i32,
        stream: Opaque,
        slabs: &Slabs,
        words: &[u64],
        [filter, roots]: [*const c_void; 2],
    ) -> Result<()> {
        let [_, ny, nk] = slabs.spectrum_block();
        let module = gpus::gpu(ordinal)?.module(gpus::compiler()?, &self.variant)?;
        let blocks = (ny * nk) as usize;
        let grid = ([blocks.div_ceil(self.columns) as u32, 1, 1], self.threads as u32);
        let (ny, nk) = (ny as u32, nk as u32);
        let mut arguments = arguments![words[0], filter, roots, ny, nk];
        // SAFETY: by contract; the arguments are those of the kernel.
        unsafe { module.launch_grid(c"filter_along_x", grid, self.shared as u32, stream, &mut arguments) }
    }
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
        let lines = |length, double| Lines::new(length, double, 1).map(|l| (l.columns, l.threads, l.shared >> 10));
        assert_eq!(lines(512, false), Some((16, 384, 64)));
        assert_eq!(lines(64, true), Some((8, 64, 8)));
        assert_eq!(lines(2048, false), Some((8, 384, 128)));
        assert_eq!((lines(8, false), lines(4096, false), lines(509, true)), (None, None, None));
        // Shared memory that a block may have: of compute capability 7.5, 8.6 and 8.9, 8.0, and 9.0.
        let longest = [64, 99, 163, 227].map(|kib| {
            let fits = |&n: &usize| Lines::new(n, false, 1).is_some_and(|lines| lines.fits(kib << 10));
            (1..4096).rev().find(fits)
        });
        assert_eq!(longest, [Some(1024), Some(1575), Some(2560), Some(2560)]);
        assert!(Lines::new(512, true, 1).is_some_and(|lines| lines.fits(64 << 10)));
    }
}
