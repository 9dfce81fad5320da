//! XLA's calls, unpacked and checked.

use super::{Hall, Job, Party, Planes, Purpose, Slabs, exchange_planes, node, scratch_len, transform};
use crate::cuda;
use std::sync::LazyLock;
use std::time::Duration;
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Input, Output, Result};

/// FFI targets of the platform "CUDA".
pub const CUDA: [(&str, Handler); 3] = [
    ("jaxdecomp_ops_peer_transform", transform_cuda),
    ("jaxdecomp_ops_peer_pad", pad_cuda),
    ("jaxdecomp_ops_peer_swap", swap_cuda),
];

/// The first run of a program may have to wait for plans, or for the compilation of other devices' programs.
static HALL: LazyLock<Hall> = LazyLock::new(|| Hall::new(Duration::from_secs(300)));

xla_ffi::handler!(
    /// A transform over slabs, see [`super::transform`].
    transform_cuda => run_transform
);
xla_ffi::handler!(
    /// Filling halos, see [`super::exchange_planes`].
    pad_cuda => run_pad
);
xla_ffi::handler!(
    /// Exchanging edges, see [`super::exchange_planes`].
    swap_cuda => run_swap
);

fn run_transform(call: &Call<'_>) -> Result<()> {
    call.expect_arity(1, 2)?;
    let (input, mut output, mut scratch) =
        (call.input(0, "block")?, call.output(0, "out")?, call.output(1, "scratch")?);
    let [inverse] = call.integer_array("inverse")?;
    let [sign] = call.integer_array("sign")?;
    let [nz] = call.integer_array("nz")?;
    let [parts] = call.integer_array("parts")?;
    let [along_x] = call.integer_array("along_x")?;
    let (inverse, planes_only) = (inverse != 0, along_x == 0);
    let slabs = slabs(&input, &output, inverse, parts, (nz > 0).then_some(nz))?;
    if planes_only && parts == 1 {
        return Err(Error::invalid("along_x: expected 1 where nothing is exchanged, got 0"));
    }
    let batch = check(&input, &output, &slabs, inverse)?;
    check_scratch(&scratch, &slabs, scratch_len(&slabs, inverse, planes_only))?;
    if batch > 1 && slabs.real.is_some() && slabs.field_block().iter().product::<i64>() % 2 != 0 {
        return Err(Error::invalid("cuFFT does not take a second real mesh of an odd number of values"));
    }
    let (ordinal, party) = party(call, parts)?;
    let job = Job {
        party,
        inverse,
        sign,
        planes_only,
        batch,
        input: input.as_ptr(),
        output: output.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    let mut work = None;
    let memory = |bytes| {
        let memory = call.device_memory(bytes).map_err(|error| cuda::Error(error.message))?;
        Ok(work.insert(memory).as_mut_ptr())
    };
    let outcome = HALL.told(&job.party, node(ordinal)).and_then(|node| {
        // SAFETY: XLA's buffers have the shapes and the types that were checked.
        unsafe { transform(&node, &HALL, &slabs, &job, memory) }
    });
    outcome.map_err(|error| raised("peer_transform", &error))
}

fn run_pad(call: &Call<'_>) -> Result<()> {
    run_planes(call, "peer_pad", Purpose::Pad)
}

fn run_swap(call: &Call<'_>) -> Result<()> {
    run_planes(call, "peer_swap", Purpose::Swap)
}

fn run_planes(call: &Call<'_>, name: &str, purpose: Purpose) -> Result<()> {
    call.expect_arity(1, 1)?;
    let (input, mut output) = (call.input(0, "block")?, call.output(0, "out")?);
    let [halo] = call.integer_array("halo")?;
    let [parts] = call.integer_array("parts")?;
    let [batch, before, ny, nz] = input.expect_rank::<4>("batch, x, y, z")?;
    let bytes = ny * nz * item(input.dtype())?;
    let planes = Planes { batch, count: before, halo: halo as usize, bytes };
    let [expected, after] = planes.extents(purpose);
    output.expect_dims(&[batch, after, ny, nz])?;
    if halo < 1 || planes.halo > before || before != expected || input.dtype() != output.dtype() {
        return Err(Error::invalid(format!("{name}: {before} planes of {} have no edges of {halo}", input.dtype())));
    }
    let (ordinal, party) = party(call, parts)?;
    let (from, to) = (input.as_ptr(), output.as_mut_ptr());
    let outcome = HALL.told(&party, node(ordinal)).and_then(|node| {
        // SAFETY: XLA's buffers have the extents that were checked.
        unsafe { exchange_planes(&node, &HALL, &party, (&planes, purpose), from, to) }
    });
    outcome.map_err(|error| raised(name, &error))
}

/// Bytes of a value.
fn item(dtype: Dtype) -> Result<usize> {
    match dtype {
        Dtype::F32 => Ok(4),
        Dtype::F64 | Dtype::C64 => Ok(8),
        Dtype::C128 => Ok(16),
        other => Err(Error::invalid(format!("block: expected floating-point values, got {other}"))),
    }
}

/// The ordinal of this GPU, and the others with which it exchanges.
fn party(call: &Call<'_>, parts: i64) -> Result<(i32, Party)> {
    let ordinal = call.device_ordinal()?;
    let (row, place) = find(&call.integers("rows")?, parts as usize, ordinal)?;
    Ok((ordinal, Party { run: call.run_id()?, row, place, stream: call.stream()? }))
}

fn raised(name: &str, error: &cuda::Error) -> Error {
    Error::internal(format!("{name}: {error}"))
}

/// The slabs of operand `[B, x, y, z]` and of the result, of which one is divided along x and the other along y.
fn slabs(input: &Input<'_>, output: &Output<'_>, inverse: bool, parts: i64, real: Option<i64>) -> Result<Slabs> {
    let axes = "batch, x, y, z";
    let (before, after) = (input.expect_rank::<4>(axes)?, output.expect_rank::<4>(axes)?);
    let ([_, _, ny, _], [_, nx, _, nk], complex) =
        if inverse { (after, before, input.dtype()) } else { (before, after, output.dtype()) };
    let shape = [nx as i64, ny as i64, nk as i64];
    let double = complex == Dtype::C128;
    Slabs::new(parts, shape, real, double)
        .ok_or_else(|| Error::invalid(format!("{before:?} and {after:?} are not slabs of one mesh over {parts} GPUs")))
}

/// Number of meshes, if operand and result are as they must be.
fn check(input: &Input<'_>, output: &Output<'_>, slabs: &Slabs, inverse: bool) -> Result<usize> {
    let batch = input.dims()[0];
    let dims = |block: [i64; 3]| [batch, block[0] as usize, block[1] as usize, block[2] as usize];
    let (field, spectrum) = (dims(slabs.field_block()), dims(slabs.spectrum_block()));
    let (real, complex) = (slabs.field_dtype(), slabs.complex_dtype());
    let (before, after, types) =
        if inverse { (spectrum, field, (complex, real)) } else { (field, spectrum, (real, complex)) };
    input.expect_dims(&before)?;
    output.expect_dims(&after)?;
    if (input.dtype(), output.dtype()) != types {
        return Err(Error::invalid(format!("expected {types:?}, got {:?}", (input.dtype(), output.dtype()))));
    }
    Ok(batch)
}

fn check_scratch(scratch: &Output<'_>, slabs: &Slabs, needed: i64) -> Result<()> {
    let [len] = scratch.expect_rank::<1>("element")?;
    let (expected, got) = (slabs.complex_dtype(), scratch.dtype());
    if expected != got || (len as i64) < needed {
        return Err(Error::invalid(format!("scratch: expected {needed} of {expected}, got {len} of {got}")));
    }
    Ok(())
}

/// The GPUs with which this one exchanges, and its place among them: one row of those that the program runs on.
fn find(rows: &[i64], parts: usize, ordinal: i32) -> Result<(Vec<i32>, usize)> {
    for row in rows.chunks(parts) {
        if let Some(place) = row.iter().position(|&other| other == i64::from(ordinal)) {
            return Ok((row.iter().map(|&other| other as i32).collect(), place));
        }
    }
    Err(Error::invalid(format!("GPU {ordinal} is not among {rows:?}, for which the program was compiled")))
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_gpu_finds_its_row() {
        assert_eq!(find(&[0, 2, 1, 3], 2, 3), Ok((vec![1, 3], 1)));
        let error = find(&[0, 1], 2, 5).expect_err("it is not there");
        assert!(error.message.contains("GPU 5 is not among [0, 1]"));
    }
}
