//! FFI targets of paint and read on NVIDIA GPUs.

use super::launch::{
    HEAD, MOST_FIELDS, PaintBuffers, ReadBuffers, SumsBuffers, check_scratch, item, scratch_bytes, sum_bytes,
    with_context,
};
use crate::cic::operands::{Extents, IntegerPaint, Paint, Particles, Read};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Error, Input, Result, Role};

/// FFI targets of the platform "CUDA", each with the handlers of the stages "initialize" and "execute".
pub(super) const CUDA: [(&str, [Handler; 2]); 4] = [
    ("jaxdecomp_ops_cic_paint", [initialize_paint, execute_paint]),
    ("jaxdecomp_ops_cic_paint_sums", [initialize_paint_sums, execute_paint_sums]),
    ("jaxdecomp_ops_cic_read", [initialize_read, execute_read]),
    ("jaxdecomp_ops_cic_read_sum", [initialize_read_sum, execute_read_sum]),
];

xla_ffi::handler!(
    /// Compiles and loads the kernels of a paint.
    initialize_paint => |call| paint(call, load_paint), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Paint on a GPU; the second result is scratch memory.
    execute_paint => |call| paint(call, run_paint), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernels of a paint that returns integer sums.
    initialize_paint_sums => |call| paint_sums(call, load_sums), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Paint on a GPU that returns integer sums; the second result is scratch memory.
    execute_paint_sums => |call| paint_sums(call, run_sums), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernel of a read.
    initialize_read => |call| read(call, load_read), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Read on a GPU.
    execute_read => |call| read(call, run_read), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernel of a weighted sum of reads.
    initialize_read_sum => |call| read_sum(call, load_read), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Weighted sum of reads on a GPU.
    execute_read_sum => |call| read_sum(call, run_read), Role::RECORDABLE
);

fn paint(call: &Call<'_>, stage: fn(&Call<'_>, &mut Paint<'_>) -> Result<()>) -> Result<()> {
    Paint::new(call, 1).and_then(|mut operands| stage(call, &mut operands)).map_err(|error| error.within("cic_paint"))
}

fn paint_sums(call: &Call<'_>, stage: fn(&Call<'_>, &mut IntegerPaint<'_>) -> Result<()>) -> Result<()> {
    IntegerPaint::new(call, 1)
        .and_then(|mut operands| stage(call, &mut operands))
        .map_err(|error| error.within("cic_paint_sums"))
}

fn read(call: &Call<'_>, stage: fn(&Call<'_>, &mut Read<'_>) -> Result<()>) -> Result<()> {
    Read::new(call).and_then(|mut operands| stage(call, &mut operands)).map_err(|error| error.within("cic_read"))
}

fn read_sum(call: &Call<'_>, stage: fn(&Call<'_>, &mut Read<'_>) -> Result<()>) -> Result<()> {
    Read::reduced(call)
        .and_then(|mut operands| stage(call, &mut operands))
        .map_err(|error| error.within("cic_read_sum"))
}

fn load_paint(call: &Call<'_>, operands: &mut Paint<'_>) -> Result<()> {
    with_context(call, &operands.particles, |context| context.load_paint(operands.shared()))
}

fn load_sums(call: &Call<'_>, operands: &mut IntegerPaint<'_>) -> Result<()> {
    with_context(call, &operands.particles, |context| context.load_paint(operands.shared()))
}

fn load_read(call: &Call<'_>, operands: &mut Read<'_>) -> Result<()> {
    with_context(call, &operands.particles, |context| context.load_read(operands.reduction))
}

fn run_paint(call: &Call<'_>, operands: &mut Paint<'_>) -> Result<()> {
    let Particles { extents, disp, masks, .. } = &operands.particles;
    let (Extents { batch, sites, cells, fields }, item) = (*extents, item(disp.dtype()));
    let (particles, cells) = (sites.iter().product::<usize>(), cells.iter().product::<usize>());
    let mut scratch = call.output(1, "scratch")?;
    check_scratch(&scratch, scratch_bytes(disp.dtype(), cells))?;
    if fields > MOST_FIELDS {
        return Err(Error::invalid(format!("mesh: expected at most {MOST_FIELDS} fields, got {fields}")));
    }
    let shared = operands.shared();
    let weights = if shared { 1 } else { particles } * masks.len() * fields;
    let (mesh, scratch) = (operands.mesh.as_mut_ptr(), scratch.as_mut_ptr());
    with_context(call, &operands.particles, |context| {
        if particles == 0 {
            // SAFETY: the result has this size.
            return unsafe { context.gpu.clear(mesh, batch * cells * fields * item, context.stream) };
        }
        (0..if fields == 0 { 0 } else { batch }).try_for_each(|b| {
            let buffers = PaintBuffers {
                disp: disp.as_ptr().wrapping_byte_add(b * particles * 3 * item),
                weight: operands.weight.as_ptr().wrapping_byte_add(b * weights * item),
                mesh: mesh.wrapping_byte_add(b * cells * fields * item),
                scratch,
            };
            // SAFETY: the extents of XLA's buffers are checked above.
            unsafe { context.paint(shared, buffers) }
        })
    })
}

fn run_sums(call: &Call<'_>, operands: &mut IntegerPaint<'_>) -> Result<()> {
    let Particles { extents: Extents { batch, sites, cells, .. }, disp, masks, .. } = &operands.particles;
    let (dtype, item) = (disp.dtype(), item(disp.dtype()));
    let (particles, cells) = (sites.iter().product::<usize>(), cells.iter().product::<usize>());
    let mut head = call.output(1, "scratch")?;
    check_scratch(&head, HEAD)?;
    let (shared, bits) = (operands.shared(), operands.bits);
    let weights = if shared { 1 } else { particles } * masks.len();
    let (sums, head) = (operands.sums.as_mut_ptr(), head.as_mut_ptr());
    with_context(call, &operands.particles, |context| {
        if particles == 0 {
            // SAFETY: the result has this size.
            return unsafe { context.gpu.clear(sums, batch * cells * sum_bytes(dtype), context.stream) };
        }
        (0..*batch).try_for_each(|b| {
            let buffers = SumsBuffers {
                disp: disp.as_ptr().wrapping_byte_add(b * particles * 3 * item),
                weight: operands.weight.as_ptr().wrapping_byte_add(b * weights * item),
                bound: operands.bound.as_ptr().wrapping_byte_add(b * item),
                sums: sums.wrapping_byte_add(b * cells * sum_bytes(dtype)),
                head,
            };
            // SAFETY: the extents of XLA's buffers are checked above.
            unsafe { context.paint_sums(shared, bits, buffers) }
        })
    })
}

fn run_read(call: &Call<'_>, operands: &mut Read<'_>) -> Result<()> {
    let Particles { extents, disp, .. } = &operands.particles;
    let (Extents { batch, sites, cells, fields }, item) = (*extents, item(disp.dtype()));
    let (particles, cells) = (sites.iter().product::<usize>(), cells.iter().product::<usize>());
    let per_element = |dims: &[usize]| dims[1..].iter().product::<usize>() * item;
    let (results, out) = (per_element(operands.out.dims()), operands.out.as_mut_ptr());
    let weights = operands.weight.as_ref().map_or(0, |weight| per_element(weight.dims()));
    let weight = operands.weight.as_ref().map_or(core::ptr::null(), Input::as_ptr);
    with_context(call, &operands.particles, |context| {
        (0..if results == 0 { 0 } else { batch }).try_for_each(|b| {
            let buffers = ReadBuffers {
                disp: disp.as_ptr().wrapping_byte_add(b * particles * 3 * item),
                fields: operands.fields.as_ptr().wrapping_byte_add(b * cells * fields * item),
                weight: weight.wrapping_byte_add(b * weights),
                out: out.wrapping_byte_add(b * results),
            };
            // SAFETY: the extents of XLA's buffers are checked above.
            unsafe { context.read(operands.reduction, buffers) }
        })
    })
}
