//! FFI targets of paint and read.

use super::cpu::{self, Mesh, Packed, Scale, Values};
use super::geometry::Geometry;
use super::masks::VALUE;
use super::operands::{Extents, ForceTranspose, IntegerPaint, Paint, Particles, Read, Reduction};
use crate::stencil;
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Input, Result};

/// FFI targets of the platform "cpu".
pub const CPU: [(&str, Handler); 5] = [
    ("jaxdecomp_ops_cic_paint", cic_paint_cpu),
    ("jaxdecomp_ops_cic_paint_sums", cic_paint_sums_cpu),
    ("jaxdecomp_ops_cic_read", cic_read_cpu),
    ("jaxdecomp_ops_cic_read_sum", cic_read_sum_cpu),
    ("jaxdecomp_ops_force_transpose", force_transpose_cpu),
];

xla_ffi::handler!(
    /// Paint on the CPU, see [`cpu::paint()`].
    cic_paint_cpu => paint
);
xla_ffi::handler!(
    /// Paint on the CPU that returns the integer sums.
    cic_paint_sums_cpu => paint_sums
);
xla_ffi::handler!(
    /// Read on the CPU, see [`cpu::read()`].
    cic_read_cpu => read
);
xla_ffi::handler!(
    /// Weighted sum of reads on the CPU, see [`cpu::Values`].
    cic_read_sum_cpu => read_sum
);
xla_ffi::handler!(
    /// Transpose of reading the gradient of a potential on the CPU; the second result is scratch memory.
    force_transpose_cpu => force_transpose
);

fn paint(call: &Call<'_>) -> Result<()> {
    let run = |operands: Paint<'_>| match operands.particles.disp.dtype() {
        Dtype::F64 => paint_as::<f64>(call, operands),
        _ => paint_as::<f32>(call, operands),
    };
    Paint::new(call, 0).and_then(run).map_err(|error| error.within("cic_paint"))
}

fn paint_sums(call: &Call<'_>) -> Result<()> {
    let run = |operands: IntegerPaint<'_>| match operands.particles.disp.dtype() {
        Dtype::F64 => paint_sums_as::<f64>(call, operands),
        _ => paint_sums_as::<f32>(call, operands),
    };
    IntegerPaint::new(call, 0).and_then(run).map_err(|error| error.within("cic_paint_sums"))
}

fn force_transpose(call: &Call<'_>) -> Result<()> {
    let run = |operands: ForceTranspose<'_>| match operands.particles.disp.dtype() {
        Dtype::F64 => force_transpose_as::<f64>(call, operands),
        _ => force_transpose_as::<f32>(call, operands),
    };
    ForceTranspose::new(call).and_then(run).map_err(|error| error.within("force_transpose"))
}

fn read(call: &Call<'_>) -> Result<()> {
    run_read(call, Read::new(call)).map_err(|error| error.within("cic_read"))
}

fn read_sum(call: &Call<'_>) -> Result<()> {
    run_read(call, Read::reduced(call)).map_err(|error| error.within("cic_read_sum"))
}

fn run_read(call: &Call<'_>, operands: Result<Read<'_>>) -> Result<()> {
    let operands = operands?;
    match operands.particles.disp.dtype() {
        Dtype::F64 => read_as::<f64>(call, operands),
        _ => read_as::<f32>(call, operands),
    }
}

fn paint_as<T: Packed>(call: &Call<'_>, mut operands: Paint<'_>) -> Result<()> {
    let geometry = geometry::<T>(&operands.particles)?;
    expect_32_bits("particles", geometry.particles())?;
    let (Particles { masks, extents: Extents { batch, .. }, disp, .. }, pool) = (&operands.particles, call.pool());
    let elements = split(disp.as_slice::<T>()?, *batch).zip(split(operands.weight.as_slice::<T>()?, *batch));
    let mesh = operands.mesh.as_mut_slice::<T>()?;
    if mesh.is_empty() {
        return Ok(()); // extents of a mesh without fields may be huge
    }
    for ((disp, weight), mesh) in elements.zip(split_mut(mesh, *batch)) {
        cpu::paint(&geometry, masks, disp, weight, mesh, &pool);
    }
    Ok(())
}

fn paint_sums_as<T: Packed>(call: &Call<'_>, mut operands: IntegerPaint<'_>) -> Result<()> {
    let geometry = geometry::<T>(&operands.particles)?;
    expect_32_bits("particles", geometry.particles())?;
    let (Particles { masks, extents: Extents { batch, .. }, disp, .. }, pool) = (&operands.particles, call.pool());
    let (weight, bounds) = (operands.weight.as_slice::<T>()?, operands.bound.as_slice::<T>()?);
    let elements = split(disp.as_slice::<T>()?, *batch).zip(split(weight, *batch)).zip(split(bounds, *batch));
    let bits = operands.bits;
    for (((disp, weight), bounds), sums) in elements.zip(split_mut(operands.sums.as_mut_slice::<T::Whole>()?, *batch)) {
        cpu::paint_scaled(Mesh::Sums(sums), &geometry, masks, disp, weight, Scale { bounds, bits }, &pool);
    }
    Ok(())
}

fn force_transpose_as<T: Packed>(call: &Call<'_>, mut operands: ForceTranspose<'_>) -> Result<()> {
    let geometry = geometry::<T>(&operands.particles)?;
    expect_32_bits("particles", geometry.particles())?;
    let (Particles { extents: Extents { batch, .. }, disp, .. }, pool) = (&operands.particles, call.pool());
    let mesh = stencil::handlers::mesh(call, operands.cells)?;
    let mut painted = call.output(1, "scratch")?;
    painted.expect_dims(&[3 * geometry.volume()])?;
    let painted = painted.as_mut_slice::<T>()?;
    let elements = split(disp.as_slice::<T>()?, *batch).zip(split(operands.weight.as_slice::<T>()?, *batch));
    for ((disp, weight), field) in elements.zip(split_mut(operands.field.as_mut_slice::<T>()?, *batch)) {
        cpu::paint_as(Mesh::Planar(painted), &geometry, &[VALUE], disp, weight, &pool);
        stencil::cpu::divergence_of_planes(&mesh, painted, field, &pool);
    }
    Ok(())
}

fn read_as<T: Packed>(call: &Call<'_>, mut operands: Read<'_>) -> Result<()> {
    let geometry = geometry::<T>(&operands.particles)?;
    let (Particles { masks, extents: Extents { batch, .. }, disp, .. }, pool) = (&operands.particles, call.pool());
    let weight = operands.weight.as_ref().map_or(Ok(&[][..]), Input::as_slice::<T>)?;
    let (fields, out) = (operands.fields.as_slice::<T>()?, operands.out.as_mut_slice::<T>()?);
    if fields.is_empty() {
        out.fill(T::ZERO); // a sum over no fields
        return Ok(());
    }
    let elements = split(disp.as_slice::<T>()?, *batch).zip(split(fields, *batch));
    let elements = elements.zip(split(weight, *batch));
    for (((disp, fields), weight), out) in elements.zip(split_mut(out, *batch)) {
        let values = match operands.reduction {
            Reduction::None => Values::All,
            Reduction::OverMasks => Values::OverMasks(weight),
            Reduction::OverFields => Values::OverFields(weight),
        };
        cpu::read(&geometry, masks, disp, fields, values, out, &pool);
    }
    Ok(())
}

pub(super) fn geometry<T: Packed>(particles: &Particles<'_>) -> Result<Geometry<T>> {
    let Extents { batch, sites, cells, .. } = particles.extents;
    particles.spec.check(sites, cells)?;
    let geometry = Geometry::new(&particles.spec, if batch == 0 { [0; 3] } else { sites }, cells)?;
    expect_32_bits("mesh cells", geometry.volume())?;
    Ok(geometry)
}

/// Fails unless the CPU's 32-bit numbers of particles and cells suffice.
fn expect_32_bits(what: &str, count: usize) -> Result<()> {
    let excess = |_| Error::invalid(format!("expected fewer than 2^32 {what} a device, got {count}; use more devices"));
    u32::try_from(count).map(drop).map_err(excess)
}

/// The elements of a batch.
pub(super) fn split<T>(values: &[T], batch: usize) -> impl Iterator<Item = &[T]> {
    let size = values.len() / batch.max(1);
    (0..batch).map(move |b| &values[b * size..(b + 1) * size])
}

pub(super) fn split_mut<T>(mut values: &mut [T], batch: usize) -> impl Iterator<Item = &mut [T]> {
    let size = values.len() / batch.max(1);
    (0..batch).map(move |_| {
        let (element, rest) = core::mem::take(&mut values).split_at_mut(size);
        values = rest;
        element
    })
}
