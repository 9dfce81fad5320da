//! Sources of the kernels and the macros with which they are compiled.

use crate::cic::geometry::Spec;
use crate::cic::masks::Mask;
use crate::cic::operands::Reduction;
use crate::cuda::kernel::Variant;
use xla_ffi::Dtype;

const PAINT: &str = concat!(include_str!("common.cu"), include_str!("paint.cu"));
const FORCE_TRANSPOSE: &str =
    concat!(include_str!("common.cu"), include_str!("paint.cu"), include_str!("force_transpose.cu"));
const READ: &str = concat!(include_str!("common.cu"), include_str!("read.cu"));
const KICK: &str = concat!(include_str!("common.cu"), include_str!("read.cu"), include_str!("kick.cu"));
const PULL_BACK: &str =
    concat!(include_str!("common.cu"), include_str!("read.cu"), include_str!("kick.cu"), include_str!("pull_back.cu"));

/// Precision, masks and size of offsets: common to all kernels.
#[derive(Clone, Copy, Debug)]
pub struct Common<'a> {
    /// f32 or f64.
    pub dtype: Dtype,
    /// Masks of the weights.
    pub masks: &'a [Mask],
    /// Whether offsets into the mesh exceed 32 bits.
    pub wide: bool,
}

/// A variant of the paint kernels.
#[derive(Clone, Debug)]
pub struct PaintVariant {
    /// Variant to compile.
    pub variant: Variant,
    /// Sites of a block along each axis.
    pub block: [usize; 3],
    /// Threads of a block.
    pub threads: u32,
}

/// A variant of the read kernel, with one thread for each site of a block.
#[derive(Clone, Debug)]
pub struct ReadVariant {
    /// Variant to compile.
    pub variant: Variant,
    /// Sites of a block along each axis.
    pub block: [usize; 3],
}

impl Common<'_> {
    fn options(&self) -> Vec<String> {
        let masks: Vec<&str> = self.masks.iter().flatten().map(|&d| if d { "1" } else { "0" }).collect();
        vec![
            "--std=c++17".to_owned(),
            "--fmad=false".to_owned(),
            format!("-DREAL_BITS={}", if self.dtype == Dtype::F64 { 64 } else { 32 }),
            format!("-DWIDE_INDEX={}", u8::from(self.wide)),
            format!("-DMASKS={}", masks.join(",")),
        ]
    }
}

fn extents(prefix: char, extents: [usize; 3]) -> impl Iterator<Item = String> {
    ['X', 'Y', 'Z'].into_iter().zip(extents).map(move |(axis, extent)| format!("-D{prefix}{axis}={extent}"))
}

/// Cells a site along each axis.
fn spacing(spec: &Spec) -> [f64; 3] {
    core::array::from_fn(|axis| spec.spacing_num[axis] as f64 / spec.spacing_den[axis] as f64)
}

/// Whether sums go to a tile in shared memory first. That pays where neighbouring particles share cells, that is below about
/// four cells a site.
#[must_use]
pub fn has_tile(dtype: Dtype, spec: &Spec) -> bool {
    dtype == Dtype::F32 && spacing(spec).iter().product::<f64>() < 4.0
}

/// Chooses the paint kernels. (512³ particles at a = 1, one H100: 3.0 ms with a tile of 14 x 14 x 24 cells for 8 x 8 x 16 sites, 7 ms
/// without; weights of each particle take registers, and 3.4 instead of 3.9 ms with 256 threads.)
#[must_use]
pub fn paint(common: Common<'_>, spec: &Spec, shared: bool) -> PaintVariant {
    let threads = if shared { 512 } else { 256 };
    let mut paint = paint_of(PAINT, common, spec, ([8, 8, 16], [14, 14, 24]), threads);
    paint.variant.options.extend([format!("-DSHARED={}", u8::from(shared)), "-DVECTORS=0".to_owned()]);
    paint
}

/// Chooses the kernels of the transpose of reading a force, which need a tile. (512³ particles at the
/// start and at a = 1, one H100, differences included: 5.3 and 8.4 ms; 5.9 and 8.4 with a tile of 24 x 16 x 26 cells; 6.6 and
/// 12 with blocks of 8 x 8 x 16 sites and one thread for a particle outside the tile.)
#[must_use]
pub fn force_transpose(common: Common<'_>, spec: &Spec) -> PaintVariant {
    let mut paint = paint_of(FORCE_TRANSPOSE, common, spec, ([16, 8, 16], [22, 14, 24]), 512);
    paint.variant.options.extend(["-DVECTORS=1", "-DBLOCKS=2"].map(str::to_owned));
    paint
}

/// Paint kernels for blocks of at most so many sites, with tiles of so many cells.
fn paint_of(
    source: &'static str,
    common: Common<'_>,
    spec: &Spec,
    (block, cells): ([usize; 3], [usize; 3]),
    threads: usize,
) -> PaintVariant {
    let (tile, spacing) = (has_tile(common.dtype, spec), spacing(spec));
    // Fewer sites where they are further apart, so that a block still covers about as many cells.
    let sites = |axis: usize| if spacing[axis] > 1.25 { block[axis] / 2 } else { block[axis] };
    let block = if tile { [sites(0), sites(1), sites(2)] } else { [1, 8, 32] };
    let threads = block.iter().product::<usize>().min(threads);
    let mut options = common.options();
    options.extend([format!("-DTHREADS={threads}"), format!("-DTILE={}", u8::from(tile))]);
    options.extend(extents('B', block).chain(extents('T', cells)));
    PaintVariant { variant: Variant { source, options }, block, threads: threads as u32 }
}

/// Chooses the read kernel.
#[must_use]
pub fn read(common: Common<'_>, fields: usize, reduction: Reduction) -> ReadVariant {
    read_of(READ, common, fields, reduction)
}

/// Chooses the kernel of a kick and two drifts, of momenta that are held as whole numbers or not.
#[must_use]
pub fn kick(common: Common<'_>, whole: bool) -> ReadVariant {
    let mut kernel = read_of(KICK, common, 3, Reduction::None);
    kernel.variant.options.push(format!("-DWHOLE={}", u8::from(whole)));
    kernel
}

/// Chooses the kernel that undoes drifts, a kick, or the ones and then the other, with cotangents.
#[must_use]
pub fn pull_back(common: Common<'_>, drift: bool, kick: bool) -> ReadVariant {
    let mut kernel = read_of(PULL_BACK, common, 3, Reduction::None);
    kernel.variant.options.extend([format!("-DDRIFT={}", u8::from(drift)), format!("-DKICK={}", u8::from(kick))]);
    kernel
}

fn read_of(source: &'static str, common: Common<'_>, fields: usize, reduction: Reduction) -> ReadVariant {
    let block = [1, 8, 32];
    let reduction = match reduction {
        Reduction::None => 0,
        Reduction::OverMasks => 1,
        Reduction::OverFields => 2,
    };
    let mut options = common.options();
    options.extend([format!("-DFIELDS={fields}"), format!("-DREDUCTION={reduction}")]);
    options.extend(extents('B', block));
    ReadVariant { variant: Variant { source, options }, block }
}
