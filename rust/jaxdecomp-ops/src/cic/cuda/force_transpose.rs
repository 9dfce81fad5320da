//! FFI target of the transpose of reading a force: one field after the other is painted to the same sums, and their
//! differences subtracted from the result.
//!
//! Bytes from and to memory if no cache held any: of each particle 84, for the largest weights 12 and for each field 24, since
//! the weights of the others lie between its own; of each cell 68 and what the paints add. For each field its sum is cleared and
//! read once, 16, and the result, of 4, is written, and read before by all but the first.

use super::handlers::{check_scratch, with_context};
use super::launch::{Context, FLAG, Geometry, HEAD, PaintBuffers, blocks, scratch_bytes, sum_bytes};
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

/// Planes that a thread of `subtract_differences` follows, as in the kernel.
const PLANES: u64 = 16;

/// `Differences` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Differences {
    cells: [i32; 3],
    shift: [i32; 3],
    near: [f32; 3],
    far: [f32; 3],
}

const _: () = assert!(size_of::<Differences>() == 48);

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
    let Extents { batch, sites, cells: painted, .. } = operands.particles.extents;
    let (vectors, cells) = (sites.iter().product::<usize>() * 12, operands.cells.iter().product::<usize>());
    let mut scratch = call.output(1, "scratch")?;
    check_scratch(&scratch, scratch_bytes(Dtype::F32, painted.iter().product()))?;
    let (disp, weight) = (operands.particles.disp.as_ptr(), operands.weight.as_ptr());
    let (field, scratch) = (operands.field.as_mut_ptr(), scratch.as_mut_ptr());
    let [near, far] = ["near", "far"].map(|name| call.float_array::<3>(name).map(|weights| weights.map(|x| x as f32)));
    let differences = Differences {
        cells: operands.cells.map(|n| n as i32),
        shift: operands.particles.spec.periodic.map(|periodic| if periodic { 0 } else { 2 }),
        near: near?,
        far: far?,
    };
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
            unsafe { transpose(context, differences, buffers) }
        })
    })
}

/// Launches the kernels for one element of the batch.
///
/// # Safety
/// The buffers are device memory of the operands' extents.
unsafe fn transpose(context: &Context<'_>, differences: Differences, buffers: PaintBuffers) -> cuda::Result<()> {
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
