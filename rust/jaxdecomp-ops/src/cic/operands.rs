//! Operands, results and attributes of paint and read, unpacked and checked for every platform.

use super::geometry::Spec;
use super::masks::{Mask, VALUE};
use xla_ffi::{Call, Dtype, Error, Input, Output, Result};

/// Extents of a batch of lattices of particles in blocks of mesh cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    pub(crate) batch: usize,
    pub(crate) sites: [usize; 3],
    pub(crate) cells: [usize; 3],
    /// Number of fields on the mesh.
    pub(crate) fields: usize,
}

/// Operands of both paint and read.
pub(crate) struct Particles<'a> {
    pub(crate) spec: Spec,
    pub(crate) masks: Vec<Mask>,
    pub(crate) extents: Extents,
    pub(crate) disp: Input<'a>,
}

/// The operands of a paint.
pub(crate) struct Paint<'a> {
    pub(crate) particles: Particles<'a>,
    pub(crate) weight: Input<'a>,
    pub(crate) mesh: Output<'a>,
}

/// The operands of a paint of one field that returns its integer sums.
pub(crate) struct IntegerPaint<'a> {
    pub(crate) particles: Particles<'a>,
    pub(crate) weight: Input<'a>,
    /// Upper bound of the weights, for each element of the batch.
    pub(crate) bound: Input<'a>,
    /// Bits of the largest contribution of a mask.
    pub(crate) bits: i32,
    /// Both halves of each sum.
    pub(crate) sums: Output<'a>,
}

/// Values that a read returns for each particle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// One for each mask and field.
    None,
    /// Weighted sums over the masks, one for each field.
    OverMasks,
    /// Weighted sums over the fields, one for each mask.
    OverFields,
}

/// The operands of a step of the particles: vectors of each particle, meshes and coefficients.
pub(crate) struct Step<'a> {
    /// Geometry; its displacements are the first of the vectors.
    pub(crate) particles: Particles<'a>,
    /// Further vectors of each particle.
    pub(crate) vectors: Vec<Input<'a>>,
    /// Meshes, each with its number of fields.
    pub(crate) meshes: Vec<(Input<'a>, usize)>,
    /// Coefficients, six for each mesh.
    pub(crate) coefficients: Input<'a>,
    /// Spacing of the grid of displacements.
    pub(crate) resolution: f64,
    /// Vectors of each particle.
    pub(crate) results: Vec<Output<'a>>,
    /// Summary: a few values for all particles.
    pub(crate) summary: Output<'a>,
}

/// The operands of the transpose of reading a force.
pub(crate) struct ForceTranspose<'a> {
    /// Geometry, with the mesh of the force.
    pub(crate) particles: Particles<'a>,
    /// A vector of each particle.
    pub(crate) weight: Input<'a>,
    /// Extents of the potential.
    pub(crate) cells: [usize; 3],
    pub(crate) field: Output<'a>,
}

/// The operands of a read.
pub(crate) struct Read<'a> {
    pub(crate) particles: Particles<'a>,
    pub(crate) fields: Input<'a>,
    pub(crate) reduction: Reduction,
    /// Present if there is a reduction.
    pub(crate) weight: Option<Input<'a>>,
    pub(crate) out: Output<'a>,
}

impl<'a> Particles<'a> {
    fn new(call: &Call<'a>, name: &str, mesh: [usize; 5]) -> Result<Self> {
        let disp = call.input(0, "disp")?.with_rank(5);
        if ![Dtype::F32, Dtype::F64].contains(&disp.dtype()) {
            return Err(Error::invalid(format!("disp: expected f32 or f64, got {}", disp.dtype())));
        }
        let [batch, px, py, pz, components] = disp.expect_rank("batch, x, y, z, component")?;
        if components != 3 {
            return Err(Error::invalid(format!("disp: expected 3 components on the last axis, got {components}")));
        }
        let [mesh_batch, mx, my, mz, fields] = mesh;
        if mesh_batch != batch {
            return Err(Error::invalid(format!("{name}: expected a batch of {batch}, got {mesh_batch}")));
        }
        let extents = Extents { batch, sites: [px, py, pz], cells: [mx, my, mz], fields };
        Ok(Self { spec: spec(call)?, masks: masks(call)?, extents, disp })
    }

    /// The second operand: one weight for each mask and field, of each particle or of all.
    fn weight(&self, call: &Call<'a>) -> Result<Input<'a>> {
        let (weight, Extents { batch, sites, fields, .. }) = (call.input(1, "weight")?, self.extents);
        let [wx, wy, wz] = if is_shared(&weight) { [1, 1, 1] } else { sites };
        weight.expect_dims(&[batch, wx, wy, wz, self.masks.len(), fields])?;
        self.expect_dtype("weight", weight.dtype())?;
        Ok(weight)
    }

    /// Fails unless an array has the precision of the displacements.
    fn expect_dtype(&self, name: &str, got: Dtype) -> Result<()> {
        let expected = self.disp.dtype();
        let mismatch = || Error::invalid(format!("{name}: expected {expected}, got {got}"));
        (got == expected).then_some(()).ok_or_else(mismatch)
    }
}

impl<'a> Paint<'a> {
    /// Unpacks a paint with further `scratch` results.
    pub(crate) fn new(call: &Call<'a>, scratch: usize) -> Result<Self> {
        call.expect_arity(2, 1 + scratch)?;
        let mesh = call.output(0, "mesh")?;
        let particles = Particles::new(call, "mesh", mesh.expect_rank("batch, x, y, z, field")?)?;
        particles.expect_dtype("mesh", mesh.dtype())?;
        Ok(Self { weight: particles.weight(call)?, particles, mesh })
    }

    /// Whether all particles have the same weight.
    pub(crate) fn shared(&self) -> bool {
        is_shared(&self.weight)
    }
}

impl<'a> IntegerPaint<'a> {
    /// Unpacks a paint with further `scratch` results.
    pub(crate) fn new(call: &Call<'a>, scratch: usize) -> Result<Self> {
        call.expect_arity(3, 1 + scratch)?;
        let (bound, sums) = (call.input(2, "bound")?, call.output(0, "sums")?);
        let [batch, mx, my, mz, _] = sums.expect_rank("batch, x, y, z, half")?;
        let particles = Particles::new(call, "sums", [batch, mx, my, mz, 1])?;
        let (weight, [bits]) = (particles.weight(call)?, call.integer_array("bits")?);
        bound.expect_dims(&[batch])?;
        particles.expect_dtype("bound", bound.dtype())?;
        sums.expect_dims(&[batch, mx, my, mz, 2])?;
        let half = if particles.disp.dtype() == Dtype::F64 { Dtype::S64 } else { Dtype::S32 };
        if sums.dtype() != half {
            return Err(Error::invalid(format!("sums: expected {half}, got {}", sums.dtype())));
        }
        // A contribution is rounded as an f64, or to an i64.
        let most = if half == Dtype::S64 { 61 } else { 50 };
        match i32::try_from(bits) {
            Ok(bits) if (1..=most).contains(&bits) => Ok(Self { particles, weight, bound, bits, sums }),
            _ => Err(Error::invalid(format!("attribute 'bits': expected 1 to {most}, got {bits}"))),
        }
    }

    /// Whether all particles have the same weight.
    pub(crate) fn shared(&self) -> bool {
        is_shared(&self.weight)
    }
}

impl<'a> Step<'a> {
    /// Unpacks `inputs` vectors, meshes of so many `fields` each, six coefficients for each of them, `results` vectors, a
    /// summary of some numbers and further `scratch` results. The batch axis of a single element may be left out.
    pub(crate) fn new(
        call: &Call<'a>,
        fields: &[usize],
        [inputs, results, numbers, scratch]: [usize; 4],
    ) -> Result<Self> {
        call.expect_arity(inputs + fields.len() + 1, results + 1 + scratch)?;
        let meshes = (inputs..).zip(fields).map(|(i, &count)| Ok((call.input(i, "fields")?.with_rank(5), count)));
        let meshes = meshes.collect::<Result<Vec<_>>>()?;
        let Some((last, _)) = meshes.last() else { return Err(Error::internal("a step without a mesh")) };
        let particles = Particles::new(call, "fields", last.expect_rank("batch, x, y, z, field")?)?;
        let batch = particles.extents.batch;
        for (mesh, count) in &meshes {
            let [mx, my, mz] = particles.extents.cells;
            mesh.expect_dims(&[batch, mx, my, mz, *count])?;
        }
        if particles.masks[..] != [VALUE] {
            return Err(Error::invalid(format!("attribute 'masks': expected one value, got {:?}", particles.masks)));
        }
        let coefficients = call.input(inputs + fields.len(), "coefficients")?.with_rank(2);
        coefficients.expect_dims(&[batch, 6 * fields.len()])?;
        let vector = |input: Input<'a>| input.with_rank(5);
        let vectors = (1..inputs).map(|i| call.input(i, "vector").map(vector)).collect::<Result<Vec<_>>>()?;
        let result = |output: Output<'a>| output.with_rank(5);
        let results = (0..results).map(|i| call.output(i, "result").map(result)).collect::<Result<Vec<_>>>()?;
        let summary = call.output(results.len(), "summary")?.with_rank(2);
        summary.expect_dims(&[batch, numbers])?;
        let shapes = vectors.iter().map(|v| (v.dims(), v.dtype())).chain(results.iter().map(|v| (v.dims(), v.dtype())));
        for (dims, dtype) in shapes {
            particles.expect_dtype("vector", dtype)?;
            if dims != particles.disp.dims() {
                return Err(Error::invalid(format!("vector: expected {:?}, got {dims:?}", particles.disp.dims())));
            }
        }
        let others = [("coefficients", coefficients.dtype()), ("summary", summary.dtype())];
        let dtypes = meshes.iter().map(|(mesh, _)| ("fields", mesh.dtype())).chain(others);
        dtypes.into_iter().try_for_each(|(name, dtype)| particles.expect_dtype(name, dtype))?;
        let [resolution] = call.float_array("resolution")?;
        Ok(Self { particles, vectors, meshes, coefficients, resolution, results, summary })
    }
}

impl<'a> ForceTranspose<'a> {
    /// Unpacks the operands; a second result is scratch memory.
    pub(crate) fn new(call: &Call<'a>) -> Result<Self> {
        call.expect_arity(2, 2)?;
        let (weight, field) = (call.input(1, "weight")?, call.output(0, "field")?);
        let [batch, x, y, z] = field.expect_rank("batch, x, y, z")?;
        let (cells, periodic) = ([x, y, z], call.integer_array::<3>("periodic")?);
        let less = |axis: usize| if periodic[axis] == 0 { 4 } else { 0 };
        let [mx, my, mz] = core::array::from_fn(|axis| cells[axis].saturating_sub(less(axis)));
        let particles = Particles::new(call, "field", [batch, mx, my, mz, 1])?;
        if particles.masks[..] != [VALUE] {
            return Err(Error::invalid(format!("attribute 'masks': expected one value, got {:?}", particles.masks)));
        }
        if weight.dims() != particles.disp.dims() || cells.iter().any(|&n| n >= 1 << 30) {
            return Err(Error::invalid(format!(
                "weight: expected {:?}, got {:?}",
                particles.disp.dims(),
                weight.dims()
            )));
        }
        particles.expect_dtype("weight", weight.dtype())?;
        particles.expect_dtype("field", field.dtype())?;
        Ok(Self { particles, weight, cells, field })
    }
}

impl<'a> Read<'a> {
    pub(crate) fn new(call: &Call<'a>) -> Result<Self> {
        call.expect_arity(2, 1)?;
        let read = Self::unreduced(call)?;
        let Extents { batch, sites: [px, py, pz], fields, .. } = read.particles.extents;
        read.out.expect_dims(&[batch, px, py, pz, read.particles.masks.len(), fields])?;
        Ok(read)
    }

    pub(crate) fn reduced(call: &Call<'a>) -> Result<Self> {
        call.expect_arity(3, 1)?;
        let (read, weight) = (Self::unreduced(call)?, call.input(2, "weight")?);
        let (Extents { batch, sites: [px, py, pz], fields, .. }, masks) =
            (read.particles.extents, read.particles.masks.len());
        let (reduction, summed, kept) = match call.integers("over_masks")?[..] {
            [0] => (Reduction::OverFields, [1, fields], [masks, 1]),
            [1] => (Reduction::OverMasks, [masks, 1], [1, fields]),
            ref other => return Err(Error::invalid(format!("attribute 'over_masks': expected 0 or 1, got {other:?}"))),
        };
        weight.expect_dims(&[batch, px, py, pz, summed[0], summed[1]])?;
        read.out.expect_dims(&[batch, px, py, pz, kept[0], kept[1]])?;
        read.particles.expect_dtype("weight", weight.dtype())?;
        Ok(Self { reduction, weight: Some(weight), ..read })
    }

    fn unreduced(call: &Call<'a>) -> Result<Self> {
        let (fields, out) = (call.input(1, "fields")?, call.output(0, "out")?);
        let particles = Particles::new(call, "fields", fields.expect_rank("batch, x, y, z, field")?)?;
        particles.expect_dtype("fields", fields.dtype())?;
        particles.expect_dtype("out", out.dtype())?;
        Ok(Self { particles, fields, reduction: Reduction::None, weight: None, out })
    }
}

fn is_shared(weight: &Input<'_>) -> bool {
    weight.dims().get(1..4) == Some(&[1, 1, 1])
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
