//! FFI target of a kick and two drifts on NVIDIA GPUs.

use super::handlers::with_context;
use super::launch::{KickBuffers, item};
use crate::cic::operands::{Extents, Kick};
use xla_ffi::{Call, Result, Role};

xla_ffi::handler!(
    /// Compiles and loads the kernel.
    initialize => |call| kick(call, load), Role::INITIALIZE
);
xla_ffi::handler!(
    /// Kick and two drifts on a GPU.
    execute => |call| kick(call, run), Role::RECORDABLE
);

fn kick(call: &Call<'_>, stage: fn(&Call<'_>, &mut Kick<'_>) -> Result<()>) -> Result<()> {
    Kick::new(call).and_then(|mut operands| stage(call, &mut operands)).map_err(|error| error.within("kick_drift"))
}

fn load(call: &Call<'_>, operands: &mut Kick<'_>) -> Result<()> {
    with_context(call, &operands.particles, |context| context.load_kick())
}

fn run(call: &Call<'_>, operands: &mut Kick<'_>) -> Result<()> {
    let Extents { batch, sites, cells, .. } = operands.particles.extents;
    let item = item(operands.particles.disp.dtype());
    let (vectors, fields) = (sites.iter().product::<usize>() * 3 * item, cells.iter().product::<usize>() * 3 * item);
    let (new_disp, new_vel) = (operands.new_disp.as_mut_ptr(), operands.new_vel.as_mut_ptr());
    let most = operands.max_displacement.as_mut_ptr();
    with_context(call, &operands.particles, |context| {
        (0..batch).try_for_each(|b| {
            let buffers = KickBuffers {
                disp: operands.particles.disp.as_ptr().wrapping_byte_add(b * vectors),
                vel: operands.vel.as_ptr().wrapping_byte_add(b * vectors),
                fields: operands.fields.as_ptr().wrapping_byte_add(b * fields),
                step: operands.step.as_ptr().wrapping_byte_add(b * 6 * item),
                new_disp: new_disp.wrapping_byte_add(b * vectors),
                new_vel: new_vel.wrapping_byte_add(b * vectors),
                most: most.wrapping_byte_add(b * item),
            };
            // SAFETY: the extents of XLA's buffers are checked above.
            unsafe { context.kick(operands.resolution, buffers) }
        })
    })
}
