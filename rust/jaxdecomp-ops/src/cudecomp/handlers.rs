//! XLA's calls on a GPU, unpacked and checked.

use super::{Buffers, Error as Failure, Grid, Step, with_session};
use xla_ffi::sys::Handler;
use xla_ffi::{Call, Error, Input, Output, Result};

/// FFI targets of the platform "CUDA".
pub const CUDA: [(&str, Handler); 2] =
    [("jaxdecomp_ops_cudecomp_transpose", transpose_cuda), ("jaxdecomp_ops_cudecomp_halo", halo_cuda)];

xla_ffi::handler!(
    /// A transpose, see [`super::Session::transpose`].
    transpose_cuda => transpose
);
xla_ffi::handler!(
    /// Halos, see [`super::Session::fill_halos`].
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
        // SAFETY: XLA's buffers have the shapes and the type that were checked.
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

/// What both targets have in common: operand `[B, x, y, z]`, the result, scratch memory of the same type.
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
        let refuse = |error: Error| Failure::Refused(error.message);
        let [batch, ..] = self.input.expect_rank::<4>("batch, x, y, z").map_err(refuse)?;
        let dims = |local: [i64; 3]| [batch, local[0] as usize, local[1] as usize, local[2] as usize];
        self.input.expect_dims(&dims(before)).map_err(refuse)?;
        self.output.expect_dims(&dims(after)).map_err(refuse)?;
        let [scratch_len] = self.scratch.expect_rank::<1>("element").map_err(refuse)?;
        let dtypes = (self.input.dtype(), self.output.dtype(), self.scratch.dtype());
        if dtypes.0 != dtypes.1 || dtypes.0 != dtypes.2 {
            return Err(Failure::Refused(format!("expected operand and results of one type, got {dtypes:?}")));
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

/// Hands a refusal to XLA; ends the job after a failure on the way.
fn run(name: &str, body: impl FnOnce() -> super::Result<()>) -> Result<()> {
    match body() {
        Ok(()) => Ok(()),
        Err(Failure::Refused(message)) => Err(Error::invalid(message).within(name)),
        Err(Failure::Broken(message)) => end_job(name, &message),
    }
}

/// The other processes wait inside the collective for this one. An error that went back through JAX might be caught, or
/// met by them only after hours: a launcher that sees a process die by a signal ends the rest.
#[allow(clippy::print_stderr, reason = "the last words of the process")]
fn end_job(name: &str, message: &str) -> ! {
    eprintln!("{name}: {message}; the job ends here, since other processes would wait for this one for ever");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::{Failure, run};
    use std::process::Command;

    #[test]
    fn a_refusal_goes_back_to_xla() {
        let error = run("cudecomp_halo", || Err(Failure::Refused("no".to_owned()))).expect_err("an error");
        assert_eq!(error.message, "cudecomp_halo: no");
        assert_eq!(run("cudecomp_halo", || Ok(())), Ok(()));
    }

    #[test]
    fn a_failure_on_the_way_ends_the_process() {
        const CHILD: &str = "JAXDECOMP_OPS_TEST_BREAKS";
        if std::env::var_os(CHILD).is_some() {
            let _never = run("cudecomp_transpose", || Err(Failure::Broken("NCCL failed".to_owned())));
            return;
        }
        let program = std::env::current_exe().expect("this test's own path");
        let this = "cudecomp::handlers::tests::a_failure_on_the_way_ends_the_process";
        let child = Command::new(program).args([this, "--exact", "--nocapture"]).env(CHILD, "1").output();
        let child = child.expect("it starts");
        assert!(!child.status.success());
        let words = String::from_utf8_lossy(&child.stderr);
        assert!(words.contains("cudecomp_transpose: NCCL failed; the job ends here"), "{words}");
    }
}
