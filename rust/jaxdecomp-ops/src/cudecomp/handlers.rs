//! FFI targets of cuDecomp's transposes and halos.

use super::{Buffers, Error as Failure, Grid, Step, with_session};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Error, Input, Output, Result};

/// FFI targets of the platform "CUDA".
pub const CUDA: [(&str, Handler); 2] =
    [("jaxdecomp_ops_cudecomp_transpose", transpose_cuda), ("jaxdecomp_ops_cudecomp_halo", halo_cuda)];

xla_ffi::handler!(
    /// Transpose, see [`super::Session::transpose`].
    transpose_cuda => transpose
);
xla_ffi::handler!(
    /// Filling of halos, see [`super::Session::fill_halos`].
    halo_cuda => halo
);

fn transpose(call: &Call<'_>) -> Result<()> {
    let mut operands = Operands::new(call)?;
    let [step] = call.integer_array("step")?;
    run("cudecomp_transpose", || {
        let step = Step::new(step)?;
        let (from, to) = step.axes();
        let grid = operands.grid;
        let (before, after) = (grid.pencil(from)?, grid.pencil(to)?);
        let buffers = operands.buffers(before, after)?;
        // SAFETY: the shapes and types of XLA's buffers are checked above.
        with_session(|session| unsafe { session.transpose(&grid, step, operands.input.dtype(), &buffers) })
    })
}

fn halo(call: &Call<'_>) -> Result<()> {
    let mut operands = Operands::new(call)?;
    let [halo] = call.integer_array("halo")?;
    run("cudecomp_halo", || {
        let grid = operands.grid;
        let padded = grid.padded(halo)?;
        let buffers = operands.buffers(padded, padded)?;
        // SAFETY: as above.
        with_session(|session| unsafe { session.fill_halos(&grid, halo, operands.input.dtype(), &buffers) })
    })
}

/// Operands and results of both targets: operand `[B, x, y, z]`, result, scratch memory of the same type.
struct Operands<'a> {
    grid: Grid,
    input: Input<'a>,
    output: Output<'a>,
    scratch: Output<'a>,
    stream: *mut core::ffi::c_void,
}

impl<'a> Operands<'a> {
    fn new(call: &Call<'a>) -> Result<Self> {
        call.expect_arity(1, 2)?;
        let [transpose_comm, halo_comm] = call.integer_array("comms")?;
        let grid = Grid {
            shape: call.integer_array("shape")?,
            pdims: call.integer_array("pdims")?,
            transpose_comm: transpose_comm as i32,
            halo_comm: halo_comm as i32,
        };
        let (input, output) = (call.input(0, "block")?, call.output(0, "out")?);
        Ok(Self { grid, input, output, scratch: call.output(1, "scratch")?, stream: call.stream()? })
    }

    fn buffers(&mut self, before: [i64; 3], after: [i64; 3]) -> super::Result<Buffers> {
        let invalid = |error: Error| Failure::InvalidArgument(error.message);
        let [batch, ..] = self.input.expect_rank::<4>("batch, x, y, z").map_err(invalid)?;
        let dims = |local: [i64; 3]| [batch, local[0] as usize, local[1] as usize, local[2] as usize];
        self.input.expect_dims(&dims(before)).map_err(invalid)?;
        self.output.expect_dims(&dims(after)).map_err(invalid)?;
        let [scratch_len] = self.scratch.expect_rank::<1>("element").map_err(invalid)?;
        let dtypes = (self.input.dtype(), self.output.dtype(), self.scratch.dtype());
        if dtypes.0 != dtypes.1 || dtypes.0 != dtypes.2 {
            return Err(Failure::InvalidArgument(format!("expected operand and results of one type, got {dtypes:?}")));
        }
        Ok(Buffers {
            input: self.input.as_ptr(),
            output: self.output.as_mut_ptr(),
            scratch: self.scratch.as_mut_ptr(),
            scratch_len: scratch_len as i64,
            batch,
            stream: self.stream,
        })
    }
}

/// Returns invalid arguments to XLA; ends the job after a fatal failure.
fn run(name: &str, body: impl FnOnce() -> super::Result<()>) -> Result<()> {
    match body() {
        Ok(()) => Ok(()),
        Err(Failure::InvalidArgument(message)) => Err(Error::invalid(message).within(name)),
        Err(Failure::Fatal(message)) => end_job(name, &message),
    }
}

/// Aborts the process. Other processes wait for it inside the collective; an error returned through JAX might be caught, or
/// be noticed after hours. When a process dies by a signal, the launcher ends the others.
#[allow(clippy::print_stderr, reason = "the process ends")]
fn end_job(name: &str, message: &str) -> ! {
    eprintln!("{name}: {message}; aborting, since other processes would wait for this one forever");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::{Failure, run};
    use std::process::Command;

    #[test]
    fn invalid_arguments_are_returned_to_xla() {
        let error = run("cudecomp_halo", || Err(Failure::InvalidArgument("no".to_owned()))).expect_err("an error");
        assert_eq!(error.message, "cudecomp_halo: no");
        assert_eq!(run("cudecomp_halo", || Ok(())), Ok(()));
    }

    #[test]
    fn a_fatal_failure_aborts_the_process() {
        const CHILD: &str = "JAXDECOMP_OPS_TEST_ABORTS";
        if std::env::var_os(CHILD).is_some() {
            let _never = run("cudecomp_transpose", || Err(Failure::Fatal("NCCL failed".to_owned())));
            return;
        }
        let program = std::env::current_exe().expect("path of the test program");
        let this = "cudecomp::handlers::tests::a_fatal_failure_aborts_the_process";
        let child = Command::new(program).args([this, "--exact", "--nocapture"]).env(CHILD, "1").output();
        let child = child.expect("it starts");
        assert!(!child.status.success());
        let message = String::from_utf8_lossy(&child.stderr);
        assert!(message.contains("cudecomp_transpose: NCCL failed; aborting"), "{message}");
    }
}
