//! FFI targets that move particles on the CPU: a kick and two drifts, and their reversal with cotangents.

use super::cpu::{KickDrift, Packed, UndoDrift, UndoDriftAndKick, UndoKick};
use super::geometry::Geometry;
use super::handlers::{geometry, split, split_mut};
use super::operands::{Extents, Step};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Input, Output, Parallel, Result};

/// FFI targets of the platform "cpu".
pub const CPU: [(&str, Handler); 4] = [
    ("jaxdecomp_ops_kick_drift", kick_drift_cpu),
    ("jaxdecomp_ops_undo_kick", undo_kick_cpu),
    ("jaxdecomp_ops_undo_drift", undo_drift_cpu),
    ("jaxdecomp_ops_undo_drift_and_kick", undo_drift_and_kick_cpu),
];

xla_ffi::handler!(
    /// Kick and two drifts on the CPU, see [`KickDrift`].
    kick_drift_cpu => |call| run(call, Kind::KickDrift)
);
xla_ffi::handler!(
    /// Reversal of a kick on the CPU, see [`UndoKick`].
    undo_kick_cpu => |call| run(call, Kind::UndoKick)
);
xla_ffi::handler!(
    /// Reversal of drifts on the CPU, see [`UndoDrift`].
    undo_drift_cpu => |call| run(call, Kind::UndoDrift)
);
xla_ffi::handler!(
    /// Reversal of drifts and the kick before them on the CPU, see [`UndoDriftAndKick`].
    undo_drift_and_kick_cpu => |call| run(call, Kind::UndoDriftAndKick)
);

/// One of the four targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    KickDrift,
    UndoKick,
    UndoDrift,
    UndoDriftAndKick,
}

impl Kind {
    /// Number of vectors in the operands, and of values in the summary.
    fn counts(self) -> [usize; 2] {
        match self {
            Self::KickDrift => [2, 1],
            Self::UndoKick => [4, 3],
            Self::UndoDrift => [4, 1],
            Self::UndoDriftAndKick => [4, 4],
        }
    }

    /// Numbers of fields of each mesh.
    fn fields(self) -> &'static [usize] {
        match self {
            Self::KickDrift | Self::UndoKick => &[3],
            Self::UndoDrift => &[1],
            Self::UndoDriftAndKick => &[1, 3],
        }
    }

    /// The operands that the results replace.
    fn replaced(self) -> &'static [usize] {
        match self {
            Self::KickDrift => &[0, 1],
            Self::UndoKick => &[1, 2, 3],
            Self::UndoDrift => &[0, 2, 3],
            Self::UndoDriftAndKick => &[0, 1, 2, 3],
        }
    }
}

fn run(call: &Call<'_>, kind: Kind) -> Result<()> {
    let [vectors, numbers] = kind.counts();
    let run = |step: Step<'_>| match step.particles.disp.dtype() {
        Dtype::F64 => run_as::<f64>(call, kind, step),
        _ => run_as::<f32>(call, kind, step),
    };
    Step::new(call, kind.fields(), [vectors, kind.replaced().len(), numbers, 0])
        .and_then(run)
        .map_err(|error| error.within("a step"))
}

fn run_as<T: Packed>(call: &Call<'_>, kind: Kind, mut step: Step<'_>) -> Result<()> {
    let geometry = geometry::<T>(&step.particles)?;
    let (pool, q, Extents { batch, .. }) = (call.pool(), T::from_f64(step.resolution), step.particles.extents);
    for (result, &operand) in step.results.iter_mut().zip(kind.replaced()) {
        let from = if operand == 0 { &step.particles.disp } else { &step.vectors[operand - 1] };
        copy::<T>(from, result)?;
    }
    let fixed = match kind {
        Kind::KickDrift | Kind::UndoDriftAndKick => &[][..],
        Kind::UndoKick => step.particles.disp.as_slice::<T>()?,
        Kind::UndoDrift => step.vectors[0].as_slice::<T>()?,
    };
    let numbers = step.coefficients.as_slice::<T>()?;
    let meshes = step.meshes.iter().map(|(mesh, _)| mesh.as_slice::<T>()).collect::<Result<Vec<_>>>()?;
    let mut meshes: Vec<_> = meshes.into_iter().map(|values| split(values, batch)).collect();
    let mut moved = step.results.iter_mut().map(Output::as_mut_slice::<T>).collect::<Result<Vec<_>>>()?;
    let mut moved: Vec<_> = moved.iter_mut().map(|values| split_mut(values, batch)).collect();
    let inputs = split(fixed, batch).zip(split(numbers, batch));
    for ((fixed, numbers), summary) in inputs.zip(split_mut(step.summary.as_mut_slice::<T>()?, batch)) {
        let moved: Vec<_> = moved.iter_mut().filter_map(Iterator::next).collect();
        let meshes: Vec<_> = meshes.iter_mut().filter_map(Iterator::next).collect();
        one(kind, &geometry, &meshes, [fixed, numbers], q, moved, summary, &pool);
    }
    Ok(())
}

/// Moves the particles of one element of a batch.
#[allow(clippy::too_many_arguments, reason = "operands and results of four ops")]
fn one<T: Packed>(
    kind: Kind,
    geometry: &Geometry<T>,
    meshes: &[&[T]],
    [fixed, numbers]: [&[T]; 2],
    resolution: T,
    moved: Vec<&mut [T]>,
    summary: &mut [T],
    pool: &dyn Parallel,
) {
    // The second coefficient, 1 / unit of the momenta at the start, is for derivatives only.
    let kick_drift = |[a, _, c, d, e, f]: [T; 6], fields| {
        let (drifts, good) = ([d, e], f != T::ZERO);
        KickDrift { geometry, fields, kick: a, after: c, drifts, good, resolution }
    };
    let undo_kick = |[a, b, c, d, e, f]: [T; 6], fields| UndoKick {
        geometry,
        fields,
        kick: a,
        after: b,
        before: c,
        last: d,
        weight: e,
        good: f != T::ZERO,
    };
    let undo_drift = |[a, b, c, d, e, f]: [T; 6], field| {
        let (drifts, good) = ([d, e], f != T::ZERO);
        UndoDrift { geometry, field, weight: a, scale: b, before: c, drifts, good, resolution }
    };
    let numbers: Vec<[T; 6]> = numbers.chunks(6).filter_map(|six| six.try_into().ok()).collect();
    match (kind, &numbers[..], meshes) {
        (Kind::KickDrift, &[numbers], &[fields]) => {
            if let Ok([disp, vel]) = <[_; 2]>::try_from(moved) {
                summary[0] = kick_drift(numbers, fields).run(disp, vel, pool);
            }
        }
        (Kind::UndoKick, &[numbers], &[fields]) => {
            if let Ok(moved) = <[_; 3]>::try_from(moved) {
                summary.copy_from_slice(&undo_kick(numbers, fields).run(fixed, moved, pool));
            }
        }
        (Kind::UndoDrift, &[numbers], &[field]) => {
            if let Ok(moved) = <[_; 3]>::try_from(moved) {
                summary[0] = undo_drift(numbers, field).run(fixed, moved, pool);
            }
        }
        (Kind::UndoDriftAndKick, &[first, second], &[field, fields]) => {
            let step = UndoDriftAndKick { drift: undo_drift(first, field), kick: undo_kick(second, fields) };
            if let Ok(moved) = <[_; 4]>::try_from(moved) {
                summary.copy_from_slice(&step.run(moved, pool));
            }
        }
        _ => {}
    }
}

/// Copies an operand to a result, unless they share their memory.
fn copy<T: Packed>(from: &Input<'_>, to: &mut Output<'_>) -> Result<()> {
    if from.as_ptr() != to.as_mut_ptr().cast_const() {
        to.as_mut_slice::<T>()?.copy_from_slice(from.as_slice::<T>()?);
    }
    Ok(())
}
