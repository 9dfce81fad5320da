//! `repr(C)` mirror of the part of `xla/ffi/api/c_api.h` (API 0.1 and later of major 0) that handlers need.
//!
//! Excluded are FFI state and type registration, whose layouts changed within major 0, and all fields after
//! [`CallFrame::attrs`], which older runtimes lack. Names are those of API 0.3; 0.4 has others. `tests/layout.rs`
//! compares this file with the header of the installed jaxlib.

use core::ffi::{c_char, c_int, c_void};

/// API version that handlers declare. Runtimes accept versions from 0.1 up to their own.
pub const API_VERSION: (c_int, c_int) = (0, 1);

/// Extension type of [`MetadataExtension`].
pub const EXTENSION_METADATA: c_int = 1;
/// Initialisation stage, before the program runs.
pub const STAGE_INITIALIZE: c_int = 2;
/// Trait of handlers whose work can be recorded and replayed.
pub const COMMAND_BUFFER_COMPATIBLE: u32 = 1;
/// Execution stage, after instantiation, preparation and initialisation.
pub const STAGE_EXECUTE: c_int = 3;
/// Type of an argument or result that is a buffer.
pub const BUFFER: c_int = 1;
/// Type of an attribute that is an array of numbers.
pub const ATTR_ARRAY: c_int = 1;
/// Type of an attribute that is a number.
pub const ATTR_SCALAR: c_int = 3;

/// Data types, by XLA's numbers.
pub mod dtype {
    use core::ffi::c_int;

    /// Signed 32-bit integer.
    pub const S32: c_int = 4;
    /// Signed 64-bit integer.
    pub const S64: c_int = 5;
    /// IEEE single precision.
    pub const F32: c_int = 11;
    /// IEEE double precision.
    pub const F64: c_int = 12;
    /// Complex number of two single-precision parts.
    pub const C64: c_int = 15;
    /// Complex number of two double-precision parts.
    pub const C128: c_int = 18;
}

/// Creates an argument struct without extensions.
macro_rules! args {
    ($name:ident { $($fields:tt)* }) => {
        $crate::sys::$name {
            struct_size: core::mem::size_of::<$crate::sys::$name>(),
            extension_start: core::ptr::null_mut(),
            $($fields)*
        }
    };
}
pub(crate) use args;

macro_rules! mirror {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                $($(#[$field_doc])* #[allow(missing_docs, reason = "named as in the header")] pub $field: $type),*
            }
        )*
    };
}

/// An error owned by the runtime.
#[repr(C)]
#[derive(Debug)]
pub struct Error {
    opaque: [u8; 0],
}

/// Context of one execution of a program.
#[repr(C)]
#[derive(Debug)]
pub struct ExecutionContext {
    opaque: [u8; 0],
}

/// A handler as XLA calls it.
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut Error;
/// A task of the runtime's thread pool.
pub type Task = unsafe extern "C" fn(*mut c_void);
/// A function of the API that this crate does not call.
pub type Unused = Option<unsafe extern "C" fn()>;

mirror! {
    /// Head of every extension: a linked list.
    ExtensionBase { struct_size: usize, kind: c_int, next: *mut ExtensionBase }

    /// Version of the API, or of what a handler was compiled for.
    ApiVersion { struct_size: usize, extension_start: *mut ExtensionBase, major_version: c_int, minor_version: c_int }

    /// Properties of a handler. Newer runtimes append fields.
    Metadata { struct_size: usize, api_version: ApiVersion, traits: u32 }

    /// Extension of a call that requests metadata instead of execution.
    MetadataExtension { extension_base: ExtensionBase, metadata: *mut Metadata }

    /// A dense row-major array.
    Buffer {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        dtype: c_int,
        data: *mut c_void,
        rank: i64,
        dims: *mut i64,
    }

    /// A string without terminator.
    ByteSpan { ptr: *const c_char, len: usize }

    /// A scalar attribute.
    Scalar { dtype: c_int, value: *mut c_void }

    /// An array attribute.
    Array { dtype: c_int, size: usize, data: *mut c_void }

    /// Operands.
    Args {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        size: i64,
        types: *mut c_int,
        args: *mut *mut c_void,
    }

    /// Results.
    Rets {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        size: i64,
        types: *mut c_int,
        rets: *mut *mut c_void,
    }

    /// Attributes, sorted by name.
    Attrs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        size: i64,
        types: *mut c_int,
        names: *mut *mut ByteSpan,
        attrs: *mut *mut c_void,
    }

    /// One call of a handler.
    CallFrame {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        api: *const Api,
        ctx: *mut ExecutionContext,
        stage: c_int,
        args: Args,
        rets: Rets,
        attrs: Attrs,
    }

    /// Arguments of [`Api::error_create`].
    ErrorCreateArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        message: *const c_char,
        errc: c_int,
    }

    /// Arguments of [`Api::error_destroy`].
    ErrorDestroyArgs { struct_size: usize, extension_start: *mut ExtensionBase, error: *mut Error }

    /// Arguments of [`Api::error_get_message`]. Runtimes from API 0.4 on add a code if `struct_size` has room.
    ErrorGetMessageArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        error: *mut Error,
        message: *const c_char,
    }

    /// Arguments of [`Api::stream_get`].
    StreamGetArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        ctx: *mut ExecutionContext,
        stream: *mut c_void,
    }

    /// Arguments of [`Api::device_memory_allocate`].
    DeviceMemoryAllocateArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        ctx: *mut ExecutionContext,
        size: usize,
        alignment: usize,
        data: *mut c_void,
    }

    /// Arguments of [`Api::device_memory_free`].
    DeviceMemoryFreeArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        ctx: *mut ExecutionContext,
        size: usize,
        data: *mut c_void,
    }

    /// Arguments of [`Api::run_id_get`].
    RunIdGetArgs { struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, run_id: i64 }

    /// Arguments of [`Api::device_ordinal_get`].
    DeviceOrdinalGetArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        ctx: *mut ExecutionContext,
        device_ordinal: i32,
    }

    /// Arguments of [`Api::thread_pool_schedule`].
    ThreadPoolScheduleArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        ctx: *mut ExecutionContext,
        task: Option<Task>,
        data: *mut c_void,
    }

    /// Arguments of [`Api::thread_pool_num_threads`].
    ThreadPoolNumThreadsArgs {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        ctx: *mut ExecutionContext,
        num_threads: *mut i64,
    }

    /// Functions of the runtime, up to the last one called here. The table of runtimes older than API 0.3 ends before
    /// `future_create`, see `struct_size`.
    Api {
        struct_size: usize,
        extension_start: *mut ExtensionBase,
        api_version: ApiVersion,
        internal_api: *const c_void,
        error_create: Option<unsafe extern "C" fn(*mut ErrorCreateArgs) -> *mut Error>,
        error_get_message: Option<unsafe extern "C" fn(*mut ErrorGetMessageArgs)>,
        error_destroy: Option<unsafe extern "C" fn(*mut ErrorDestroyArgs)>,
        handler_register: Unused,
        stream_get: Option<unsafe extern "C" fn(*mut StreamGetArgs) -> *mut Error>,
        type_register: Unused,
        execution_context_get: Unused,
        state_set: Unused,
        state_get: Unused,
        device_memory_allocate: Option<unsafe extern "C" fn(*mut DeviceMemoryAllocateArgs) -> *mut Error>,
        device_memory_free: Option<unsafe extern "C" fn(*mut DeviceMemoryFreeArgs) -> *mut Error>,
        thread_pool_schedule: Option<unsafe extern "C" fn(*mut ThreadPoolScheduleArgs) -> *mut Error>,
        thread_pool_num_threads: Option<unsafe extern "C" fn(*mut ThreadPoolNumThreadsArgs) -> *mut Error>,
        future_create: Unused,
        future_set_available: Unused,
        future_set_error: Unused,
        run_id_get: Option<unsafe extern "C" fn(*mut RunIdGetArgs) -> *mut Error>,
        device_ordinal_get: Option<unsafe extern "C" fn(*mut DeviceOrdinalGetArgs) -> *mut Error>,
    }
}

// The ABI on every 64-bit platform that jaxlib has wheels for.
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<ExtensionBase>() == 24);
    assert!(size_of::<ApiVersion>() == 24);
    assert!(offset_of!(Metadata, traits) == 32);
    assert!(size_of::<Buffer>() == 48 && offset_of!(Buffer, dims) == 40);
    assert!(size_of::<Array>() == 24 && size_of::<Scalar>() == 16 && size_of::<ByteSpan>() == 16);
    assert!(size_of::<Args>() == 40 && size_of::<Rets>() == 40 && size_of::<Attrs>() == 48);
    assert!(size_of::<CallFrame>() == 168 && offset_of!(CallFrame, args) == 40);
    assert!(offset_of!(Api, error_create) == 48 && offset_of!(Api, thread_pool_num_threads) == 144);
    assert!(offset_of!(Api, device_ordinal_get) == 184);
};
