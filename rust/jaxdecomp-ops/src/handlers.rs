//! XLA's calls, unpacked and checked.

use crate::cpu::{self, Geometry, Mask, Real, Spec};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Input, Result};

/// FFI targets of the platform "cpu".
pub const CPU: [(&str, Handler); 2] =
    [("jaxdecomp_ops_cic_paint", cic_paint_cpu), ("jaxdecomp_ops_cic_read", cic_read_cpu)];

xla_ffi::handler!(
    /// Paint on the CPU, see [`cpu::paint()`].
    cic_paint_cpu => paint
);
xla_ffi::handler!(
    /// Read on the CPU, see [`cpu::read()`].
    cic_read_cpu => read
);

fn paint(call: &Call<'_>) -> Result<()> {
    by_dtype(call, paint_as::<f32>, paint_as::<f64>).map_err(|error| error.within("cic_paint"))
}

fn read(call: &Call<'_>) -> Result<()> {
    by_dtype(call, read_as::<f32>, read_as::<f64>).map_err(|error| error.within("cic_read"))
}

/// The displacements' precision is that of the op.
fn by_dtype(
    call: &Call<'_>,
    single: fn(&Call<'_>, &Input<'_>) -> Result<()>,
    double: fn(&Call<'_>, &Input<'_>) -> Result<()>,
) -> Result<()> {
    call.expect_arity(2, 1)?;
    let disp = call.input(0, "disp")?;
    match disp.dtype() {
        Dtype::F32 => single(call, &disp),
        Dtype::F64 => double(call, &disp),
        other => Err(Error::invalid(format!("disp: expected {} or {}, got {other}", Dtype::F32, Dtype::F64))),
    }
}

fn paint_as<T: Real>(call: &Call<'_>, disp: &Input<'_>) -> Result<()> {
    let weight = call.input(1, "weight")?;
    let mut mesh = call.output(0, "mesh")?;
    let masks = masks(call)?;
    let (batch, sites) = lattice(disp)?;
    let [mesh_batch, fields, mx, my, mz] = mesh.expect_rank("batch, field, x, y, z")?;
    expect_batch("mesh", mesh_batch, batch)?;
    let shared = weight.dims().get(1..4) == Some(&[1, 1, 1]);
    let [wx, wy, wz] = if shared { [1, 1, 1] } else { sites };
    weight.expect_dims(&[batch, wx, wy, wz, masks.len(), fields])?;
    let geometry = Geometry::<T>::new(&spec(call)?, sites, [mx, my, mz])?;
    expect_32_bits("particles", geometry.particles())?;
    expect_32_bits("mesh cells", geometry.volume())?;

    let (disp, weight, pool) = (disp.as_slice::<T>()?, weight.as_slice::<T>()?, call.pool());
    let parts = split(disp, batch).zip(split(weight, batch));
    for ((disp, weight), mesh) in parts.zip(split_mut(mesh.as_mut_slice::<T>()?, batch)) {
        cpu::paint(&geometry, &masks, disp, weight, mesh, &pool);
    }
    Ok(())
}

fn read_as<T: Real>(call: &Call<'_>, disp: &Input<'_>) -> Result<()> {
    let fields = call.input(1, "fields")?;
    let mut out = call.output(0, "out")?;
    let masks = masks(call)?;
    let (batch, sites) = lattice(disp)?;
    let [fields_batch, count, mx, my, mz] = fields.expect_rank("batch, field, x, y, z")?;
    expect_batch("fields", fields_batch, batch)?;
    out.expect_dims(&[batch, sites[0], sites[1], sites[2], masks.len(), count])?;
    let geometry = Geometry::<T>::new(&spec(call)?, sites, [mx, my, mz])?;
    expect_32_bits("mesh cells", geometry.volume())?;

    let (disp, fields, pool) = (disp.as_slice::<T>()?, fields.as_slice::<T>()?, call.pool());
    let parts = split(disp, batch).zip(split(fields, batch));
    for ((disp, fields), out) in parts.zip(split_mut(out.as_mut_slice::<T>()?, batch)) {
        cpu::read(&geometry, &masks, disp, fields, out, &pool);
    }
    Ok(())
}

/// Batch and lattice of the displacements.
fn lattice(disp: &Input<'_>) -> Result<(usize, [usize; 3])> {
    let [batch, px, py, pz, components] = disp.expect_rank("batch, x, y, z, component")?;
    if components != 3 {
        return Err(Error::invalid(format!("disp: expected 3 components on the last axis, got {components}")));
    }
    Ok((batch, [px, py, pz]))
}

fn expect_batch(name: &str, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("{name}: expected a batch of {expected}, got {got}")))
}

/// Numbers of particles and cells are 32-bit in the core.
fn expect_32_bits(what: &str, count: usize) -> Result<()> {
    if u32::try_from(count).is_ok() {
        return Ok(());
    }
    Err(Error::invalid(format!("expected fewer than 2^32 {what} a device, got {count}: use more devices")))
}

fn spec(call: &Call<'_>) -> Result<Spec> {
    let periodic = call.integer_array("periodic")?;
    if periodic.iter().any(|&p| p != 0 && p != 1) {
        return Err(Error::invalid(format!("attribute 'periodic': expected 0 or 1, got {periodic:?}")));
    }
    Ok(Spec {
        spacing_num: call.integer_array("spacing_num")?,
        spacing_den: call.integer_array("spacing_den")?,
        origin: call.integer_array("origin")?,
        periodic: periodic.map(|p| p == 1),
        scale: call.float_array("scale")?,
    })
}

fn masks(call: &Call<'_>) -> Result<Vec<Mask>> {
    let numbers = call.integers("masks")?;
    if numbers.is_empty() || numbers.len() % 3 != 0 || numbers.iter().any(|&n| n != 0 && n != 1) {
        return Err(Error::invalid(format!("attribute 'masks': expected triples of 0 and 1, got {numbers:?}")));
    }
    Ok(numbers.chunks_exact(3).map(|mask| [mask[0] == 1, mask[1] == 1, mask[2] == 1]).collect())
}

/// The elements of the batch.
fn split<T>(values: &[T], batch: usize) -> impl Iterator<Item = &[T]> {
    let size = values.len() / batch.max(1);
    (0..batch).map(move |b| &values[b * size..(b + 1) * size])
}

fn split_mut<T>(mut values: &mut [T], batch: usize) -> impl Iterator<Item = &mut [T]> {
    let size = values.len() / batch.max(1);
    (0..batch).map(move |_| values.split_off_mut(..size).expect("`batch` parts of this size"))
}
