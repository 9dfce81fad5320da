//! Sources of the kernels and the macros with which they are compiled.

use crate::cic::geometry::Spec;
use crate::cic::masks::Mask;
use crate::cic::operands::Reduction;
use crate::cuda::kernel::Variant;
use xla_ffi::Dtype;

const PAINT: &str = concat!(include_str!("common.cu"), include_str!("sums.cu"), include_str!("paint.cu"));
const FORCE_TRANSPOSE: &str = concat!(
    include_str!("common.cu"),
    include_str!("sums.cu"),
    include_str!("paint.cu"),
    include_str!("force_transpose.cu")
);
const DIFFERENCES: &str = concat!(
    include_str!("common.cu"),
    include_str!("sums.cu"),
    include_str!("paint.cu"),
    include_str!("differences.cu")
);
const READ: &str = concat!(include_str!("common.cu"), include_str!("read.cu"));
const KICK: &str = concat!(include_str!("common.cu"), include_str!("read.cu"), include_str!("kick.cu"));
const STEP_VJP: &str =
    concat!(include_str!("common.cu"), include_str!("read.cu"), include_str!("kick.cu"), include_str!("step_vjp.cu"));

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
    fn options(&self, spec: &Spec) -> Vec<String> {
        let masks: Vec<&str> = self.masks.iter().flatten().map(|&d| if d { "1" } else { "0" }).collect();
        vec![
            "--std=c++17".to_owned(),
            "--fmad=false".to_owned(),
            format!("-DREAL_BITS={}", if self.dtype == Dtype::F64 { 64 } else { 32 }),
            format!("-DWIDE_INDEX={}", u8::from(self.wide)),
            format!("-DMASKS={}", masks.join(",")),
            format!("-DUNIT_SPACING={}", u8::from(spec.spacing_num == spec.spacing_den)),
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

/// Whether neighbouring particles share cells, so that a block of them has fewer cells than contributions.
#[must_use]
pub fn share_cells(spec: &Spec) -> bool {
    spacing(spec).iter().product::<f64>() < 4.0
}

/// Sites of a block along each axis: fewer where they are further apart, so that it still covers about as many cells.
fn sites(spec: &Spec, most: [usize; 3]) -> [usize; 3] {
    let spacing = spacing(spec);
    core::array::from_fn(|axis| if spacing[axis] > 1.25 { most[axis] / 2 } else { most[axis] })
}

/// Chooses the paint kernels: the fastest blocks and tiles for particles at the start and at a = 1. A weight for each particle
/// takes registers, and leaves fewer blocks to a multiprocessor.
#[must_use]
pub fn paint(common: Common<'_>, spec: &Spec, shared: bool) -> PaintVariant {
    // A tile is faster up to 8 cells a site and more: it adds the sums of a sector at once, even if no cells are shared.
    let tile = common.dtype == Dtype::F32 && spacing(spec).iter().product::<f64>() < 16.0;
    let (block, cells, blocks) = match (tile, shared) {
        (false, _) => ([1, 8, 32], None, 1),
        (true, true) => (sites(spec, [8, 8, 16]), Some([14, 14, 24]), 6),
        (true, false) => (sites(spec, [8, 8, 16]), Some([14, 14, 24]), 5),
    };
    let mut paint = paint_of(PAINT, common, spec, (block, cells), (256, blocks));
    paint.variant.options.extend([format!("-DSHARED={}", u8::from(shared)), "-DVECTORS=0".to_owned()]);
    paint
}

/// Chooses the kernels of the transpose of reading a force.
///
/// If particles [share cells](share_cells), one pass paints three fields and takes their differences in a tile. Otherwise these
/// differences would reach several times as many cells as the particles, and a paint with weights takes one field after the other.
/// That would also be faster with many particles outside of the tile, more than simulations have.
#[must_use]
pub fn force_transpose(common: Common<'_>, spec: &Spec) -> PaintVariant {
    if !share_cells(spec) {
        let paint = paint(common, spec, false);
        return PaintVariant { variant: Variant { source: DIFFERENCES, ..paint.variant }, ..paint };
    }
    let block = sites(spec, [16, 8, 16]);
    let threads = block.iter().product::<usize>().min(512);
    let mut paint = paint_of(FORCE_TRANSPOSE, common, spec, (block, Some([22, 14, 24])), (threads, 2));
    paint.variant.options.push("-DVECTORS=1".to_owned());
    paint
}

/// Paint kernels for blocks of so many sites, with tiles of so many cells, if any, and with so many threads of a block and blocks
/// on a multiprocessor.
fn paint_of(
    source: &'static str,
    common: Common<'_>,
    spec: &Spec,
    (block, cells): ([usize; 3], Option<[usize; 3]>),
    (threads, blocks): (usize, usize),
) -> PaintVariant {
    let mut options = common.options(spec);
    options.extend([format!("-DTHREADS={threads}"), format!("-DTILE={}", u8::from(cells.is_some()))]);
    options.extend(min_blocks(common, blocks));
    options.extend(extents('B', block));
    options.extend(cells.into_iter().flat_map(|cells| extents('T', cells)));
    PaintVariant { variant: Variant { source, options }, block, threads: threads as u32 }
}

/// Chooses the read kernel.
#[must_use]
pub fn read(common: Common<'_>, spec: &Spec, fields: usize, reduction: Reduction) -> ReadVariant {
    read_of(READ, common, spec, (fields, reduction), [1, 8, 32])
}

/// Chooses the kernel of a kick and two drifts.
#[must_use]
pub fn kick(common: Common<'_>, spec: &Spec) -> ReadVariant {
    let mut kernel = read_of(KICK, common, spec, (3, Reduction::None), [1, 4, 32]);
    kernel.variant.options.extend(min_blocks(common, 10));
    kernel
}

/// Chooses the kernel that reverses drifts, a kick, or drifts and then a kick, with cotangents.
#[must_use]
pub fn step_vjp(common: Common<'_>, spec: &Spec, drift: bool, kick: bool) -> ReadVariant {
    let mut kernel = read_of(STEP_VJP, common, spec, (3, Reduction::None), [1, 8, 32]);
    kernel.variant.options.extend(min_blocks(common, 5));
    kernel.variant.options.extend([format!("-DDRIFT={}", u8::from(drift)), format!("-DKICK={}", u8::from(kick))]);
    kernel
}

/// Bounds the registers so that a number of blocks fits on a multiprocessor, in single precision only.
fn min_blocks(common: Common<'_>, blocks: usize) -> [String; 1] {
    [format!("-DBLOCKS={}", if common.dtype == Dtype::F32 { blocks } else { 1 })]
}

fn read_of(
    source: &'static str,
    common: Common<'_>,
    spec: &Spec,
    (fields, reduction): (usize, Reduction),
    block: [usize; 3],
) -> ReadVariant {
    let reduction = match reduction {
        Reduction::None => 0,
        Reduction::OverMasks => 1,
        Reduction::OverFields => 2,
    };
    let mut options = common.options(spec);
    options.extend([format!("-DFIELDS={fields}"), format!("-DREDUCTION={reduction}")]);
    options.extend(extents('B', block));
    ReadVariant { variant: Variant { source, options }, block }
}
