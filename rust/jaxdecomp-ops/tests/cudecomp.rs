//! cuDecomp's bindings against a made-up library.

mod made_up_cudecomp;

use jaxdecomp_ops::cuda::{Device, Opaque};
use jaxdecomp_ops::cudecomp::sys::{self, MpiQueries};
use jaxdecomp_ops::cudecomp::{self, Buffers, Error, Grid, Member, Result, Session, Step};
use made_up_cudecomp::{API, DRIVER, Fake, fail, log, with};
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use xla_ffi::Dtype;

const NCCL: i32 = 4;
const NVSHMEM: i32 = 6;
const GRID: Grid = Grid { shape: [8, 12, 20], pdims: [2, 2], transpose_comm: NCCL, halo_comm: 3 };

/// A session of place `place` of four.
fn session(place: i32) -> Session {
    with(|fake| *fake = Fake { rank: place, ..Fake::default() });
    let device = Device::new(DRIVER, 3).expect("a device");
    let member = Member { communicator: 5, place: place.into(), processes: 4 };
    let session = Session::open(API, MpiQueries::default(), device, member).expect("a session");
    assert_eq!(log(), ["cuInit", "retain 13", "enter", "synchronize", "init 5"]);
    session
}

fn buffers(batch: usize) -> Buffers {
    Buffers {
        input: 0x1000 as *const c_void,
        output: 0x2000 as *mut c_void,
        scratch: 0x3000 as *mut c_void,
        scratch_len: 100,
        batch,
        stream: 0x9 as Opaque,
    }
}

fn transpose(session: &mut Session, grid: &Grid, step: Step, dtype: Dtype, buffers: &Buffers) -> Result<()> {
    // SAFETY: the made-up library doesn't look at the data.
    unsafe { session.transpose(grid, step, dtype, buffers) }
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::Refused(message)) => message,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn breakage<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::Broken(message)) => message,
        other => panic!("expected a breakage, got {other:?}"),
    }
}

#[test]
fn a_grid_is_created_once_and_destroyed_at_the_end() {
    for place in 0..4 {
        let mut session = session(place);
        for _ in 0..2 {
            session.open_grid(&GRID, 8, 1).expect("a grid");
        }
        assert_eq!(log(), ["enter", "synchronize", "create 1", "enter", "synchronize"]);
        let config = with(|fake| fake.grids[0]);
        assert_eq!((config.gdims, config.gdims_dist, config.pdims), ([8, 12, 20], [0; 3], [2, 2]));
        assert_eq!((config.transpose_comm_backend, config.halo_comm_backend), (4, 3));
        session.close().expect("an end");
        assert_eq!(log(), ["enter", "synchronize", "destroy 1", "finalize", "release 13"]);
    }
}

#[test]
fn all_that_a_descriptor_depends_on_is_in_its_key() {
    let mut session = session(0);
    let others = [
        Grid { shape: [8, 12, 24], ..GRID },
        Grid { pdims: [4, 1], ..GRID },
        Grid { transpose_comm: NCCL + 1, ..GRID },
        Grid { halo_comm: 5, ..GRID },
    ];
    for grid in [GRID].iter().chain(&others) {
        session.open_grid(grid, 8, 0).expect("a grid");
    }
    assert_eq!(with(|fake| fake.grids.len()), 5);
    assert!(refusal(session.transpose_scratch(&Grid { shape: [8, 12, 28], ..GRID })).contains("is not open"));
    log();
    session.close().expect("an end");
    let destroyed: Vec<String> = log().into_iter().filter(|call| call.starts_with("destroy")).collect();
    // In the order of the keys, whatever the order of creation: the same on every process.
    assert_eq!(destroyed, ["destroy 1", "destroy 5", "destroy 4", "destroy 3", "destroy 2"]);
}

#[test]
fn what_does_not_fit_is_refused_before_the_library_is_asked() {
    let mut session = session(0);
    let mut refused = |grid: Grid, halo: i64| refusal(session.open_grid(&grid, 8, halo));
    assert!(refused(Grid { pdims: [4, 2], ..GRID }, 0).contains("must multiply to the 4 processes"));
    assert!(refused(Grid { shape: [7, 12, 20], ..GRID }, 0).contains("doesn't divide into [2, 2, 1] blocks"));
    assert!(refused(Grid { shape: [0, 12, 20], ..GRID }, 0).contains("must be positive"));
    assert!(refused(Grid { transpose_comm: 9, ..GRID }, 0).contains("no backends of the numbers 9"));
    assert!(refused(Grid { halo_comm: 0, ..GRID }, 0).contains("and 0 (halos)"));
    assert!(refused(GRID, 5).contains("expected 0 to 4 cells"));
    let large = Grid { shape: [2048, 2048, 2048], ..GRID };
    assert!(refused(large, 0).contains("fewer than 2^31 elements"));
    let padded = Grid { shape: [2048, 2048, 2000], ..GRID };
    assert!(refused(padded, 64).contains("fewer than 2^31 elements"));
    assert!(refused(Grid { transpose_comm: 3, ..GRID }, 0).contains("CUDA-aware"));
    assert!(refused(Grid { halo_comm: 2, ..GRID }, 0).contains("CUDA-aware"));
    assert_eq!(log(), [""; 0]);
}

#[test]
fn mpi_is_asked_whether_it_takes_device_memory() {
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
        let member = Member { communicator: 0, place: 0, processes: 1 };
        Session::open(API, queries, device, member).expect("a session").mpi_takes_device_memory()
    };
    assert!(takes(MpiQueries { cuda: Some(yes), gpu: None }));
    assert!(takes(MpiQueries { cuda: Some(no), gpu: Some(gpu) }));
    assert!(!takes(MpiQueries { cuda: Some(no), gpu: None }));
    assert!(!takes(MpiQueries::default()));
}

#[test]
fn each_step_calls_its_function_for_every_array_of_the_batch() {
    let mut session = session(1);
    session.open_grid(&GRID, 8, 0).expect("a grid");
    log();
    for (number, name) in ["x_to_y", "y_to_z", "z_to_y", "y_to_x"].into_iter().enumerate() {
        let step = Step::new(number as i64).expect("a step");
        transpose(&mut session, &GRID, step, Dtype::C64, &buffers(2)).expect("a transpose");
        // 480 elements of 8 bytes.
        let calls = ["0x1000 0x2000", "0x1f00 0x2f00"].map(|at| format!("{name} 0x1 {at} 0x3000 -3 0x9"));
        assert_eq!(log(), [&["enter".to_owned()], &calls[..]].concat());
    }
    assert!(refusal(Step::new(4)).contains("expected 0 to 3, got 4"));
    let numbers = [(Dtype::F32, "-1"), (Dtype::F64, "-2"), (Dtype::C128, "-4")];
    for (dtype, number) in numbers {
        transpose(&mut session, &GRID, Step::XToY, dtype, &buffers(1)).expect("a transpose");
        assert!(log()[1].contains(&format!("0x3000 {number} 0x9")));
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_and_leave_the_session_whole() {
    let mut session = session(0);
    let uneven = Grid { shape: [8, 12, 21], ..GRID };
    session.open_grid(&GRID, 8, 0).expect("a grid");
    session.open_grid(&uneven, 8, 2).expect("a grid for halos only");
    log();
    let step = Step::XToY;
    let short = Buffers { scratch_len: 99, ..buffers(1) };
    assert!(
        refusal(transpose(&mut session, &GRID, step, Dtype::F32, &short)).contains("expected 100 elements, got 99")
    );
    assert!(refusal(transpose(&mut session, &GRID, step, Dtype(4), &buffers(1))).contains("c128, got s32"));
    assert!(refusal(transpose(&mut session, &uneven, Step::ZToY, Dtype::F32, &buffers(1))).contains("doesn't divide"));
    let closed = Grid { shape: [16, 12, 20], ..GRID };
    assert!(refusal(transpose(&mut session, &closed, step, Dtype::F32, &buffers(1))).contains("is not open"));
    assert_eq!(log(), [""; 0]);
    transpose(&mut session, &GRID, step, Dtype::F32, &buffers(1)).expect("a transpose");
    fail("x_to_y", 2);
    assert!(refusal(transpose(&mut session, &GRID, step, Dtype::F32, &buffers(1))).contains("not supported"));
    with(|fake| fake.failing = None);
    session.close().expect("an end");
}

#[test]
fn a_failure_on_the_way_poisons_the_session() {
    let mut session = session(0);
    session.open_grid(&GRID, 8, 1).expect("a grid");
    fail("x_to_y", 7);
    let first = breakage(transpose(&mut session, &GRID, Step::XToY, Dtype::F32, &buffers(1)));
    assert_eq!(first, "cudecompTranspose: NCCL failed (code 7; its own message is on the standard error)");
    with(|fake| fake.failing = None);
    log();
    let later = breakage(transpose(&mut session, &GRID, Step::YToX, Dtype::F32, &buffers(1)));
    assert_eq!(later, format!("cuDecomp is unusable since an earlier failure: {first}"));
    breakage(session.open_grid(&Grid { shape: [8, 8, 8], ..GRID }, 8, 0));
    breakage(session.close());
    assert_eq!(log(), [""; 0], "a broken library is left alone");
}

#[test]
fn failures_of_cuda_say_what_cuda_says() {
    let mut session = session(0);
    session.open_grid(&GRID, 8, 1).expect("a grid");
    fail("enter", 700);
    let text = breakage(transpose(&mut session, &GRID, Step::XToY, Dtype::F32, &buffers(1)));
    assert_eq!(text, "cuCtxSetCurrent: an illegal memory access was encountered (CUDA error 700)");
    fail("retain", 2);
    assert!(breakage(Device::new(DRIVER, 0).map_err(Error::from)).contains("unknown error (CUDA error 2)"));
    fail("init", 1);
    let member = Member { communicator: 5, place: 0, processes: 4 };
    let device = {
        with(|fake| fake.failing = None);
        Device::new(DRIVER, 0).expect("a device")
    };
    fail("init", 1);
    let outcome = Session::open(API, MpiQueries::default(), device, member).map(drop);
    assert!(breakage(outcome).contains("Init_F: invalid usage"), "others may be inside it");
}

#[test]
fn a_library_that_divides_otherwise_is_not_trusted() {
    let mut session = session(1);
    with(|fake| fake.disobedient = true);
    let text = breakage(session.open_grid(&GRID, 8, 0));
    assert!(text.contains("expected shape and place ([10, 6, 8], [10, 0, 0]), got ([10, 6, 8], [0, 6, 0])"), "{text}");
}

#[test]
fn halos_go_along_x_then_y_on_the_result() {
    let mut session = session(0);
    session.open_grid(&GRID, 8, 1).expect("a grid");
    assert_eq!(session.halo_scratch(&GRID, 1), Ok(1000));
    log();
    let out_of_place = Buffers { scratch_len: 1000, ..buffers(2) };
    // SAFETY: as above.
    unsafe { session.fill_halos(&GRID, 1, Dtype::F64, &out_of_place) }.expect("halos");
    // Blocks of (4 + 2) (6 + 2) 20 elements of 8 bytes.
    let blocks = ["0x2000", "0x3e00"];
    let mut expected = vec!["enter".to_owned(), "enter".to_owned(), "copy 0x1000 to 0x2000, 15360 bytes".to_owned()];
    for block in blocks {
        expected.extend([0, 1].map(|dim| format!("halo {block} 0x3000 -2 [1, 1, 0] along {dim}")));
    }
    assert_eq!(log(), expected);
    let in_place = Buffers { input: 0x2000 as *const c_void, batch: 1, ..out_of_place };
    let slabs = Grid { pdims: [4, 1], ..GRID };
    session.open_grid(&slabs, 8, 2).expect("a grid");
    log();
    let enough = Buffers { scratch_len: 2000, ..in_place };
    // SAFETY: as above.
    unsafe { session.fill_halos(&slabs, 2, Dtype::F32, &enough) }.expect("halos");
    assert_eq!(log()[2..], ["halo 0x2000 0x3000 -1 [2, 0, 0] along 0"]);
    // SAFETY: as above.
    assert!(refusal(unsafe { session.fill_halos(&slabs, 3, Dtype::F32, &enough) }).contains("expected 0 to 2 cells"));
}

#[test]
fn nvshmem_works_in_memory_of_its_own() {
    let grid = Grid { transpose_comm: NVSHMEM, ..GRID };
    let mut session = session(0);
    session.open_grid(&grid, 8, 0).expect("a grid");
    assert!(log().contains(&"malloc 800".to_owned()));
    assert_eq!((session.transpose_scratch(&grid), session.halo_scratch(&grid, 1)), (Ok(0), Ok(0)));
    log();
    let none = Buffers { scratch_len: 0, scratch: null_mut(), ..buffers(1) };
    transpose(&mut session, &grid, Step::XToY, Dtype::C64, &none).expect("a transpose");
    assert_eq!(log()[1], "x_to_y 0x1 0x1000 0x2000 0x5000 -3 0x9");
    let text = refusal(transpose(&mut session, &grid, Step::XToY, Dtype::C128, &none));
    assert!(text.contains("expected 1600 bytes, got 800"), "{text}");
    session.open_grid(&grid, 16, 1).expect("a larger workspace");
    assert_eq!(
        log().iter().filter(|call| call.contains("alloc") || call.contains("free")).collect::<Vec<_>>(),
        ["free 0x5000", "malloc 16000"]
    );
    transpose(&mut session, &grid, Step::XToY, Dtype::C128, &none).expect("a transpose");
    session.close().expect("an end");
    assert!(log().contains(&"free 0x5000".to_owned()));
}

#[test]
fn codes_say_whether_others_may_be_waiting() {
    assert_eq!(cudecomp::check("Finalize", 0), Ok(()));
    for (code, text) in [(1, "invalid usage"), (2, "not supported")] {
        assert!(refusal(cudecomp::check("GridDescCreate", code)).contains(text));
    }
    let texts = ["internal", "CUDA", "cuTENSOR", "MPI", "NCCL", "NVSHMEM", "NVML", "unknown code"];
    for (code, text) in (3..).zip(texts) {
        let message = breakage(cudecomp::check("GridDescCreate", code));
        assert!(message.starts_with("cudecompGridDescCreate: ") && message.contains(text), "{message}");
    }
}

#[test]
fn without_a_session_there_is_nothing_to_do() {
    assert!(refusal(cudecomp::open_grid(&GRID, 8, 0)).contains("cuDecomp is not open"));
    assert_eq!(cudecomp::close(), Ok(()));
    let member = Member { communicator: 0, place: 0, processes: 1 };
    assert!(refusal(cudecomp::open("/nowhere/libcudecomp.so", 0, member)).contains("/nowhere/libcudecomp.so"));
}

#[test]
fn other_libraries_and_older_releases_are_recognised() {
    assert!(sys::load("/nowhere/libcudecomp.so").expect_err("no file").contains("/nowhere/libcudecomp.so"));
    let Some(older) =
        compiled("older", "int cudecompInit_F(void) { return 0; } int cudecompGridDescCreate(void) { return 0; }")
    else {
        return;
    };
    let text = sys::load(&older).expect_err("0.6");
    assert_eq!(text, "this is cuDecomp 0.6 or older, whose structs bear no version; build cuDecomp 0.7");
    let other = compiled("other", "int something_else(void) { return 0; }").expect("a compiler, as before");
    assert_eq!(sys::load(&other).expect_err("other"), "this is not cuDecomp 0.7: it has no cudecompInit_F");
}

/// The path of a shared library; None without a C compiler.
fn compiled(name: &str, source: &str) -> Option<String> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, library) = (dir.join(format!("{name}.c")), dir.join(format!("lib{name}.so")));
    std::fs::write(&file, source).expect("the target directory is writable");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status().ok()?;
    status.success().then(|| library.to_string_lossy().into_owned())
}

#[test]
fn nvshmem_has_teams_for_twelve_descriptors() {
    let mut session = session(0);
    let grid = |n: i64, transpose_comm| Grid { shape: [8, 12, 20 + 4 * n], transpose_comm, ..GRID };
    for n in 0..12 {
        session.open_grid(&grid(n, NVSHMEM), 8, 0).expect("there is room");
        session.open_grid(&grid(n, NCCL), 8, 0).expect("NCCL takes none");
    }
    session.open_grid(&grid(3, NVSHMEM), 8, 0).expect("it is open");
    let message = refusal(session.open_grid(&grid(12, NVSHMEM), 8, 0));
    assert!(message.contains("12 descriptors are open over NVSHMEM"), "{message}");
    assert!(message.contains("NVSHMEM_MAX_TEAMS above 32"), "{message}");
    session.open_grid(&grid(12, NCCL), 8, 0).expect("the session is whole");
}
