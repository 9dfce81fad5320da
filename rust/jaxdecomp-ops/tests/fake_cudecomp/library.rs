//! The functions of the libraries.

use jaxdecomp_ops::cuda::Opaque;
use jaxdecomp_ops::cuda::driver::Driver;
use jaxdecomp_ops::cudecomp::sys::{Api, GridDescConfig, PencilInfo};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};

/// State of the fake library of one test (one thread).
#[derive(Default)]
pub struct Fake {
    /// Calls since the last call of [`log`].
    pub log: Vec<String>,
    /// A function that fails, and its code.
    pub failing: Option<(&'static str, c_int)>,
    /// Configurations of the descriptors, which are numbered from 1.
    pub grids: Vec<GridDescConfig>,
    /// Rank of this process.
    pub rank: i32,
    /// Whether ranks are column-major, against the configuration.
    pub column_major: bool,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::default();
}

pub fn with<T>(body: impl FnOnce(&mut Fake) -> T) -> T {
    FAKE.with_borrow_mut(body)
}

/// Removes and returns the logged calls.
pub fn log() -> Vec<String> {
    with(|fake| std::mem::take(&mut fake.log))
}

pub fn fail(function: &'static str, code: c_int) {
    with(|fake| fake.failing = Some((function, code)));
}

/// Logs a call and returns its code.
fn called(function: &'static str, arguments: &str) -> c_int {
    with(|fake| {
        fake.log.push(format!("{function}{arguments}"));
        fake.failing.filter(|(name, _)| *name == function).map_or(0, |(_, code)| code)
    })
}

unsafe extern "C" fn init_f(handle: *mut Opaque, communicator: c_int) -> c_int {
    // SAFETY: the caller's variable.
    unsafe { *handle = 77 as Opaque };
    called("init", &format!(" {communicator}"))
}

unsafe extern "C" fn finalize(_: Opaque) -> c_int {
    called("finalize", "")
}

unsafe extern "C" fn set_defaults(config: *mut GridDescConfig, size: i64, version: i32) -> c_int {
    assert_eq!((size, version), (104, 1));
    // SAFETY: as above.
    unsafe { *config = GridDescConfig { magic: 42, transpose_comm_backend: 1, ..GridDescConfig::default() } };
    0
}

unsafe extern "C" fn grid_create(
    handle: Opaque,
    grid: *mut Opaque,
    config: *mut GridDescConfig,
    _: i64,
    _: i32,
    options: *const c_void,
    _: i64,
    _: i32,
) -> c_int {
    assert!(handle as usize == 77 && options.is_null());
    // SAFETY: as above.
    let config = unsafe { *config };
    assert_eq!(config.magic, 42, "defaults are set first");
    let number = with(|fake| {
        fake.grids.push(config);
        fake.grids.len()
    });
    // SAFETY: as above.
    unsafe { *grid = number as Opaque };
    called("create", &format!(" {number}"))
}

unsafe extern "C" fn grid_destroy(_: Opaque, grid: Opaque) -> c_int {
    called("destroy", &format!(" {}", grid as usize))
}

unsafe extern "C" fn pencil_info(
    _: Opaque,
    grid: Opaque,
    info: *mut PencilInfo,
    size: i64,
    _: i32,
    axis: i32,
    _: *const i32,
    _: *const i32,
) -> c_int {
    assert_eq!(size, 96);
    with(|fake| {
        let config = fake.grids[grid as usize - 1];
        let [rows, columns] = config.pdims;
        assert_eq!((config.rank_order, config.transpose_mem_order), (1, [[2, 1, 0]; 3]));
        let row_major = [fake.rank / columns, fake.rank % columns];
        let at = if fake.column_major { [fake.rank % rows, fake.rank / rows] } else { row_major };
        let (mut shape, mut lo, mut split) = (config.gdims, [0; 3], 0);
        for other in (0..3).filter(|&other| other != axis as usize) {
            shape[other] /= config.pdims[split];
            lo[other] = at[split] * shape[other];
            split += 1;
        }
        shape.reverse();
        lo.reverse();
        // SAFETY: as above.
        unsafe { *info = PencilInfo { shape, lo, order: [2, 1, 0], ..PencilInfo::default() } };
    });
    0
}

unsafe extern "C" fn transpose_workspace(_: Opaque, _: Opaque, size: *mut i64) -> c_int {
    // SAFETY: as above.
    unsafe { *size = 100 };
    0
}

unsafe extern "C" fn halo_workspace(_: Opaque, _: Opaque, axis: i32, extents: *const i32, size: *mut i64) -> c_int {
    assert_eq!(axis, 2);
    // SAFETY: as above; three extents.
    unsafe { *size = 1000 * i64::from(*extents) };
    0
}

unsafe extern "C" fn malloc(_: Opaque, _: Opaque, memory: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: as above.
    unsafe { *memory = 0x5000 as *mut c_void };
    called("malloc", &format!(" {bytes}"))
}

unsafe extern "C" fn free(_: Opaque, _: Opaque, memory: *mut c_void) -> c_int {
    called("free", &format!(" {memory:?}"))
}

macro_rules! transposes {
    ($($name:ident = $text:literal),*) => {
        $(unsafe extern "C" fn $name(
            _: Opaque, grid: Opaque, input: *mut c_void, output: *mut c_void, work: *mut c_void, dtype: c_int,
            _: *const i32, _: *const i32, _: *const i32, _: *const i32, stream: Opaque,
        ) -> c_int {
            called($text, &format!(" {grid:?} {input:?} {output:?} {work:?} {dtype} {stream:?}"))
        })*
    };
}
transposes!(x_to_y = "x_to_y", y_to_z = "y_to_z", z_to_y = "z_to_y", y_to_x = "y_to_x");

unsafe extern "C" fn update_halos(
    _: Opaque,
    _: Opaque,
    block: *mut c_void,
    work: *mut c_void,
    dtype: c_int,
    extents: *const i32,
    periods: *const bool,
    dim: i32,
    _: *const i32,
    _: Opaque,
) -> c_int {
    // SAFETY: three of each.
    let (extents, periods) = unsafe { (*extents.cast::<[i32; 3]>(), *periods.cast::<[bool; 3]>()) };
    assert_eq!(periods, [true; 3]);
    called("halo", &format!(" {block:?} {work:?} {dtype} {extents:?} along {dim}"))
}

pub const API: Api = Api {
    init_f,
    finalize,
    config_set_defaults: set_defaults,
    grid_create,
    grid_destroy,
    pencil_info,
    transpose_workspace,
    halo_workspace,
    malloc,
    free,
    transpose_x_to_y: x_to_y,
    transpose_y_to_z: y_to_z,
    transpose_z_to_y: z_to_y,
    transpose_y_to_x: y_to_x,
    update_halos_z: update_halos,
};

unsafe extern "C" fn cu_init(_: u32) -> c_int {
    called("cuInit", "")
}

unsafe extern "C" fn cu_device_get(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *device = 10 + ordinal };
    0
}

unsafe extern "C" fn cu_retain(context: *mut Opaque, device: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *context = 0xc0 as Opaque };
    called("retain", &format!(" {device}"))
}

unsafe extern "C" fn cu_release(device: c_int) -> c_int {
    called("release", &format!(" {device}"))
}

unsafe extern "C" fn cu_enter(context: Opaque) -> c_int {
    assert_eq!(context as usize, 0xc0);
    called("enter", "")
}

unsafe extern "C" fn cu_synchronize() -> c_int {
    called("synchronize", "")
}

unsafe extern "C" fn cu_copy(to: u64, from: u64, bytes: usize, _: Opaque) -> c_int {
    called("copy", &format!(" {from:#x} to {to:#x}, {bytes} bytes"))
}

unsafe extern "C" fn cu_text(code: c_int, text: *mut *const c_char) -> c_int {
    if code == 700 {
        // SAFETY: as above.
        unsafe { *text = c"an illegal memory access was encountered".as_ptr() };
    }
    0
}

pub const DRIVER: Driver = Driver {
    init: cu_init,
    device_get: cu_device_get,
    primary_context_retain: cu_retain,
    primary_context_release: cu_release,
    context_set: cu_enter,
    context_synchronize: cu_synchronize,
    copy_async: cu_copy,
    error_string: cu_text,
};
