//! FFI targets of the gradient and of its transpose.

use super::{Kernel, Mesh, cpu, launch, variant};
use crate::cic::Real;
use crate::cuda::{self, gpus};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Input, Output, Result, Role};

/// FFI targets of the platform "cpu".
pub const CPU: [(&str, Handler); 3] = [
    ("jaxdecomp_ops_gradient", gradient_cpu),
    ("jaxdecomp_ops_gradient_at", gradient_at_cpu),
    ("jaxdecomp_ops_gradient_transpose", divergence_cpu),
];

/// FFI targets of the platform "CUDA", each with the handlers of the stages "initialize" and "execute".
pub const CUDA: [(&str, [Handler; 2]); 3] = [
    ("jaxdecomp_ops_gradient", [initialize_gradient, execute_gradient]),
    ("jaxdecomp_ops_gradient_at", [initialize_gradient_at, execute_gradient_at]),
    ("jaxdecomp_ops_gradient_transpose", [initialize_divergence, execute_divergence]),
];

xla_ffi::handler!(
    /// Compiles and loads the kernels.
    initialize_gradient => |call| load(call, Kernel::Gradient), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Gradient on a GPU.
    execute_gradient => |call| run(call, Kernel::Gradient), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernels.
    initialize_gradient_at => |call| load(call, Kernel::GradientAt), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Gradient of one of several fields on a GPU.
    execute_gradient_at => |call| run(call, Kernel::GradientAt), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernels.
    initialize_divergence => |call| load(call, Kernel::Divergence), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Transpose of the gradient on a GPU.
    execute_divergence => |call| run(call, Kernel::Divergence), Role::RECORDABLE
);

xla_ffi::handler!(
    /// Gradient on the CPU.
    gradient_cpu => |call| run_cpu(call, Kernel::Gradient)
);
xla_ffi::handler!(
    /// Gradient of one of several fields on the CPU.
    gradient_at_cpu => |call| run_cpu(call, Kernel::GradientAt)
);
xla_ffi::handler!(
    /// Transpose of the gradient on the CPU.
    divergence_cpu => |call| run_cpu(call, Kernel::Divergence)
);

fn internal(error: cuda::Error) -> Error {
    Error::internal(error.0)
}

/// Operands of a call.
struct Operands<'a> {
    batch: usize,
    mesh: Mesh,
    /// A field or several for each element of the batch.
    from: Input<'a>,
    /// Which of several fields.
    place: Option<Input<'a>>,
    to: Output<'a>,
}

/// The extents and weights of a call, for a field of known extents.
pub(crate) fn mesh(call: &Call<'_>, outer: [usize; 3]) -> Result<Mesh> {
    let (near, far): ([f64; 3], [f64; 3]) = (call.float_array("near")?, call.float_array("far")?);
    let periodic: [i64; 3] = call.integer_array("periodic")?;
    let inner = core::array::from_fn(|axis| outer[axis].saturating_sub(if periodic[axis] == 0 { 4 } else { 0 }));
    Ok(Mesh {
        outer: outer.map(|n| n as i32),
        inner: inner.map(|n: usize| n as i32),
        periodic: periodic.map(|p| i32::from(p != 0)),
        near,
        far,
        near32: near.map(|x| x as f32),
        far32: far.map(|x| x as f32),
    })
}

fn operands<'a>(call: &Call<'a>, kernel: Kernel) -> Result<Operands<'a>> {
    let at = kernel == Kernel::GradientAt;
    call.expect_arity(if at { 2 } else { 1 }, 1)?;
    let (from, to) = (call.input(0, "from")?, call.output(0, "to")?);
    let (from, place) = if at { (from.with_bits_of_reals(), Some(call.input(1, "place")?)) } else { (from, None) };
    let dtype = from.dtype();
    if ![Dtype::F32, Dtype::F64].contains(&dtype) || to.dtype() != dtype {
        return Err(Error::invalid(format!("expected f32 or f64, got {dtype} and {}", to.dtype())));
    }
    let mut outer = if kernel == Kernel::Divergence { to.dims() } else { from.dims() }.to_vec();
    let inner = if kernel == Kernel::Divergence { from.dims() } else { to.dims() };
    if at {
        if outer.len() != 5 || outer[1] == 0 {
            return Err(Error::invalid(format!("expected at least one field of 4 axes, got {outer:?}")));
        }
        outer.remove(1);
    }
    let &[batch, x, y, z] = &outer[..] else {
        return Err(Error::invalid(format!("expected a field of 4 axes, got {outer:?}")));
    };
    if let Some(place) = &place {
        place.expect_dims(&[batch])?;
        if place.dtype() != Dtype::S32 {
            return Err(Error::invalid(format!("place: expected s32, got {}", place.dtype())));
        }
    }
    let periodic: [i64; 3] = call.integer_array("periodic")?;
    let outer = [x, y, z];
    let less: [usize; 3] = core::array::from_fn(|axis| if periodic[axis] == 0 { 4 } else { 0 });
    let [bx, by, bz] = core::array::from_fn(|axis| outer[axis].saturating_sub(less[axis]));
    if inner != [batch, bx, by, bz, 3] || outer.iter().chain(&[bx, by, bz]).any(|&n| n == 0 || n >= 1 << 30) {
        return Err(Error::invalid(format!(
            "expected a gradient of shape {:?}, got {inner:?}",
            [batch, bx, by, bz, 3]
        )));
    }
    let mesh = mesh(call, outer)?;
    Ok(Operands { batch, mesh, from, place, to })
}

fn load(call: &Call<'_>, kernel: Kernel) -> Result<()> {
    let Operands { mesh, from, .. } = operands(call, kernel)?;
    let gpu = gpus::gpu(call.device_ordinal()?).map_err(internal)?;
    let compiler = gpus::compiler().map_err(internal)?;
    gpu.module(compiler, &variant(from.dtype(), mesh.is_wide())).map(drop).map_err(internal)
}

fn run(call: &Call<'_>, kernel: Kernel) -> Result<()> {
    let Operands { batch, mesh, from, place, mut to } = operands(call, kernel)?;
    let dtype = from.dtype();
    let bytes = |dims: &[usize]| dims[1..].iter().product::<usize>() * if dtype == Dtype::F64 { 8 } else { 4 };
    let (from_bytes, to_bytes) = (bytes(from.dims()), bytes(to.dims()));
    let (from, to) = (from.as_ptr().cast_mut(), to.as_mut_ptr());
    let places = place.map_or(core::ptr::null_mut(), |place| place.as_ptr().cast_mut());
    (0..batch).try_for_each(|b| {
        let place = if places.is_null() { places } else { places.wrapping_byte_add(4 * b) };
        let memory = [from.wrapping_byte_add(b * from_bytes), to.wrapping_byte_add(b * to_bytes), place];
        // SAFETY: the extents of XLA's buffers are checked above.
        unsafe { launch(kernel, mesh, dtype, call.device_ordinal()?, call.stream()?, memory) }.map_err(internal)
    })
}

fn run_cpu(call: &Call<'_>, kernel: Kernel) -> Result<()> {
    let operands = operands(call, kernel)?;
    match operands.from.dtype() {
        Dtype::F64 => run_as::<f64>(call, kernel, operands),
        _ => run_as::<f32>(call, kernel, operands),
    }
}

fn run_as<T: Real>(call: &Call<'_>, kernel: Kernel, operands: Operands<'_>) -> Result<()> {
    let Operands { batch, mesh, from, place, mut to } = operands;
    let (from, to, pool) = (from.as_slice::<T>()?, to.as_mut_slice::<T>()?, call.pool());
    let sizes = [from.len() / batch.max(1), to.len() / batch.max(1)].map(|size| size.max(1));
    let places = place.as_ref().map(Input::as_slice::<i32>).transpose()?;
    for (b, (from, to)) in from.chunks(sizes[0]).zip(to.chunks_mut(sizes[1])).enumerate() {
        match kernel {
            Kernel::Gradient => cpu::gradient(&mesh, from, to, &pool),
            Kernel::GradientAt => {
                let cells = mesh.outer.iter().map(|&n| n as usize).product();
                let place = places.map_or(0, |places| places[b]);
                let field = usize::try_from(place).ok().and_then(|place| from.chunks(cells).nth(place));
                let field = field.ok_or_else(|| Error::invalid(format!("place: no field {place}")))?;
                cpu::gradient(&mesh, field, to, &pool);
            }
            Kernel::Divergence => cpu::divergence(&mesh, from, to, &pool),
        }
    }
    Ok(())
}
