//! Finite-difference gradient of a field on a mesh and its transpose, on CPUs and NVIDIA GPUs.

pub(crate) mod cpu;
pub mod handlers;

use crate::cuda::kernel::{Variant, arguments};
use crate::cuda::{Opaque, Result, gpus};
use core::ffi::c_void;
use xla_ffi::Dtype;

const SOURCE: &str = include_str!("gradient.cu");
/// Rows of a block of the transpose, as in the kernels, and its threads.
const ROWS: usize = 4;
const THREADS: usize = 256;
/// Rows and planes of a block of the gradient, as in the kernels.
const WARPS: usize = 4;
const PLANES: usize = 8;

/// Extents of a field (outer) and of its gradient (inner), as in the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mesh {
    pub(crate) outer: [i32; 3],
    pub(crate) inner: [i32; 3],
    pub(crate) periodic: [i32; 3],
    /// Weights of the differences over one and over two cells.
    pub(crate) near: [f64; 3],
    pub(crate) far: [f64; 3],
    pub(crate) near32: [f32; 3],
    pub(crate) far32: [f32; 3],
}

const _: () = assert!(size_of::<Mesh>() == 112 && core::mem::offset_of!(Mesh, near) == 40);

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Gradient,
    /// Gradient of one of several fields.
    GradientAt,
    Divergence,
}

/// The kernels for a precision and a size of offsets.
#[must_use]
pub fn variant(dtype: Dtype, wide: bool) -> Variant {
    let bits = if dtype == Dtype::F64 { 64 } else { 32 };
    let options = ["--std=c++17", "--fmad=false"].map(str::to_owned).into_iter();
    let macros = [format!("-DREAL_BITS={bits}"), format!("-DWIDE_INDEX={}", u8::from(wide))];
    Variant { source: SOURCE, options: options.chain(macros).collect() }
}

impl Mesh {
    /// Whether offsets exceed 32 bits.
    pub(crate) fn is_wide(&self) -> bool {
        u32::try_from(self.cells(self.outer).max(3 * self.cells(self.inner))).is_err()
    }

    /// Whether a thread can take four cells of a row.
    fn has_fours(&self) -> bool {
        self.periodic[2] != 0 && self.inner[2] % 4 == 0 && self.inner[2] >= 64
    }

    /// Number of cells of some extents.
    #[allow(clippy::unused_self, reason = "of this mesh")]
    fn cells(&self, extents: [i32; 3]) -> usize {
        extents.iter().map(|&n| n as usize).product()
    }
}

/// Launches a kernel on a stream.
///
/// # Safety
/// The GPU of the ordinal has the stream, and `from` and `to` are device memory of the extents of the mesh. A place, if it is
/// not null, is that of one of several fields.
pub(crate) unsafe fn launch(
    kernel: Kernel,
    mesh: Mesh,
    dtype: Dtype,
    ordinal: i32,
    stream: Opaque,
    [from, to, place]: [*mut c_void; 3],
) -> Result<()> {
    let module = gpus::gpu(ordinal)?.module(gpus::compiler()?, &variant(dtype, mesh.is_wide()))?;
    let [inner, outer] = [mesh.inner, mesh.outer].map(|extents| extents.map(|n| n as usize));
    let (name, blocks, threads) = match kernel {
        Kernel::Gradient | Kernel::GradientAt if dtype == Dtype::F32 && mesh.has_fours() => {
            let [x, y, z] = inner;
            (c"gradient_of_fours", x.div_ceil(PLANES) * y.div_ceil(WARPS) * z.div_ceil(128), 32 * WARPS)
        }
        Kernel::Gradient | Kernel::GradientAt => {
            let [x, y, z] = inner;
            (c"gradient", x.div_ceil(PLANES) * y.div_ceil(WARPS) * z.div_ceil(32), 32 * WARPS)
        }
        Kernel::Divergence => {
            let [x, y, z] = outer;
            let threads = THREADS.min(z.next_multiple_of(32));
            (c"divergence", (x * y).div_ceil(ROWS) * z.div_ceil(threads), threads)
        }
    };
    let grid = [blocks as u32, threads as u32];
    let mut arguments = arguments![mesh, from, to, place];
    let count = if kernel == Kernel::Divergence { 3 } else { 4 };
    // SAFETY: by contract; the arguments are those of the kernel.
    unsafe { module.launch(name, grid, stream, &mut arguments[..count]) }
}
