//! FFI target of the transpose of reading a force: three fields are painted and their differences added up.

use super::handlers::{check_scratch, with_context};
use super::launch::{Context, FLAG, Geometry, HEAD, PaintBuffers, blocks};
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

/// Bits by which a sum can exceed that of the contributions: from three axes, eight times two neighbours and two more.
const SUM_BITS: i32 = 6;

/// Bytes of scratch memory: a head, and a sum of 64 bits for each cell of the potential.
fn scratch_bytes(cells: usize) -> usize {
    HEAD + 8 * cells
}

/// `Potential` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Potential {
    per_cell: [f64; 3],
    cells: [i32; 3],
    shift: [i32; 3],
}

const _: () = assert!(size_of::<Potential>() == 48);

fn unpacked(call: &Call<'_>, stage: fn(&Call<'_>, &mut ForceTranspose<'_>) -> Result<()>) -> Result<()> {
    ForceTranspose::new(call)
        .and_then(|mut operands| {
            let spec = &operands.particles.spec;
            let dtype = operands.particles.disp.dtype();
            if dtype != Dtype::F32 {
                return Err(Error::invalid(format!("disp: expected f32, got {dtype}")));
            }
            if !variants::has_tile(dtype, spec) {
                return Err(Error::invalid(format!("spacing: expected fewer than 4 cells a particle, got {spec:?}")));
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
    check_scratch(&scratch, scratch_bytes(cells))?;
    let (disp, weight) = (operands.particles.disp.as_ptr(), operands.weight.as_ptr());
    let (field, scratch) = (operands.field.as_mut_ptr(), scratch.as_mut_ptr());
    let potential = Potential {
        per_cell: call.float_array("per_cell")?,
        cells: operands.cells.map(|n| n as i32),
        shift: operands.particles.spec.periodic.map(|periodic| if periodic { 0 } else { 2 }),
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
            unsafe { launch(context, potential, buffers) }
        })
    })
}

/// Launches the kernels for one element of the batch.
///
/// # Safety
/// The buffers are device memory of the operands' extents.
unsafe fn launch(context: &Context<'_>, potential: Potential, buffers: PaintBuffers) -> cuda::Result<()> {
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
        context.gpu.clear(sums, scratch_bytes(cells as usize) - HEAD, context.stream)?;
        let mut arguments = arguments![geometry, potential, disp, weight, bits, largest, sums, flag];
        module.launch_grid(c"paint_vectors", (blocks(sites, block), threads), 0, context.stream, &mut arguments)?;
        let mut arguments = arguments![sums, cells, potential, bits, largest, flag, field];
        module.launch(c"finish_potential", [share, 256], context.stream, &mut arguments)
    }
}
