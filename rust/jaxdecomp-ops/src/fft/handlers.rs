//! FFI targets of the real transforms.

use super::{Extents, Precision, forward, inverse};
use realfft::num_complex::Complex;
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Result};

/// FFI targets of the platform "cpu".
pub const CPU: [(&str, Handler); 2] = [("jaxdecomp_ops_rfft", rfft), ("jaxdecomp_ops_irfft", irfft)];

xla_ffi::handler!(
    /// Transforms of real blocks.
    rfft => |call| run(call, true)
);
xla_ffi::handler!(
    /// Real blocks of transforms; the second result has the memory of the operand.
    irfft => |call| run(call, false)
);

fn run(call: &Call<'_>, is_forward: bool) -> Result<()> {
    match call.input(0, "from")?.dtype() {
        Dtype::F32 | Dtype::C64 => run_as::<f32>(call, is_forward, [Dtype::F32, Dtype::C64]),
        Dtype::F64 | Dtype::C128 => run_as::<f64>(call, is_forward, [Dtype::F64, Dtype::C128]),
        other => Err(Error::invalid(format!("from: expected floats of 32 or 64 bits, got {other}"))),
    }
}

fn run_as<T: Precision>(call: &Call<'_>, is_forward: bool, [real, complex]: [Dtype; 2]) -> Result<()> {
    call.expect_arity(1, if is_forward { 1 } else { 2 })?;
    let (from, mut to, pool) = (call.input(0, "from")?, call.output(0, "to")?, call.pool());
    let (block, modes) = if is_forward { (from.dims(), to.dims()) } else { (to.dims(), from.dims()) };
    let &[batch, x, y, z] = block else {
        return Err(Error::invalid(format!("block: expected 4 axes, got {block:?}")));
    };
    let [rank]: [i64; 1] = call.integer_array("rank")?;
    let extents = Extents { sides: [x, y, z], rank: rank as usize };
    let expected = if is_forward { [real, complex] } else { [complex, real] };
    if [from.dtype(), to.dtype()] != expected {
        return Err(Error::invalid(format!("expected {expected:?}, got {} and {}", from.dtype(), to.dtype())));
    }
    if !(1..=3).contains(&rank) || block.contains(&0) || modes != [batch, x, y, extents.modes()] {
        return Err(Error::invalid(format!("rank {rank}: {block:?} does not belong to {modes:?}")));
    }
    let (reals, waves) = (x * y * z, x * y * extents.modes());
    if is_forward {
        // SAFETY: XLA's buffers have these types and extents, as checked above, and the result is ours alone.
        let (from, to) = unsafe {
            (
                core::slice::from_raw_parts(from.as_ptr().cast::<T>(), batch * reals),
                core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<Complex<T>>(), batch * waves),
            )
        };
        for (from, to) in from.chunks(reals).zip(to.chunks_mut(waves)) {
            forward(extents, from, to, &pool);
        }
        return Ok(());
    }
    let mut lent = call.output(1, "lent")?;
    if lent.as_mut_ptr().cast_const() != from.as_ptr() || lent.dims() != modes || lent.dtype() != complex {
        return Err(Error::invalid("lent: expected the memory of the operand"));
    }
    // SAFETY: as above; the operand's memory is that of a result, which is ours alone.
    let (from, to) = unsafe {
        (
            core::slice::from_raw_parts_mut(lent.as_mut_ptr().cast::<Complex<T>>(), batch * waves),
            core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<T>(), batch * reals),
        )
    };
    for (from, to) in from.chunks_mut(waves).zip(to.chunks_mut(reals)) {
        inverse(extents, from, to, &pool);
    }
    Ok(())
}
