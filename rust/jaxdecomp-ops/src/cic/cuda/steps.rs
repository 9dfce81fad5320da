//! FFI targets that move particles: a kick and two drifts, and their reversal with cotangents.

use super::launch::{StepBuffers, StepKernel, item, with_context};
use crate::cic::operands::{Extents, Step};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Error, Input, Output, Result, Role};

/// FFI targets of the platform "CUDA", each with the handlers of the stages "initialize" and "execute".
pub(super) const CUDA: [(&str, [Handler; 2]); 4] = [
    ("jaxdecomp_ops_kick_drift", [initialize_kick_drift, execute_kick_drift]),
    ("jaxdecomp_ops_undo_kick", [initialize_undo_kick, execute_undo_kick]),
    ("jaxdecomp_ops_undo_drift", [initialize_undo_drift, execute_undo_drift]),
    ("jaxdecomp_ops_undo_drift_and_kick", [initialize_undo_drift_and_kick, execute_undo_drift_and_kick]),
];

xla_ffi::handler!(
    /// Compiles and loads the kernel.
    initialize_kick_drift => |call| load(call, StepKernel::KickDrift), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Kick and two drifts on a GPU.
    execute_kick_drift => |call| run(call, StepKernel::KickDrift), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernel.
    initialize_undo_kick => |call| load(call, StepKernel::UndoKick), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Reversal of a kick on a GPU; the last result is scratch memory.
    execute_undo_kick => |call| run(call, StepKernel::UndoKick), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernel.
    initialize_undo_drift => |call| load(call, StepKernel::UndoDrift), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Reversal of drifts on a GPU; the last result is scratch memory.
    execute_undo_drift => |call| run(call, StepKernel::UndoDrift), Role::RECORDABLE
);
xla_ffi::handler!(
    /// Compiles and loads the kernel.
    initialize_undo_drift_and_kick => |call| load(call, StepKernel::UndoDriftAndKick), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Reversal of drifts and the kick before them on a GPU; the last result is scratch memory.
    execute_undo_drift_and_kick => |call| run(call, StepKernel::UndoDriftAndKick), Role::RECORDABLE
);

fn operands<'a>(call: &Call<'a>, kernel: StepKernel) -> Result<Step<'a>> {
    // Vectors, fields of each mesh, resulting vectors.
    let (inputs, fields, results) = match kernel {
        StepKernel::KickDrift => (2, &[3][..], 2),
        StepKernel::UndoKick => (4, &[3][..], 3),
        StepKernel::UndoDrift => (4, &[1][..], 3),
        StepKernel::UndoDriftAndKick => (4, &[1, 3][..], 4),
    };
    let scratch = usize::from(kernel.sums() > 0);
    Step::new(call, fields, [inputs, results, kernel.numbers(), scratch]).map_err(|error| error.within("a step"))
}

fn load(call: &Call<'_>, kernel: StepKernel) -> Result<()> {
    with_context(call, &operands(call, kernel)?.particles, |context| context.load_step(kernel))
}

fn run(call: &Call<'_>, kernel: StepKernel) -> Result<()> {
    let mut step = operands(call, kernel)?;
    let Extents { batch, sites, cells, .. } = step.particles.extents;
    let item = item(step.particles.disp.dtype());
    let vectors = sites.iter().product::<usize>() * 3 * item;
    let field = cells.iter().product::<usize>() * item;
    let scratch = if kernel.sums() > 0 { Some(call.output(step.results.len() + 1, "scratch")?) } else { None };
    let bytes = scratch.as_ref().map_or(0, |scratch| scratch.dims().iter().product::<usize>() * 4);
    let partial = scratch.map_or(core::ptr::null_mut(), |mut scratch| scratch.as_mut_ptr());
    let mut inputs = vec![(step.particles.disp.as_ptr(), vectors)];
    inputs.extend(step.vectors.iter().map(|vector: &Input<'_>| (vector.as_ptr(), vectors)));
    inputs.extend(step.meshes.iter().map(|(mesh, fields)| (mesh.as_ptr(), fields * field)));
    inputs.push((step.coefficients.as_ptr(), 6 * step.meshes.len() * item));
    let results: Vec<_> = step.results.iter_mut().map(Output::as_mut_ptr).collect();
    let summary = step.summary.as_mut_ptr();
    let mut enough = true;
    let outcome = with_context(call, &step.particles, |context| {
        enough = bytes >= context.partial_bytes(kernel);
        (0..if enough { batch } else { 0 }).try_for_each(|b| {
            let buffers = StepBuffers {
                inputs: inputs.iter().map(|(pointer, size)| pointer.wrapping_byte_add(b * size)).collect(),
                results: results.iter().map(|pointer| pointer.wrapping_byte_add(b * vectors)).collect(),
                summary: summary.wrapping_byte_add(b * kernel.numbers() * item),
                partial,
            };
            // SAFETY: the extents of XLA's buffers are checked above.
            unsafe { context.step(kernel, step.resolution, &buffers) }
        })
    });
    if enough { outcome } else { Err(Error::invalid(format!("scratch: {bytes} bytes are too few"))) }
}
