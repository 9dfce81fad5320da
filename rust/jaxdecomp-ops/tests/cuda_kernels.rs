//! Compilation of the CUDA kernels, which needs NVRTC but no GPU, and the cache of compiled kernels.
//!
//! NVRTC is searched among the wheels of $PYTHON (or `python3`), then by the loader. Without it the tests that compile pass with
//! a note, unless `PMWD_REQUIRE_NVRTC` is set.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "skipped tests are reported")]

mod fake_modules;

use fake_modules::{REFUSED, tables};
use jaxdecomp_ops::cic::cuda::variants::{self, Common};
use jaxdecomp_ops::cic::{Mask, Reduction, Spec};
use jaxdecomp_ops::cuda::cache::Cache;
use jaxdecomp_ops::cuda::kernel::{Compiler, Gpu, Variant};
use jaxdecomp_ops::cuda::nvrtc;
use jaxdecomp_ops::peer::filter::Lines;
use jaxdecomp_ops::stencil;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};
use xla_ffi::Dtype;

const VALUE: &[Mask] = &[[false; 3]];
const SLOPES: &[Mask] = &[[true, false, false], [false, true, false], [false, false, true]];

fn load() -> Option<nvrtc::Nvrtc> {
    let script = "import importlib.util as u, pathlib as p\n\
                  s = u.find_spec('nvidia')\n\
                  for f in s.submodule_search_locations if s else ():\n    \
                  print(*sorted(map(str, p.Path(f).glob('*/lib/libnvrtc.so.*[0-9]')), reverse=True), sep='\\n')";
    let python = env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let output = Command::new(python).args(["-c", script]).output().map(|output| output.stdout).unwrap_or_default();
    let found = String::from_utf8_lossy(&output).lines().map(str::to_owned).collect::<Vec<_>>();
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(str::to_owned);
    let loaded = nvrtc::load(&[found, names.to_vec()].concat());
    assert!(loaded.is_ok() || env::var_os("PMWD_REQUIRE_NVRTC").is_none(), "{loaded:?}");
    loaded.inspect_err(|error| eprintln!("skipped: {error}; pip install nvidia-cuda-nvrtc")).ok()
}

fn spec(num: i64, den: i64) -> Spec {
    Spec { spacing_num: [num; 3], spacing_den: [den; 3], origin: [0; 3], periodic: [true; 3], scale: [1.0; 3] }
}

fn filter(length: usize, double: bool, num_shards: i64) -> Variant {
    Lines::new(length, double, num_shards).expect("a length with a kernel").variant
}

/// Variants with every value of every macro, source by source.
fn all_variants() -> [Variant; 21] {
    let common = |dtype, masks, wide| Common { dtype, masks, wide };
    let (unit, finer) = (&spec(1, 1), &spec(3, 2));
    [
        variants::paint(common(Dtype::F32, VALUE, false), unit, true).variant,
        variants::paint(common(Dtype::F32, SLOPES, true), &spec(2, 1), false).variant,
        variants::paint(common(Dtype::F64, SLOPES, false), &spec(1, 2), false).variant,
        variants::force_transpose(common(Dtype::F32, VALUE, false), unit).variant,
        variants::force_transpose(common(Dtype::F32, VALUE, true), finer).variant,
        variants::force_transpose(common(Dtype::F32, VALUE, false), &spec(2, 1)).variant,
        variants::force_transpose(common(Dtype::F32, VALUE, true), &spec(5, 3)).variant,
        variants::read(common(Dtype::F32, VALUE, false), unit, 3, Reduction::None).variant,
        variants::read(common(Dtype::F64, SLOPES, true), finer, 1, Reduction::OverMasks).variant,
        variants::read(common(Dtype::F32, SLOPES, false), finer, 3, Reduction::OverFields).variant,
        variants::kick(common(Dtype::F32, VALUE, false), unit).variant,
        variants::kick(common(Dtype::F64, VALUE, true), finer).variant,
        variants::step_vjp(common(Dtype::F32, VALUE, false), unit, true, true).variant,
        variants::step_vjp(common(Dtype::F32, VALUE, true), finer, true, false).variant,
        variants::step_vjp(common(Dtype::F64, VALUE, false), unit, false, true).variant,
        stencil::variant(Dtype::F32, false),
        stencil::variant(Dtype::F64, true),
        filter(512, false, 1),
        filter(2048, false, 4),
        filter(105, true, 1),
        filter(1000, true, 2),
    ]
}

#[test]
fn kernels_compile_for_every_architecture() {
    let Some(nvrtc) = load() else { return };
    let compiler = Compiler { nvrtc, cache: None };
    // Every variant for one architecture, every source for each: no source distinguishes between these.
    let targets = ["sm_80", "sm_90", "sm_100"];
    for variants in all_variants().chunk_by(|a, b| a.source == b.source) {
        for n in 0..variants.len().max(targets.len()) {
            let target = targets[n % targets.len()];
            let image = compiler.image(target, &variants[n % variants.len()]).expect(target);
            assert!(image.starts_with(b"\x7fELF"), "{target}: machine code");
        }
    }
    let message = compiler.nvrtc.compile("#error no", "sm_90", &[]).expect_err("invalid source").0;
    assert!(message.contains("NVRTC_ERROR_COMPILATION") && message.contains("#error"), "{message}");
}

#[test]
fn newer_gpus_get_portable_code_and_older_ones_an_error() {
    let Some(nvrtc) = load() else { return };
    assert_eq!(nvrtc.target(90).as_deref(), Ok("sm_90"));
    let target = nvrtc.target(999).expect("portable code");
    assert!(target.starts_with("compute_"), "{target}");
    assert!(nvrtc.target(10).expect_err("too old").0.contains("not compute capability 10"));
    let compiler = Compiler { nvrtc, cache: None };
    let variant =
        variants::read(Common { dtype: Dtype::F32, masks: VALUE, wide: false }, &spec(1, 1), 1, Reduction::None)
            .variant;
    let ptx = compiler.image("compute_80", &variant).expect("PTX");
    assert!(ptx.ends_with(b"\0") && String::from_utf8_lossy(&ptx).contains(".entry read"));
}

/// An empty cache.
fn cache(name: &str) -> (Cache, PathBuf) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    (Cache::new(&folder), folder)
}

#[test]
fn the_cache_returns_what_was_stored() {
    let (cache, folder) = cache("stored");
    assert_eq!(cache.load("key"), None);
    for image in [b"image".as_slice(), b"", b"another"] {
        cache.store("key", image);
        assert_eq!(cache.load("key").as_deref(), Some(image));
    }
    assert_eq!(cache.load("other"), None);
    assert_eq!(fs::read_dir(folder).expect("the folder").count(), 1, "no partial files");
    // A file in place of the folder: nothing is stored, and nothing fails.
    let (unwritable, folder) = self::cache("unwritable");
    fs::write(folder, "a file").expect("writable");
    unwritable.store("key", b"image");
    assert_eq!(unwritable.load("key"), None);
}

#[test]
fn damaged_and_foreign_files_are_not_returned() {
    let (cache, _) = cache("damaged");
    cache.store("key", b"image of the key");
    let path = cache.path("key");
    let valid = fs::read(&path).expect("the file");
    for len in 0..valid.len() {
        fs::write(&path, &valid[..len]).expect("writable");
        assert_eq!(cache.load("key"), None, "torn after {len} bytes");
    }
    for position in 0..valid.len() {
        let mut changed = valid.clone();
        changed[position] ^= 1;
        fs::write(&path, changed).expect("writable");
        assert_eq!(cache.load("key"), None, "byte {position} is changed");
    }
    fs::write(&path, [&valid[..], b"more"].concat()).expect("writable");
    assert_eq!(cache.load("key"), None, "bytes are appended");
    cache.store("foreign", b"image of another key");
    fs::copy(cache.path("foreign"), &path).expect("writable");
    assert_eq!(cache.load("key"), None, "the file of another key");
    cache.store("key", b"image of the key");
    assert_eq!(fs::read(&path).expect("the file"), valid, "it is replaced");
}

#[test]
fn compilation_uses_and_repairs_the_cache() {
    let Some(nvrtc) = load() else { return };
    let (cache, folder) = cache("compiled");
    let compiler = Compiler { nvrtc, cache: Some(cache) };
    let variant = Variant { source: "extern \"C\" __global__ void f(int* x) { *x = VALUE; }", options: Vec::new() };
    let with = |value: i32| Variant { options: vec![format!("-DVALUE={value}")], ..variant.clone() };
    let image = compiler.image("sm_90", &with(1)).expect("it compiles");
    let file = fs::read_dir(&folder).expect("the folder").next().expect("a file").expect("readable").path();
    let valid = fs::read(&file).expect("the file");
    fs::write(&file, &valid[..valid.len() / 2]).expect("writable");
    assert_eq!(compiler.image("sm_90", &with(1)).as_ref(), Ok(&image), "compiled again");
    assert_eq!(fs::read(&file).expect("the file"), valid);
    assert_ne!(compiler.image("sm_90", &with(2)).as_ref(), Ok(&image), "other options");
    assert_ne!(compiler.image("sm_80", &with(1)).as_ref(), Ok(&image), "another target");
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 3);
}

#[test]
fn an_image_that_the_driver_refuses_is_compiled_again_once() {
    let Some(nvrtc) = load() else { return };
    let (cache, _) = cache("refused");
    let target = nvrtc.target(fake_modules::CAPABILITY).expect("a target");
    let compiler = Compiler { nvrtc, cache: Some(cache.clone()) };
    let variant = Variant { source: "extern \"C\" __global__ void f(int* x) { *x = 1; }", options: Vec::new() };
    let key = compiler.key(&target, &variant);
    let loads = |variant: &Variant| {
        let before = fake_modules::loads();
        let gpu = Gpu::new(tables(), 0).expect("a GPU");
        let outcome = gpu.module(&compiler, variant).map(drop);
        (outcome, fake_modules::loads() - before)
    };
    assert_eq!(loads(&variant), (Ok(()), 1), "compiled");
    let valid = cache.load(&key).expect("it is kept");
    assert_eq!(loads(&variant), (Ok(()), 1), "from the cache");
    cache.store(&key, REFUSED);
    assert_eq!(loads(&variant), (Ok(()), 2), "compiled again");
    assert_eq!(cache.load(&key), Some(valid), "and kept");
    // What was just compiled is not compiled again.
    fake_modules::refuse_all(true);
    let (outcome, count) = loads(&Variant { options: vec!["-DOTHER=1".to_owned()], ..variant });
    fake_modules::refuse_all(false);
    assert_eq!(count, 1);
    let message = outcome.expect_err("the driver refuses it").0;
    assert!(message.contains("cuModuleLoadData") && message.contains("CUDA error 200"), "{message}");
}
