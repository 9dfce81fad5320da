//! XLA's calls, unpacked and checked.

use crate::cpu::{self, Geometry, Mask, Real, Spec, Values};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Input, Output, Result};

/// FFI targets of the platform "cpu".
pub const CPU: [(&str, Handler); 3] = [
    ("jaxdecomp_ops_cic_paint", cic_paint_cpu),
    ("jaxdecomp_ops_cic_read", cic_read_cpu),
    ("jaxdecomp_ops_cic_read_sum", cic_read_sum_cpu),
];

xla_ffi::handler!(
    /// Paint on the CPU, see [`cpu::paint()`].
    cic_paint_cpu => paint
);
xla_ffi::handler!(
    /// Read on the CPU, see [`cpu::read()`].
    cic_read_cpu => read
);
xla_ffi::handler!(
    /// Weighted sum of reads on the CPU, see [`cpu::Values`].
    cic_read_sum_cpu => read_sum
);

fn paint(call: &Call<'_>) -> Result<()> {
    by_dtype(call, 2, paint_as::<f32>, paint_as::<f64>).map_err(|error| error.within("cic_paint"))
}

fn read(call: &Call<'_>) -> Result<()> {
    by_dtype(call, 2, read_as::<f32>, read_as::<f64>).map_err(|error| error.within("cic_read"))
}

fn read_sum(call: &Call<'_>) -> Result<()> {
    by_dtype(call, 3, read_sum_as::<f32>, read_sum_as::<f64>).map_err(|error| error.within("cic_read_sum"))
}

/// The displacements' precision is that of the op.
fn by_dtype(
    call: &Call<'_>,
    inputs: usize,
    single: fn(&Call<'_>, &Input<'_>) -> Result<()>,
    double: fn(&Call<'_>, &Input<'_>) -> Result<()>,
) -> Result<()> {
    call.expect_arity(inputs, 1)?;
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
    let [mesh_batch, mx, my, mz, fields] = mesh.expect_rank("batch, x, y, z, field")?;
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
    let mut reading = Reading::<T>::new(call, disp)?;
    let (batch, sites) = lattice(disp)?;
    reading.out.expect_dims(&[batch, sites[0], sites[1], sites[2], reading.masks.len(), reading.count])?;
    reading.run(call, disp, |_| Values::All)
}

fn read_sum_as<T: Real>(call: &Call<'_>, disp: &Input<'_>) -> Result<()> {
    let mut reading = Reading::<T>::new(call, disp)?;
    let (batch, [px, py, pz]) = lattice(disp)?;
    let (masks, count) = (reading.masks.len(), reading.count);
    let over_masks = match call.integers("over_masks")?[..] {
        [0] => false,
        [1] => true,
        ref other => return Err(Error::invalid(format!("attribute 'over_masks': expected 0 or 1, got {other:?}"))),
    };
    let (summed, kept) = if over_masks { ([masks, 1], [1, count]) } else { ([1, count], [masks, 1]) };
    let weight = call.input(2, "weight")?;
    weight.expect_dims(&[batch, px, py, pz, summed[0], summed[1]])?;
    reading.out.expect_dims(&[batch, px, py, pz, kept[0], kept[1]])?;
    let weight = weight.as_slice::<T>()?;
    let size = weight.len() / batch.max(1);
    reading.run(call, disp, |b| {
        let own = &weight[b * size..(b + 1) * size];
        if over_masks { Values::OverMasks(own) } else { Values::OverFields(own) }
    })
}

/// What all reads have in common.
struct Reading<'a, T> {
    masks: Vec<Mask>,
    fields: Input<'a>,
    /// Number of fields.
    count: usize,
    out: Output<'a>,
    geometry: Geometry<T>,
}

impl<'a, T: Real> Reading<'a, T> {
    fn new(call: &Call<'a>, disp: &Input<'_>) -> Result<Self> {
        let fields = call.input(1, "fields")?;
        let (batch, sites) = lattice(disp)?;
        let [fields_batch, mx, my, mz, count] = fields.expect_rank("batch, x, y, z, field")?;
        expect_batch("fields", fields_batch, batch)?;
        let geometry = Geometry::new(&spec(call)?, sites, [mx, my, mz])?;
        expect_32_bits("mesh cells", geometry.volume())?;
        Ok(Self { masks: masks(call)?, fields, count, out: call.output(0, "out")?, geometry })
    }

    fn run<'w>(&mut self, call: &Call<'_>, disp: &Input<'_>, values: impl Fn(usize) -> Values<'w, T>) -> Result<()>
    where
        T: 'w,
    {
        let (batch, _) = lattice(disp)?;
        let (disp, fields, pool) = (disp.as_slice::<T>()?, self.fields.as_slice::<T>()?, call.pool());
        let parts = split(disp, batch).zip(split(fields, batch));
        for (b, ((disp, fields), out)) in parts.zip(split_mut(self.out.as_mut_slice::<T>()?, batch)).enumerate() {
            cpu::read(&self.geometry, &self.masks, disp, fields, values(b), out, &pool);
        }
        Ok(())
    }
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
    (0..batch).map(move |_| {
        let (part, rest) = core::mem::take(&mut values).split_at_mut(size);
        values = rest;
        part
    })
}
