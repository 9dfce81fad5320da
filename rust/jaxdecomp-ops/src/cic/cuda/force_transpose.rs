//! FFI target of the transpose of reading a force: three fields are painted and their differences added up.
//!
//! Where particles share cells, all in one pass over them; elsewhere one field after the other, to the same sums.
//!
//! Memory traffic of the latter without caches [bytes]: 84 a particle, 12 for the largest weights and 24 for each field, whose
//! weights are interleaved; 68 a cell, besides the paints: for each field 16 to clear and read the sum and 4 to write the result,
//! which all fields but the first also read.

use super::launch::{
    Context, FLAG, Geometry, HEAD, PaintBuffers, blocks, check_scratch, scratch_bytes, sum_bytes, with_context,
};
use super::variants::{self, Common, PaintVariant};
use crate::cic::operands::{Extents, ForceTranspose};
use crate::cic::real::Real;
use crate::cuda;
use crate::cuda::kernel::arguments;
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Result, Role};

/// FFI target of the platform "CUDA", with the handlers of the stages "initialize" and "execute".
pub(super) const CUDA: (&str, [Handler; 2]) = ("jaxdecomp_ops_force_transpose", [initialize, execute]);

xla_ffi::handler!(
    /// Compiles and loads the kernels.
    initialize => |call| unpacked(call, load), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Transpose of reading a force on a GPU; the second result is scratch memory.
    execute => |call| unpacked(call, run), Role::RECORDABLE
);

/// Bits by which a sum can exceed the sum of contributions: three axes, eight times two neighbours and two more.
const SUM_BITS: i32 = 6;

/// Planes that a thread of `subtract_differences` follows, as in the kernel.
const PLANES: u64 = 16;

/// `Potential` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Potential {
    per_cell: [f64; 3],
    cells: [i32; 3],
    shift: [i32; 3],
}

/// `Differences` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Differences {
    cells: [i32; 3],
    shift: [i32; 3],
    near: [f32; 3],
    far: [f32; 3],
}

const _: () = assert!(size_of::<Potential>() == 48 && size_of::<Differences>() == 48);

fn unpacked(call: &Call<'_>, stage: fn(&Call<'_>, &mut ForceTranspose<'_>) -> Result<()>) -> Result<()> {
    ForceTranspose::new(call)
        .and_then(|mut operands| {
            let dtype = operands.particles.disp.dtype();
            if dtype != Dtype::F32 {
                return Err(Error::invalid(format!("disp: expected f32, got {dtype}")));
            }
            stage(call, &mut operands)
        })
        .map_err(|error| error.within("force_transpose"))
}

fn load(call: &Call<'_>, operands: &mut ForceTranspose<'_>) -> Result<()> {
    with_context(call, &operands.particles, |context| {
        context.gpu.module(context.compiler, &variant(context, operands.cells).variant).map(drop)
    })
}

/// The kernels, whose offsets are those into the potential.
fn variant(context: &Context<'_>, cells: [usize; 3]) -> PaintVariant {
    let wide = u32::try_from(cells.iter().product::<usize>()).is_err();
    variants::force_transpose(Common { wide, ..context.common }, context.spec)
}

fn run(call: &Call<'_>, operands: &mut ForceTranspose<'_>) -> Result<()> {
    let Extents { batch, sites, .. } = operands.particles.extents;
    let (vectors, cells) = (sites.iter().product::<usize>() * 12, operands.cells.iter().product::<usize>());
    let mut scratch = call.output(1, "scratch")?;
    // A sum for each cell of the potential; field by field, for each cell of the painted mesh.
    check_scratch(&scratch, scratch_bytes(Dtype::F32, cells))?;
    let (disp, weight) = (operands.particles.disp.as_ptr(), operands.weight.as_ptr());
    let (field, scratch) = (operands.field.as_mut_ptr(), scratch.as_mut_ptr());
    let extents = operands.cells.map(|n| n as i32);
    let shift = operands.particles.spec.periodic.map(|periodic| if periodic { 0 } else { 2 });
    let (near, far) = (call.float_array::<3>("near")?, call.float_array::<3>("far")?);
    let potential = Potential { per_cell: far.map(|x| -x), cells: extents, shift };
    let differences = Differences { cells: extents, shift, near: near.map(|x| x as f32), far: far.map(|x| x as f32) };
    with_context(call, &operands.particles, |context| {
        if vectors == 0 {
            // SAFETY: the result has this size.
            return unsafe { context.gpu.clear(field, batch * cells * 4, context.stream) };
        }
        (0..batch).try_for_each(|b| {
            let buffers = PaintBuffers {
                disp: disp.wrapping_byte_add(b * vectors),
                weight: weight.wrapping_byte_add(b * vectors),
                mesh: field.wrapping_byte_add(b * cells * 4),
                scratch,
            };
            // SAFETY: the extents of XLA's buffers are checked above.
            unsafe {
                if variants::share_cells(context.spec) {
                    in_one_pass(context, potential, buffers)
                } else {
                    field_by_field(context, differences, buffers)
                }
            }
        })
    })
}

/// Launches the kernels for one element of the batch where particles share cells.
///
/// # Safety
/// The buffers are device memory of the operands' extents.
unsafe fn in_one_pass(context: &Context<'_>, potential: Potential, buffers: PaintBuffers) -> cuda::Result<()> {
    let PaintVariant { variant, block, threads } = variant(context, potential.cells.map(|n| n as usize));
    let module = context.gpu.module(context.compiler, &variant)?;
    let sites = context.extents.sites;
    let particles = sites.iter().product::<usize>();
    let bits = f32::contribution_bits(particles) - SUM_BITS;
    let geometry = Geometry::new(context.spec, context.extents);
    let PaintBuffers { disp, weight, mesh: field, scratch: largest } = buffers;
    let (flag, sums) = (largest.wrapping_byte_add(FLAG), largest.wrapping_byte_add(HEAD));
    let cells = potential.cells.iter().map(|&n| n as u64).product::<u64>();
    let share = cells.div_ceil(256).min(context.most_blocks().into()) as u32;
    // SAFETY: by contract; the arguments are those of the kernels.
    unsafe {
        context.largest(&module, weight, 3 * particles as u64, 3, largest)?;
        context.gpu.clear(sums, cells as usize * sum_bytes(Dtype::F32), context.stream)?;
        let mut arguments = arguments![geometry, potential, disp, weight, bits, largest, sums, flag];
        module.launch_grid(c"paint_vectors", (blocks(sites, block), threads), 0, context.stream, &mut arguments)?;
        let mut arguments = arguments![sums, cells, potential, bits, largest, flag, field];
        module.launch(c"finish_potential", [share, 256], context.stream, &mut arguments)
    }
}

/// Launches the kernels for one element of the batch where particles share no cells.
///
/// # Safety
/// The buffers are device memory of the operands' extents.
unsafe fn field_by_field(context: &Context<'_>, differences: Differences, buffers: PaintBuffers) -> cuda::Result<()> {
    let cells = differences.cells.map(|n| n as u64);
    let PaintVariant { variant, block, threads } = variant(context, cells.map(|n| n as usize));
    let module = context.gpu.module(context.compiler, &variant)?;
    let Extents { sites, cells: painted, .. } = context.extents;
    let particles = sites.iter().product::<usize>();
    let (bits, count) = (f32::contribution_bits(particles), 3u32);
    let geometry = Geometry::new(context.spec, context.extents);
    let PaintBuffers { disp, weight, mesh: field, scratch: largest } = buffers;
    let (flag, sums) = (largest.wrapping_byte_add(FLAG), largest.wrapping_byte_add(HEAD));
    let share = (cells[0].div_ceil(PLANES) * cells[1] * cells[2]).div_ceil(256) as u32;
    // SAFETY: by contract; the arguments are those of the kernels.
    unsafe {
        context.largest(&module, weight, 3 * particles as u64, count, largest)?;
        for axis in 0..count {
            context.gpu.clear(sums, painted.iter().product::<usize>() * sum_bytes(Dtype::F32), context.stream)?;
            let mut arguments = arguments![geometry, disp, weight, count, axis, bits, largest, sums, flag];
            module.launch_grid(c"paint", (blocks(*sites, block), threads), 0, context.stream, &mut arguments)?;
            let mut arguments = arguments![geometry, differences, axis, sums, bits, largest, flag, field];
            module.launch(c"subtract_differences", [share, 256], context.stream, &mut arguments)?;
        }
    }
    Ok(())
}
