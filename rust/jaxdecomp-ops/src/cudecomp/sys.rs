//! `repr(C)` bindings of the part of `cudecomp.h` (0.7, layout version 1) that is used here, loaded at run time.

use crate::cuda::table;
use core::ffi::{c_int, c_void};
use libloading::Library;

pub use crate::cuda::Opaque;

/// Layout version of the structs below.
pub const LAYOUT_VERSION: i32 = 1;
/// Rank order with rank `i * pdims[1] + j` at (i, j) of the process grid.
pub const RANK_ORDER_ROW_MAJOR: i32 = 1;

/// Configuration of a descriptor, initialised by `cudecompGridDescConfigSetDefaultsVersioned`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "named as in the header")]
pub struct GridDescConfig {
    pub struct_size: i64,
    pub magic: i32,
    pub version: i32,
    pub gdims: [i32; 3],
    pub gdims_dist: [i32; 3],
    pub pdims: [i32; 2],
    pub rank_order: i32,
    pub transpose_comm_backend: i32,
    pub transpose_axis_contiguous: [u8; 3],
    pub transpose_mem_order: [[i32; 3]; 3],
    pub halo_comm_backend: i32,
}

/// Extents and position of a process's pencil.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "named as in the header")]
pub struct PencilInfo {
    pub struct_size: i64,
    pub magic: i32,
    pub version: i32,
    pub shape: [i32; 3],
    pub lo: [i32; 3],
    pub hi: [i32; 3],
    pub order: [i32; 3],
    pub halo_extents: [i32; 3],
    pub padding: [i32; 3],
    pub size: i64,
}

// Sizes of version 1 of the layout.
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<GridDescConfig>() == 104 && offset_of!(GridDescConfig, transpose_mem_order) == 60);
    assert!(offset_of!(GridDescConfig, halo_comm_backend) == 96);
    assert!(size_of::<PencilInfo>() == 96 && offset_of!(PencilInfo, size) == 88);
};

/// `cudecompResult_t`.
pub type Code = c_int;

type Transpose = unsafe extern "C" fn(
    Opaque,
    Opaque,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    c_int,
    *const i32,
    *const i32,
    *const i32,
    *const i32,
    Opaque,
) -> Code;
type UpdateHalos = unsafe extern "C" fn(
    Opaque,
    Opaque,
    *mut c_void,
    *mut c_void,
    c_int,
    *const i32,
    *const bool,
    i32,
    *const i32,
    Opaque,
) -> Code;

table! {
    /// Functions of cuDecomp.
    Api {
        init_f = b"cudecompInit_F\0": unsafe extern "C" fn(*mut Opaque, c_int) -> Code,
        finalize = b"cudecompFinalize\0": unsafe extern "C" fn(Opaque) -> Code,
        config_set_defaults = b"cudecompGridDescConfigSetDefaultsVersioned\0":
            unsafe extern "C" fn(*mut GridDescConfig, i64, i32) -> Code,
        grid_create = b"cudecompGridDescCreateVersioned\0":
            unsafe extern "C" fn(Opaque, *mut Opaque, *mut GridDescConfig, i64, i32, *const c_void, i64, i32) -> Code,
        grid_destroy = b"cudecompGridDescDestroy\0": unsafe extern "C" fn(Opaque, Opaque) -> Code,
        pencil_info = b"cudecompGetPencilInfoVersioned\0":
            unsafe extern "C" fn(Opaque, Opaque, *mut PencilInfo, i64, i32, i32, *const i32, *const i32) -> Code,
        transpose_workspace = b"cudecompGetTransposeWorkspaceSize\0":
            unsafe extern "C" fn(Opaque, Opaque, *mut i64) -> Code,
        halo_workspace = b"cudecompGetHaloWorkspaceSize\0":
            unsafe extern "C" fn(Opaque, Opaque, i32, *const i32, *mut i64) -> Code,
        malloc = b"cudecompMalloc\0": unsafe extern "C" fn(Opaque, Opaque, *mut *mut c_void, usize) -> Code,
        free = b"cudecompFree\0": unsafe extern "C" fn(Opaque, Opaque, *mut c_void) -> Code,
        transpose_x_to_y = b"cudecompTransposeXToY\0": Transpose,
        transpose_y_to_z = b"cudecompTransposeYToZ\0": Transpose,
        transpose_z_to_y = b"cudecompTransposeZToY\0": Transpose,
        transpose_y_to_x = b"cudecompTransposeYToX\0": Transpose,
        update_halos_z = b"cudecompUpdateHalosZ\0": UpdateHalos,
    }
}

/// Queries whether the MPI library under cuDecomp is CUDA-aware.
#[derive(Clone, Copy, Debug, Default)]
pub struct MpiQueries {
    /// `MPIX_Query_cuda_support` of Open MPI and MPICH.
    pub cuda: Option<unsafe extern "C" fn() -> c_int>,
    /// `MPIX_GPU_query_support` of MPICH and its descendants.
    pub gpu: Option<unsafe extern "C" fn(c_int, *mut c_int) -> c_int>,
}

/// Loads cuDecomp from a path, or by name from the loader's search path.
///
/// # Errors
/// The reason why it fails to load, or its unsupported release.
pub fn load(library: &str) -> Result<(Api, MpiQueries), String> {
    // SAFETY: the user chose the library, and thereby its initialisers.
    let library = unsafe { Library::new(library) }.map_err(|error| error.to_string())?;
    // Never unloaded, since the tables hold its functions.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the symbols' types are those of the header.
    let api = unsafe { Api::from_library(library) }.map_err(|missing| unsupported_release(library, missing))?;
    // SAFETY: as above. The lookup includes the libraries that cuDecomp is linked against.
    let queries = unsafe {
        MpiQueries {
            cuda: library.get(b"MPIX_Query_cuda_support\0").ok().map(|symbol| *symbol),
            gpu: library.get(b"MPIX_GPU_query_support\0").ok().map(|symbol| *symbol),
        }
    };
    Ok((api, queries))
}

/// Describes an unsupported release. Those before 0.7 export `cudecompGridDescCreate`, with unversioned structs.
fn unsupported_release(library: &Library, missing: &str) -> String {
    // SAFETY: the function is not called.
    let older = unsafe { library.get::<unsafe extern "C" fn()>(b"cudecompGridDescCreate\0") }.is_ok();
    if older {
        return "cuDecomp 0.6 or older is not supported (its structs have no version); build cuDecomp 0.7".to_owned();
    }
    format!("not cuDecomp 0.7: {missing} is missing")
}
