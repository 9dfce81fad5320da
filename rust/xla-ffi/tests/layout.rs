//! Compares `sys` with the header of the installed jaxlib, by means of the C compiler.
//!
//! Needs `cc` and a Python with jax ($PYTHON, that of the active or the workspace's `.venv`, or `python3`). Without them
//! the test passes with a note, unless `XLA_FFI_REQUIRE_HEADER` is set.

#![allow(clippy::print_stderr, reason = "tests may say what they skip")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use xla_ffi::sys;

/// Head of the C program. Headers from API 0.4 on have new names for the same things.
const HEAD: &str = r#"#include <stdio.h>
#include "xla/ffi/api/c_api.h"
#if XLA_FFI_API_MINOR >= 4
#define XLA_FFI_Extension_Base XLA_FFI_InternalExtension
#define XLA_FFI_Error_GetMessage XLA_FFI_Error_GetDetails
#define XLA_FFI_Error_GetMessage_Args XLA_FFI_Error_GetDetails_Args
#define XLA_FFI_ExecutionContext_Get XLA_FFI_InvokeContext_Get
#endif
int main(void) {
"#;

/// A C expression and what Rust says it is.
type Fact = (String, usize);

macro_rules! facts {
    ($($rust:ident = $c:literal $size:tt { $($field:ident $(= $c_field:literal)?),* $(,)? })*) => {{
        let mut facts: Vec<Fact> = Vec::new();
        $(
            facts!(@size $size, facts, $rust, $c);
            $(
                #[allow(unused_mut, unused_assignments)]
                let mut name = stringify!($field);
                $(name = $c_field;)?
                facts.push((format!("offsetof({}, {name})", $c), std::mem::offset_of!(sys::$rust, $field)));
            )*
        )*
        facts
    }};
    // Structs that newer versions may extend are compared field by field only.
    (@size prefix, $facts:ident, $rust:ident, $c:literal) => {};
    (@size whole, $facts:ident, $rust:ident, $c:literal) => {
        $facts.push((format!("sizeof({})", $c), std::mem::size_of::<sys::$rust>()));
    };
}

fn layouts() -> Vec<Fact> {
    facts! {
        ExtensionBase = "XLA_FFI_Extension_Base" whole { struct_size, kind = "type", next }
        ApiVersion = "XLA_FFI_Api_Version" whole { struct_size, extension_start, major_version, minor_version }
        Metadata = "XLA_FFI_Metadata" prefix { struct_size, api_version, traits }
        MetadataExtension = "XLA_FFI_Metadata_Extension" whole { extension_base, metadata }
        Buffer = "XLA_FFI_Buffer" whole { struct_size, extension_start, dtype, data, rank, dims }
        ByteSpan = "XLA_FFI_ByteSpan" whole { ptr, len }
        Scalar = "XLA_FFI_Scalar" whole { dtype, value }
        Array = "XLA_FFI_Array" whole { dtype, size, data }
        Args = "XLA_FFI_Args" whole { struct_size, extension_start, size, types, args }
        Rets = "XLA_FFI_Rets" whole { struct_size, extension_start, size, types, rets }
        Attrs = "XLA_FFI_Attrs" whole { struct_size, extension_start, size, types, names, attrs }
        CallFrame = "XLA_FFI_CallFrame" prefix { struct_size, extension_start, api, ctx, stage, args, rets, attrs }
        ErrorCreateArgs = "XLA_FFI_Error_Create_Args" whole { struct_size, extension_start, message, errc }
        ErrorDestroyArgs = "XLA_FFI_Error_Destroy_Args" whole { struct_size, extension_start, error }
        ErrorGetMessageArgs = "XLA_FFI_Error_GetMessage_Args" prefix { struct_size, extension_start, error, message }
        StreamGetArgs = "XLA_FFI_Stream_Get_Args" whole { struct_size, extension_start, ctx, stream }
        ThreadPoolScheduleArgs = "XLA_FFI_ThreadPool_Schedule_Args" whole {
            struct_size, extension_start, ctx, task, data
        }
        ThreadPoolNumThreadsArgs = "XLA_FFI_ThreadPool_NumThreads_Args" whole {
            struct_size, extension_start, ctx, num_threads
        }
        DeviceMemoryAllocateArgs = "XLA_FFI_DeviceMemory_Allocate_Args" whole {
            struct_size, extension_start, ctx, size, alignment, data
        }
        DeviceMemoryFreeArgs = "XLA_FFI_DeviceMemory_Free_Args" whole { struct_size, extension_start, ctx, size, data }
        RunIdGetArgs = "XLA_FFI_RunId_Get_Args" whole { struct_size, extension_start, ctx, run_id }
        DeviceOrdinalGetArgs = "XLA_FFI_DeviceOrdinal_Get_Args" whole {
            struct_size, extension_start, ctx, device_ordinal
        }
        Api = "XLA_FFI_Api" prefix {
            struct_size,
            extension_start,
            api_version,
            internal_api,
            error_create = "XLA_FFI_Error_Create",
            error_get_message = "XLA_FFI_Error_GetMessage",
            error_destroy = "XLA_FFI_Error_Destroy",
            handler_register = "XLA_FFI_Handler_Register",
            stream_get = "XLA_FFI_Stream_Get",
            type_register = "XLA_FFI_Type_Register",
            execution_context_get = "XLA_FFI_ExecutionContext_Get",
            state_set = "XLA_FFI_State_Set",
            state_get = "XLA_FFI_State_Get",
            device_memory_allocate = "XLA_FFI_DeviceMemory_Allocate",
            device_memory_free = "XLA_FFI_DeviceMemory_Free",
            thread_pool_schedule = "XLA_FFI_ThreadPool_Schedule",
            thread_pool_num_threads = "XLA_FFI_ThreadPool_NumThreads",
            run_id_get = "XLA_FFI_RunId_Get",
            device_ordinal_get = "XLA_FFI_DeviceOrdinal_Get",
        }
    }
}

fn constants() -> Vec<Fact> {
    [
        ("XLA_FFI_API_MAJOR", sys::API_VERSION.0),
        ("XLA_FFI_Extension_Metadata", sys::EXTENSION_METADATA),
        ("XLA_FFI_ExecutionStage_EXECUTE", sys::STAGE_EXECUTE),
        ("XLA_FFI_ExecutionStage_INITIALIZE", sys::STAGE_INITIALIZE),
        ("XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE", sys::COMMAND_BUFFER_COMPATIBLE as i32),
        ("XLA_FFI_ArgType_BUFFER", sys::BUFFER),
        ("XLA_FFI_RetType_BUFFER", sys::BUFFER),
        ("XLA_FFI_AttrType_ARRAY", sys::ATTR_ARRAY),
        ("XLA_FFI_AttrType_SCALAR", sys::ATTR_SCALAR),
        ("XLA_FFI_DataType_S32", sys::dtype::S32),
        ("XLA_FFI_DataType_S64", sys::dtype::S64),
        ("XLA_FFI_DataType_F32", sys::dtype::F32),
        ("XLA_FFI_DataType_F64", sys::dtype::F64),
        ("XLA_FFI_DataType_C64", sys::dtype::C64),
        ("XLA_FFI_DataType_C128", sys::dtype::C128),
        ("XLA_FFI_Error_Code_INVALID_ARGUMENT", xla_ffi::Code::InvalidArgument as i32),
        ("XLA_FFI_Error_Code_INTERNAL", xla_ffi::Code::Internal as i32),
    ]
    .map(|(name, value)| (name.to_owned(), usize::try_from(value).expect("not negative")))
    .into()
}

#[test]
fn sys_agrees_with_the_installed_header() {
    let Some(include) = include_dir() else {
        assert!(env::var_os("XLA_FFI_REQUIRE_HEADER").is_none(), "no Python with jax, or no C compiler");
        eprintln!("skipped: no Python with jax, or no C compiler");
        return;
    };
    let facts: Vec<Fact> = layouts().into_iter().chain(constants()).collect();
    let expected = ask_compiler(&include, &facts);
    assert_eq!(expected.len(), facts.len(), "one line a fact");
    let wrong: Vec<String> = (facts.iter().zip(expected))
        .filter(|((_, rust), c)| rust != c)
        .map(|((what, rust), c)| format!("{what} is {c}, sys says {rust}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The include directory of jax, if there is also a C compiler.
fn include_dir() -> Option<PathBuf> {
    Command::new("cc").arg("--version").output().ok().filter(|cc| cc.status.success())?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pythons = [
        env::var_os("PYTHON").map(PathBuf::from),
        env::var_os("VIRTUAL_ENV").map(|venv| Path::new(&venv).join("bin/python")),
        Some(workspace.join(".venv/bin/python")),
        Some("python3".into()),
    ];
    pythons.into_iter().flatten().find_map(|python| {
        let script = "import jax; print(jax.ffi.include_dir())";
        let output =
            Command::new(python).args(["-c", script]).output().ok().filter(|output| output.status.success())?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    })
}

/// What the C compiler says the expressions are.
fn ask_compiler(include: &Path, facts: &[Fact]) -> Vec<usize> {
    let mut source = HEAD.to_owned();
    for (expression, _) in facts {
        writeln!(source, "  printf(\"%zu\\n\", (size_t)({expression}));").expect("strings can be written to");
    }
    source.push_str("  return 0;\n}\n");
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (dir.join("layout.c"), dir.join("layout"));
    fs::write(&file, source).expect("the target directory is writable");
    let compiled = Command::new("cc").arg("-I").arg(include).arg(&file).arg("-o").arg(&program).output();
    let compiled = compiled.expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(program).output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("digits");
    text.lines().map(|line| line.parse().expect("a number")).collect()
}
