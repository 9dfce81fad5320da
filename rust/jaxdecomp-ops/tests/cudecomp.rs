//! Sessions of cuDecomp with a fake library: grids, transposes, halos, failures.

mod fake_cudecomp;

use fake_cudecomp::{
    API, DRIVER, GRID, NCCL, NVSHMEM, buffers, fail, fatal, invalid_argument, log, session, transpose, with,
};
use jaxdecomp_ops::cuda::Device;
use jaxdecomp_ops::cudecomp::sys::MpiQueries;
use jaxdecomp_ops::cudecomp::{Buffers, Error, Grid, Member, Session, Step};
use std::ffi::c_void;
use std::ptr::null_mut;
use xla_ffi::Dtype;

#[test]
fn a_grid_is_created_once_and_destroyed_at_the_end() {
    for rank in 0..4 {
        let mut session = session(rank);
        for _ in 0..2 {
            session.open_grid(&GRID, 8, 1).expect("a grid");
        }
        assert_eq!(log(), ["enter", "synchronize", "create 1", "enter", "synchronize"]);
        let config = with(|fake| fake.grids[0]);
        assert_eq!((config.gdims, config.gdims_dist, config.pdims), ([8, 12, 20], [0; 3], [2, 2]));
        assert_eq!((config.transpose_comm_backend, config.halo_comm_backend), (4, 3));
        session.close().expect("closes");
        assert_eq!(log(), ["enter", "synchronize", "destroy 1", "finalize", "release 13"]);
    }
}

#[test]
fn the_key_of_a_descriptor_is_complete() {
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
    assert!(invalid_argument(session.transpose_scratch(&Grid { shape: [8, 12, 28], ..GRID })).contains("is not open"));
    log();
    session.close().expect("closes");
    let destroyed: Vec<String> = log().into_iter().filter(|call| call.starts_with("destroy")).collect();
    // In the order of the keys, which is the same on every process.
    assert_eq!(destroyed, ["destroy 1", "destroy 5", "destroy 4", "destroy 3", "destroy 2"]);
}

#[test]
fn invalid_grids_are_rejected_before_the_library_is_called() {
    let mut session = session(0);
    let mut message = |grid: Grid, halo: i64| invalid_argument(session.open_grid(&grid, 8, halo));
    assert!(message(Grid { pdims: [4, 2], ..GRID }, 0).contains("must multiply to the 4 processes"));
    assert!(message(Grid { shape: [7, 12, 20], ..GRID }, 0).contains("doesn't divide into [2, 2, 1] blocks"));
    assert!(message(Grid { shape: [0, 12, 20], ..GRID }, 0).contains("must be positive"));
    assert!(message(Grid { transpose_comm: 9, ..GRID }, 0).contains("unknown backend number: transpose 9"));
    assert!(message(Grid { halo_comm: 0, ..GRID }, 0).contains("halo 0 (expected 1 to 5)"));
    assert!(message(GRID, 5).contains("expected 0 to 4 cells"));
    let large = Grid { shape: [2048, 2048, 2048], ..GRID };
    assert!(message(large, 0).contains("fewer than 2^31 elements"));
    let padded = Grid { shape: [2048, 2048, 2000], ..GRID };
    assert!(message(padded, 64).contains("fewer than 2^31 elements"));
    assert!(message(Grid { transpose_comm: 3, ..GRID }, 0).contains("CUDA-aware"));
    assert!(message(Grid { halo_comm: 2, ..GRID }, 0).contains("CUDA-aware"));
    assert_eq!(log(), [""; 0]);
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
    assert!(invalid_argument(Step::new(4)).contains("expected 0 to 3, got 4"));
    let numbers = [(Dtype::F32, "-1"), (Dtype::F64, "-2"), (Dtype::C128, "-4")];
    for (dtype, number) in numbers {
        transpose(&mut session, &GRID, Step::XToY, dtype, &buffers(1)).expect("a transpose");
        assert!(log()[1].contains(&format!("0x3000 {number} 0x9")));
    }
}

#[test]
fn invalid_calls_are_rejected_and_leave_the_session_usable() {
    let mut session = session(0);
    let uneven = Grid { shape: [8, 12, 21], ..GRID };
    session.open_grid(&GRID, 8, 0).expect("a grid");
    session.open_grid(&uneven, 8, 2).expect("a grid for halos only");
    log();
    let step = Step::XToY;
    let short = Buffers { scratch_len: 99, ..buffers(1) };
    assert!(
        invalid_argument(transpose(&mut session, &GRID, step, Dtype::F32, &short))
            .contains("expected 100 elements, got 99")
    );
    assert!(invalid_argument(transpose(&mut session, &GRID, step, Dtype(4), &buffers(1))).contains("c128, got s32"));
    assert!(
        invalid_argument(transpose(&mut session, &uneven, Step::ZToY, Dtype::F32, &buffers(1)))
            .contains("doesn't divide")
    );
    let closed = Grid { shape: [16, 12, 20], ..GRID };
    assert!(invalid_argument(transpose(&mut session, &closed, step, Dtype::F32, &buffers(1))).contains("is not open"));
    assert_eq!(log(), [""; 0]);
    transpose(&mut session, &GRID, step, Dtype::F32, &buffers(1)).expect("a transpose");
    fail("x_to_y", 2);
    assert!(invalid_argument(transpose(&mut session, &GRID, step, Dtype::F32, &buffers(1))).contains("not supported"));
    with(|fake| fake.failing = None);
    session.close().expect("closes");
}

#[test]
fn a_fatal_failure_makes_the_session_unusable() {
    let mut session = session(0);
    session.open_grid(&GRID, 8, 1).expect("a grid");
    fail("x_to_y", 7);
    let first = fatal(transpose(&mut session, &GRID, Step::XToY, Dtype::F32, &buffers(1)));
    assert_eq!(first, "cudecompTranspose: NCCL failed (code 7; details are on the standard error)");
    with(|fake| fake.failing = None);
    log();
    let later = fatal(transpose(&mut session, &GRID, Step::YToX, Dtype::F32, &buffers(1)));
    assert_eq!(later, format!("cuDecomp is unusable after an earlier failure: {first}"));
    fatal(session.open_grid(&Grid { shape: [8, 8, 8], ..GRID }, 8, 0));
    fatal(session.close());
    assert_eq!(log(), [""; 0], "the library is not called again");
}

#[test]
fn failures_of_cuda_have_its_description() {
    let mut session = session(0);
    session.open_grid(&GRID, 8, 1).expect("a grid");
    fail("enter", 700);
    let text = fatal(transpose(&mut session, &GRID, Step::XToY, Dtype::F32, &buffers(1)));
    assert_eq!(text, "cuCtxSetCurrent: an illegal memory access was encountered (CUDA error 700)");
    fail("retain", 2);
    assert!(fatal(Device::new(DRIVER, 0).map_err(Error::from)).contains("unknown error (CUDA error 2)"));
    fail("init", 1);
    let member = Member { communicator: 5, rank: 0, num_processes: 4 };
    let device = {
        with(|fake| fake.failing = None);
        Device::new(DRIVER, 0).expect("a device")
    };
    fail("init", 1);
    let outcome = Session::open(API, MpiQueries::default(), device, member).map(drop);
    assert!(fatal(outcome).contains("Init_F: invalid usage"), "other processes may wait");
}

#[test]
fn another_division_is_an_error() {
    let mut session = session(1);
    with(|fake| fake.column_major = true);
    let text = fatal(session.open_grid(&GRID, 8, 0));
    assert!(text.contains("expected shape and start ([10, 6, 8], [10, 0, 0]), got ([10, 6, 8], [0, 6, 0])"), "{text}");
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
    let outcome = unsafe { session.fill_halos(&slabs, 3, Dtype::F32, &enough) };
    assert!(invalid_argument(outcome).contains("expected 0 to 2 cells"));
}

#[test]
fn nvshmem_uses_memory_of_the_library() {
    let grid = Grid { transpose_comm: NVSHMEM, ..GRID };
    let mut session = session(0);
    session.open_grid(&grid, 8, 0).expect("a grid");
    assert!(log().contains(&"malloc 800".to_owned()));
    assert_eq!((session.transpose_scratch(&grid), session.halo_scratch(&grid, 1)), (Ok(0), Ok(0)));
    log();
    let none = Buffers { scratch_len: 0, scratch: null_mut(), ..buffers(1) };
    transpose(&mut session, &grid, Step::XToY, Dtype::C64, &none).expect("a transpose");
    assert_eq!(log()[1], "x_to_y 0x1 0x1000 0x2000 0x5000 -3 0x9");
    let text = invalid_argument(transpose(&mut session, &grid, Step::XToY, Dtype::C128, &none));
    assert!(text.contains("expected 1600 bytes, got 800"), "{text}");
    session.open_grid(&grid, 16, 1).expect("a larger workspace");
    assert_eq!(
        log().iter().filter(|call| call.contains("alloc") || call.contains("free")).collect::<Vec<_>>(),
        ["free 0x5000", "malloc 16000"]
    );
    transpose(&mut session, &grid, Step::XToY, Dtype::C128, &none).expect("a transpose");
    session.close().expect("closes");
    assert!(log().contains(&"free 0x5000".to_owned()));
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
    let message = invalid_argument(session.open_grid(&grid(12, NVSHMEM), 8, 0));
    assert!(message.contains("12 descriptors use all teams of NVSHMEM"), "{message}");
    assert!(message.contains("NVSHMEM_MAX_TEAMS above 32"), "{message}");
    session.open_grid(&grid(12, NCCL), 8, 0).expect("the session is usable");
}
