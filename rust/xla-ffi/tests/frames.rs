//! Handlers called like XLA calls them, with a fake runtime.

use std::ffi::{CStr, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use xla_ffi::{Call, Dtype, Error, Parallel, Result, Role, sys};

/// Creates an error of the fake runtime, a boxed string.
unsafe extern "C" fn create_error(args: *mut sys::ErrorCreateArgs) -> *mut sys::Error {
    // SAFETY: the crate under test passes complete arguments.
    let message = unsafe { CStr::from_ptr((*args).message) };
    Box::into_raw(Box::new(message.to_str().expect("UTF-8").to_owned())).cast()
}

/// A pool whose every task runs on a thread of its own, later.
unsafe extern "C" fn schedule(args: *mut sys::ThreadPoolScheduleArgs) -> *mut sys::Error {
    // SAFETY: as above.
    let (task, data) = unsafe { ((*args).task.expect("a task"), (*args).data as usize) };
    std::thread::spawn(move || {
        // SAFETY: tasks take the data that was scheduled with them.
        unsafe { task(data as *mut c_void) }
    });
    null_mut()
}

unsafe extern "C" fn four_threads(args: *mut sys::ThreadPoolNumThreadsArgs) -> *mut sys::Error {
    // SAFETY: as above.
    unsafe { *(*args).num_threads = 4 };
    null_mut()
}

/// Calls `body` with operand f32[2, 3], result f32[3] and attributes `cells` = s64[2], `scale` = f32, `small` = s32[1].
fn call(body: fn(&Call<'_>) -> Result<()>) -> (std::result::Result<(), String>, Vec<f32>) {
    let (mut x, mut y) = (vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], vec![0.0_f32; 3]);
    let (mut x_dims, mut y_dims) = (vec![2_i64, 3], vec![3_i64]);
    let mut operand = buffer(&mut x, &mut x_dims);
    let mut result = buffer(&mut y, &mut y_dims);
    let (mut cells, mut small, mut scale) = ([7_i64, 8], [9_i32], 0.5_f32);
    let mut cells = sys::Array { dtype: sys::dtype::S64, size: 2, data: cells.as_mut_ptr().cast() };
    let mut small = sys::Array { dtype: sys::dtype::S32, size: 1, data: small.as_mut_ptr().cast() };
    let mut scale = sys::Scalar { dtype: sys::dtype::F32, value: (&raw mut scale).cast() };
    let mut names = ["cells", "scale", "small"].map(|n| sys::ByteSpan { ptr: n.as_ptr().cast(), len: n.len() });
    let mut names = names.each_mut().map(std::ptr::from_mut);
    let mut kinds = [sys::ATTR_ARRAY, sys::ATTR_SCALAR, sys::ATTR_ARRAY];
    let mut values = [(&raw mut cells).cast(), (&raw mut scale).cast(), (&raw mut small).cast::<c_void>()];
    let (mut arg, mut ret, mut kind) =
        ((&raw mut operand).cast::<c_void>(), (&raw mut result).cast::<c_void>(), sys::BUFFER);
    // SAFETY: null pointers and absent functions are values of all fields.
    let (mut api, mut frame): (sys::Api, sys::CallFrame) = unsafe { (zeroed(), zeroed()) };
    api.error_create = Some(create_error);
    api.thread_pool_schedule = Some(schedule);
    api.thread_pool_num_threads = Some(four_threads);
    frame.api = &raw const api;
    frame.stage = sys::STAGE_EXECUTE;
    (frame.args.size, frame.args.types, frame.args.args) = (1, &raw mut kind, &raw mut arg);
    (frame.rets.size, frame.rets.types, frame.rets.rets) = (1, &raw mut kind, &raw mut ret);
    frame.attrs.size = 3;
    (frame.attrs.types, frame.attrs.names, frame.attrs.attrs) =
        (kinds.as_mut_ptr(), names.as_mut_ptr(), values.as_mut_ptr());
    // SAFETY: a complete frame.
    let error = unsafe { xla_ffi::handle(&raw mut frame, Role::EXECUTE, body) };
    if error.is_null() {
        return (Ok(()), y);
    }
    // SAFETY: made by `create_error`.
    (Err(*unsafe { Box::from_raw(error.cast::<String>()) }), y)
}

fn buffer(data: &mut [f32], dims: &mut [i64]) -> sys::Buffer {
    sys::Buffer {
        struct_size: size_of::<sys::Buffer>(),
        extension_start: null_mut(),
        dtype: sys::dtype::F32,
        data: data.as_mut_ptr().cast(),
        rank: dims.len() as i64,
        dims: dims.as_mut_ptr(),
    }
}

fn message(body: fn(&Call<'_>) -> Result<()>) -> String {
    call(body).0.expect_err("an error")
}

#[test]
fn buffers_and_attributes_arrive() {
    let (outcome, y) = call(|call| {
        call.expect_arity(1, 1)?;
        let x = call.input(0, "x")?;
        assert_eq!((x.dims(), x.dtype()), ([2, 3].as_slice(), Dtype::F32));
        assert_eq!(call.integer_array("cells")?, [7, 8]);
        assert_eq!(call.integers("small")?, [9]);
        let [scale] = call.float_array("scale")?;
        let x = x.as_slice::<f32>()?;
        let mut y = call.output(0, "y")?;
        for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(&x[3..]) {
            *y = x * scale as f32;
        }
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
    assert_eq!(y, [2.0, 2.5, 3.0]);
}

#[test]
fn errors_say_what_was_expected_and_what_came() {
    let of_input = |body: fn(&Call<'_>) -> Result<()>, text: &str| assert_eq!(message(body), text);
    of_input(|call| call.expect_arity(2, 1), "expected 2 operands and 1 results, got 1 and 1");
    of_input(|call| call.input(0, "x")?.as_slice::<f64>().map(drop), "x: expected f64, got f32");
    of_input(|call| call.input(0, "x")?.expect_dims(&[3, 2]), "x: expected shape [3, 2], got [2, 3]");
    of_input(
        |call| call.input(0, "x")?.expect_rank::<3>("x, y, z").map(drop),
        "x: expected 3 axes (x, y, z), got shape [2, 3]",
    );
    of_input(|call| call.input(1, "w").map(drop), "'w': missing; the call has 1");
    of_input(|call| call.integers("origin").map(drop), "attribute 'origin' is missing");
    of_input(|call| call.integer_array::<3>("cells").map(drop), "attribute 'cells': expected 3 numbers, got 2");
    of_input(|call| call.integers("scale").map(drop), "attribute 'scale': expected integers (s64 or s32), got f32");
    of_input(|call| call.floats("cells").map(drop), "attribute 'cells': expected floats (f64 or f32), got s64");
    of_input(|_| Err(Error::invalid("no\0null")), "no null");
}

#[test]
fn a_result_has_one_owner() {
    let text = message(|call| {
        let _first = call.output(0, "y")?;
        call.output(0, "y").map(drop)
    });
    assert!(text.contains("'y' was taken before"), "{text}");
}

#[test]
fn panics_become_errors() {
    let text = message(|_| panic!("index {} is too large", 3));
    assert!(text.contains("index 3 is too large"), "{text}");
    let text = message(|call| {
        call.pool().run(10, &|mine| mine.for_each(|chunk| assert!(chunk != 5, "chunk five")));
        Ok(())
    });
    assert!(text.contains("chunk five"), "{text}");
}

#[test]
fn the_pool_does_every_chunk_before_it_returns() {
    for _ in 0..200 {
        let (outcome, _) = call(|call| {
            let done = AtomicUsize::new(0);
            assert_eq!(call.pool().threads(), 4);
            call.pool().run(50, &|mine| mine.for_each(|chunk| _ = done.fetch_add(chunk, SeqCst)));
            assert_eq!(done.load(SeqCst), 50 * 49 / 2);
            Ok(())
        });
        assert_eq!(outcome, Ok(()));
    }
}

#[test]
fn metadata_is_filled_in_without_work() {
    for (role, traits) in
        [(Role::EXECUTE, 0), (Role::RECORDABLE, sys::COMMAND_BUFFER_COMPATIBLE), (Role::INITIALIZE, 0)]
    {
        // SAFETY: null pointers are values of all fields.
        let (mut metadata, mut frame): (sys::Metadata, sys::CallFrame) = unsafe { (zeroed(), zeroed()) };
        metadata.traits = 7;
        let base = sys::ExtensionBase { struct_size: 0, kind: sys::EXTENSION_METADATA, next: null_mut() };
        let mut extension = sys::MetadataExtension { extension_base: base, metadata: &raw mut metadata };
        let mut other = sys::ExtensionBase { struct_size: 0, kind: 77, next: (&raw mut extension).cast() };
        frame.extension_start = &raw mut other;
        frame.stage = sys::STAGE_EXECUTE;
        // SAFETY: a frame that requests metadata has nothing else.
        let error = unsafe { xla_ffi::handle(&raw mut frame, role, |_| panic!("no work")) };
        assert!(error.is_null());
        let version = (metadata.api_version.major_version, metadata.api_version.minor_version);
        assert_eq!((version, metadata.traits), ((0, 1), traits));
    }
}

#[test]
fn handlers_run_at_their_stage_only() {
    for (role, own) in [(Role::EXECUTE, sys::STAGE_EXECUTE), (Role::INITIALIZE, sys::STAGE_INITIALIZE)] {
        for stage in 0..4 {
            // SAFETY: as above.
            let (mut api, mut frame): (sys::Api, sys::CallFrame) = unsafe { (zeroed(), zeroed()) };
            api.error_create = Some(create_error);
            (frame.api, frame.stage) = (&raw const api, stage);
            // SAFETY: a frame without operands.
            let error = unsafe { xla_ffi::handle(&raw mut frame, role, |_| Err(Error::invalid("it ran"))) };
            assert_eq!(error.is_null(), stage != own);
            if !error.is_null() {
                // SAFETY: made by `create_error`.
                drop(unsafe { Box::from_raw(error.cast::<String>()) });
            }
        }
    }
}
