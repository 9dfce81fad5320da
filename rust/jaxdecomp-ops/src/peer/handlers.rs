//! FFI targets of transforms and halos between the GPUs of one host.

use super::filter::{self, Lines, Memory};
use super::{Job, Participant, Planes, Purpose, Rendezvous, Slabs};
use super::{exchange_planes, link, node, process, scratch_len, transform};
use crate::cuda::{self, gpus};
use std::sync::LazyLock;
use std::time::Duration;
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Dtype, Error, Input, Output, Result, Role};

/// FFI targets of the platform "CUDA".
pub const CUDA: [(&str, Handler); 3] = [
    ("jaxdecomp_ops_peer_transform", transform_cuda),
    ("jaxdecomp_ops_peer_pad", pad_cuda),
    ("jaxdecomp_ops_peer_swap", swap_cuda),
];

/// FFI targets of the platform "CUDA" with kernels, each with the handlers of the stages "initialize" and "execute".
pub const KERNELS: [(&str, [Handler; 2]); 1] =
    [("jaxdecomp_ops_peer_filtered", [initialize_filtered, execute_filtered])];

/// The long timeout covers plans and the compilation of other devices' programs in the first run.
static RENDEZVOUS: LazyLock<Rendezvous> = LazyLock::new(|| Rendezvous::new(Duration::from_secs(300)));

xla_ffi::handler!(
    /// Transform of slabs, see [`super::transform`].
    transform_cuda => run_transform
);
xla_ffi::handler!(
    /// Filling of halos, see [`super::exchange_planes`].
    pad_cuda => run_pad
);
xla_ffi::handler!(
    /// Swap of halos, see [`super::exchange_planes`].
    swap_cuda => run_swap
);

xla_ffi::handler!(
    /// Compiles and loads the kernel.
    initialize_filtered => load_filtered, Role::INITIALIZE
);
xla_ffi::handler!(
    /// A real mesh filtered, see [`super::filter`]; the second result is scratch memory.
    execute_filtered => run_filtered
);

fn run_transform(call: &Call<'_>) -> Result<()> {
    call.expect_arity(1, 2)?;
    let (input, mut output, mut scratch) =
        (call.input(0, "block")?, call.output(0, "out")?, call.output(1, "scratch")?);
    let [inverse] = call.integer_array("inverse")?;
    let [sign] = call.integer_array("sign")?;
    let [nz] = call.integer_array("nz")?;
    let [num_shards] = call.integer_array("parts")?;
    let [along_x] = call.integer_array("along_x")?;
    let (inverse, planes_only) = (inverse != 0, along_x == 0);
    let slabs = slabs(&input, &output, inverse, num_shards, (nz > 0).then_some(nz))?;
    if planes_only && num_shards == 1 {
        return Err(Error::invalid("along_x: expected 1 on a single GPU, got 0"));
    }
    let batch = check(&input, &output, &slabs, inverse)?;
    check_scratch(&scratch, &slabs, scratch_len(&slabs, inverse, planes_only))?;
    if batch > 1 && slabs.real.is_some() && slabs.field_block().iter().product::<i64>() % 2 != 0 {
        return Err(Error::invalid("expected a batch of 1 for a real mesh of an odd number of values"));
    }
    let (ordinal, participant) = participant(call, num_shards)?;
    let job = Job {
        participant,
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
    let outcome = RENDEZVOUS.abort_on_error(&job.participant, node(ordinal)).and_then(|node| {
        // SAFETY: the shapes and types of XLA's buffers are checked above.
        unsafe { transform(&node, &RENDEZVOUS, &slabs, &job, memory) }
    });
    outcome.map_err(|error| internal("peer_transform", &error))
}

/// Operands of a filter: a mesh, the filter of frequencies that are not negative, and roots of unity.
struct Filtered<'a> {
    slabs: Slabs,
    lines: Lines,
    batch: usize,
    inputs: [Input<'a>; 3],
    result: Output<'a>,
    spectrum: Output<'a>,
}

impl<'a> Filtered<'a> {
    fn new(call: &Call<'a>) -> Result<Self> {
        call.expect_arity(3, 2)?;
        let inputs = [call.input(0, "mesh")?, call.input(1, "filter")?, call.input(2, "roots")?];
        let (result, spectrum) = (call.output(0, "result")?, call.output(1, "spectrum")?);
        let [num_shards] = call.integer_array("parts")?;
        let [batch, planes, ny, nz] = inputs[0].expect_rank::<4>("batch, x, y, z")?;
        let (real, double, nx) = (inputs[0].dtype(), inputs[0].dtype() == Dtype::F64, planes * num_shards as usize);
        let shape = [nx as i64, ny as i64, nz as i64 / 2 + 1];
        let invalid = || Error::invalid(format!("peer_filtered: no kernel for {:?} of {real}", inputs[0].dims()));
        let slabs = Slabs::new(num_shards, shape, Some(nz as i64), double).ok_or_else(invalid)?;
        let lines = Lines::new(nx, double, num_shards).ok_or_else(invalid)?;
        if real != slabs.field_dtype() || (batch > 1 && planes * ny * nz % 2 != 0) {
            return Err(invalid());
        }
        let rows = if num_shards == 1 { ny / 2 + 1 } else { ny / num_shards as usize };
        let expected = [
            (inputs[1].dtype(), inputs[1].dims(), real, &[batch, nx / 2 + 1, rows, nz / 2 + 1][..]),
            (inputs[2].dtype(), inputs[2].dims(), slabs.complex_dtype(), &[batch, nx][..]),
            (result.dtype(), result.dims(), real, inputs[0].dims()),
        ];
        for (dtype, dims, expected_dtype, expected_dims) in expected {
            if (dtype, dims) != (expected_dtype, expected_dims) {
                let text =
                    format!("peer_filtered: expected {expected_dims:?} of {expected_dtype}, got {dims:?} of {dtype}");
                return Err(Error::invalid(text));
            }
        }
        // Between processes the spectrum is in mailboxes.
        let spectra = if call.integers("processes").is_ok() { 0 } else { num_shards.min(2) };
        check_scratch(&spectrum, &slabs, spectra * slabs.values())?;
        Ok(Self { slabs, lines, batch, inputs, result, spectrum })
    }
}

fn load_filtered(call: &Call<'_>) -> Result<()> {
    let filtered = Filtered::new(call)?;
    let ordinal = call.device_ordinal()?;
    let load = || gpus::gpu(ordinal)?.module(gpus::compiler()?, &filtered.lines.variant).map(drop);
    load().map_err(|error| internal("peer_filtered", &error))
}

fn run_filtered(call: &Call<'_>) -> Result<()> {
    let Filtered { slabs, lines, batch, inputs, mut result, mut spectrum } = Filtered::new(call)?;
    let (ordinal, participant) = participant(call, slabs.num_shards)?;
    let failed = |error| internal("peer_filtered", &error);
    let node = RENDEZVOUS.abort_on_error(&participant, node(ordinal)).map_err(failed)?;
    let mut work = None;
    let mut allocate = |bytes| {
        // One for both transforms, which are in the order of the stream.
        if work.as_ref().is_none_or(|(size, _)| *size < bytes) {
            work = None;
            work = Some((bytes, call.device_memory(bytes).map_err(|error| cuda::Error(error.message))?));
        }
        Ok(work.as_mut().map_or(core::ptr::null_mut(), |(_, memory)| memory.as_mut_ptr()))
    };
    let each = inputs.each_ref().map(|input| {
        let count: usize = input.dims()[1..].iter().product();
        (input.as_ptr(), count * slabs.field_item() * if input.dtype() == slabs.complex_dtype() { 2 } else { 1 })
    });
    let (to, scratch) = (result.as_mut_ptr(), spectrum.as_mut_ptr());
    let one = |b: usize| {
        let [mesh, own @ ..] = each.map(|(pointer, bytes)| pointer.wrapping_byte_add(b * bytes));
        let memory = Memory { mesh, result: to.wrapping_byte_add(b * each[0].1), spectrum: scratch };
        // SAFETY: the extents of XLA's buffers are checked.
        let kernel = |words: &[u64]| unsafe { lines.launch(ordinal, participant.stream, &slabs, words, own) };
        // SAFETY: as above.
        unsafe { filter::filtered(&node, &RENDEZVOUS, &participant, &slabs, memory, &mut allocate, kernel) }
    };
    (0..batch).try_for_each(one).map_err(failed)
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
    let [num_shards] = call.integer_array("parts")?;
    let [batch, before, ny, nz] = input.expect_rank::<4>("batch, x, y, z")?;
    let bytes = ny * nz * item(input.dtype())?;
    let halo = halo.max(0) as usize;
    let [least, count] = match purpose {
        Purpose::Pad => [halo, before],
        Purpose::Swap => [2 * halo, before.saturating_sub(2 * halo)],
    };
    let planes = Planes { batch, count, halo, bytes };
    output.expect_dims(&[batch, planes.extents(purpose)[1], ny, nz])?;
    if halo < 1 || before < least || input.dtype() != output.dtype() {
        return Err(Error::invalid(format!("{name}: invalid halo of {halo} for {before} planes of {}", input.dtype())));
    }
    let (ordinal, participant) = participant(call, num_shards)?;
    let (from, to) = (input.as_ptr(), output.as_mut_ptr());
    let outcome = RENDEZVOUS.abort_on_error(&participant, node(ordinal)).and_then(|node| {
        // SAFETY: the extents of XLA's buffers are checked above.
        unsafe { exchange_planes(&node, &RENDEZVOUS, &participant, (&planes, purpose), from, to) }
    });
    outcome.map_err(|error| internal(name, &error))
}

/// Size of a value [bytes].
fn item(dtype: Dtype) -> Result<usize> {
    match dtype {
        Dtype::F32 | Dtype::S32 => Ok(4),
        Dtype::F64 | Dtype::C64 | Dtype::S64 => Ok(8),
        Dtype::C128 => Ok(16),
        other => Err(Error::invalid(format!("block: expected values of 32, 64 or 128 bits, got {other}"))),
    }
}

/// Ordinal of this GPU and its role in the exchange.
fn participant(call: &Call<'_>, num_shards: i64) -> Result<(i32, Participant)> {
    let ordinal = call.device_ordinal()?;
    if num_shards == 1 {
        return Ok((ordinal, alone(call, ordinal)?));
    }
    let failed = |error| internal("peer", &error);
    let (group, rank, link) = if let Ok(processes) = call.integers("processes") {
        let (group, rank) = find(&processes, num_shards as usize, process().map_err(failed)?)?;
        let link = link(&group, ordinal).map_err(failed)?;
        (group, rank, Some(link))
    } else {
        let (group, rank) = find(&call.integers("rows")?, num_shards as usize, ordinal)?;
        (group, rank, None)
    };
    Ok((ordinal, Participant { run_id: call.run_id()?, group, rank, stream: call.stream()?, link }))
}

/// A GPU that exchanges nothing.
fn alone(call: &Call<'_>, ordinal: i32) -> Result<Participant> {
    Ok(Participant { run_id: call.run_id()?, group: vec![ordinal], rank: 0, stream: call.stream()?, link: None })
}

fn internal(name: &str, error: &cuda::Error) -> Error {
    Error::internal(format!("{name}: {error}"))
}

/// Slabs of operand `[B, x, y, z]` and result, one divided along x and the other along y.
fn slabs(input: &Input<'_>, output: &Output<'_>, inverse: bool, num_shards: i64, real: Option<i64>) -> Result<Slabs> {
    let axes = "batch, x, y, z";
    let (before, after) = (input.expect_rank::<4>(axes)?, output.expect_rank::<4>(axes)?);
    let ([_, _, ny, _], [_, nx, _, nk], complex) =
        if inverse { (after, before, input.dtype()) } else { (before, after, output.dtype()) };
    let shape = [nx as i64, ny as i64, nk as i64];
    let double = complex == Dtype::C128;
    Slabs::new(num_shards, shape, real, double).ok_or_else(|| {
        Error::invalid(format!("{before:?} and {after:?} are not slabs of one mesh over {num_shards} GPUs"))
    })
}

/// Number of meshes; fails unless operand and result have the extents and types of the slabs.
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
    // Of any shape: that of the operand where its memory is taken.
    let len: usize = scratch.dims().iter().product();
    let (expected, got) = (slabs.complex_dtype(), scratch.dtype());
    if expected != got || (len as i64) < needed {
        return Err(Error::invalid(format!("scratch: expected {needed} of {expected}, got {len} of {got}")));
    }
    Ok(())
}

/// Group that contains a GPU and its rank in it. Groups are consecutive in `groups`.
fn find(groups: &[i64], num_shards: usize, ordinal: i32) -> Result<(Vec<i32>, usize)> {
    for group in groups.chunks(num_shards) {
        if let Some(rank) = group.iter().position(|&other| other == i64::from(ordinal)) {
            return Ok((group.iter().map(|&other| other as i32).collect(), rank));
        }
    }
    Err(Error::invalid(format!("GPU or process {ordinal} is not among those of the program, {groups:?}")))
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_gpu_finds_its_group() {
        assert_eq!(find(&[0, 2, 1, 3], 2, 3), Ok((vec![1, 3], 1)));
        let error = find(&[0, 1], 2, 5).expect_err("unknown GPU");
        assert!(error.message.contains("GPU or process 5 is not among those of the program, [0, 1]"));
    }
}
