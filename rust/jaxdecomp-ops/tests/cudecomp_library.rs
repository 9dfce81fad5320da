//! Libraries under cuDecomp's bindings: loading, codes, queries.

mod fake_cudecomp;

use fake_cudecomp::{API, DRIVER, Fake, GRID, fatal, invalid_argument, with};
use jaxdecomp_ops::cuda::Device;
use jaxdecomp_ops::cudecomp::sys::{self, MpiQueries};
use jaxdecomp_ops::cudecomp::{self, Member, Session};
use std::ffi::c_int;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn mpi_is_queried_for_cuda_awareness() {
    unsafe extern "C" fn yes() -> c_int {
        1
    }
    unsafe extern "C" fn no() -> c_int {
        0
    }
    unsafe extern "C" fn gpu(kind: c_int, supported: *mut c_int) -> c_int {
        // SAFETY: the caller's variable.
        unsafe { *supported = 1 };
        kind // 0, success, for CUDA
    }
    let takes = |queries| {
        with(|fake| *fake = Fake::default());
        let device = Device::new(DRIVER, 0).expect("a device");
        let member = Member { communicator: 0, rank: 0, num_processes: 1 };
        Session::open(API, queries, device, member).expect("a session").mpi_is_cuda_aware()
    };
    assert!(takes(MpiQueries { cuda: Some(yes), gpu: None }));
    assert!(takes(MpiQueries { cuda: Some(no), gpu: Some(gpu) }));
    assert!(!takes(MpiQueries { cuda: Some(no), gpu: None }));
    assert!(!takes(MpiQueries::default()));
}

#[test]
fn codes_are_invalid_arguments_or_fatal() {
    assert_eq!(cudecomp::check("Finalize", 0), Ok(()));
    for (code, text) in [(1, "invalid usage"), (2, "not supported")] {
        assert!(invalid_argument(cudecomp::check("GridDescCreate", code)).contains(text));
    }
    let texts = ["internal", "CUDA", "cuTENSOR", "MPI", "NCCL", "NVSHMEM", "NVML", "unknown code"];
    for (code, text) in (3..).zip(texts) {
        let message = fatal(cudecomp::check("GridDescCreate", code));
        assert!(message.starts_with("cudecompGridDescCreate: ") && message.contains(text), "{message}");
    }
}

#[test]
fn calls_without_a_session_fail() {
    assert!(invalid_argument(cudecomp::open_grid(&GRID, 8, 0)).contains("cuDecomp is not open"));
    assert_eq!(cudecomp::close(), Ok(()));
    let member = Member { communicator: 0, rank: 0, num_processes: 1 };
    assert!(invalid_argument(cudecomp::open("/nowhere/libcudecomp.so", 0, member)).contains("/nowhere/libcudecomp.so"));
}

#[test]
fn other_libraries_and_older_releases_are_rejected() {
    assert!(sys::load("/nowhere/libcudecomp.so").expect_err("no file").contains("/nowhere/libcudecomp.so"));
    let Some(older) =
        compiled("older", "int cudecompInit_F(void) { return 0; } int cudecompGridDescCreate(void) { return 0; }")
    else {
        return;
    };
    let text = sys::load(&older).expect_err("0.6");
    assert_eq!(text, "cuDecomp 0.6 or older is not supported (its structs have no version); build cuDecomp 0.7");
    let other = compiled("other", "int something_else(void) { return 0; }").expect("a compiler, as before");
    assert_eq!(sys::load(&other).expect_err("other"), "not cuDecomp 0.7: cudecompInit_F is missing");
}

/// The path of a shared library; None without a C compiler.
fn compiled(name: &str, source: &str) -> Option<String> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, library) = (dir.join(format!("{name}.c")), dir.join(format!("lib{name}.so")));
    std::fs::write(&file, source).expect("the target directory is writable");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status().ok()?;
    status.success().then(|| library.to_string_lossy().into_owned())
}
