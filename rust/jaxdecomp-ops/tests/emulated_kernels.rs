//! The CUDA kernels on threads of the host, under sanitizers of addresses and of threads: no access beyond a buffer, no race of
//! the threads of a block, and the right results, without a GPU.
//!
//! Needs a C++ compiler with these sanitizers, $CXX or `c++`. Without it the tests pass with a note, unless
//! `PMWD_REQUIRE_SANITIZERS` is set.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "skipped tests are reported")]

use jaxdecomp_ops::cic::cuda::variants::{self, Common};
use jaxdecomp_ops::cic::{Mask, Reduction, Spec};
use jaxdecomp_ops::cuda::kernel::Variant;
use jaxdecomp_ops::peer::filter::Lines;
use jaxdecomp_ops::stencil;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};
use xla_ffi::Dtype;

const VALUE: &[Mask] = &[[false; 3]];
const SLOPES: &[Mask] = &[[false; 3], [true, false, false], [false, true, true]];
/// Options of the compiler for each sanitizer, and arguments of the program: those that look for races take much longer.
const SANITIZERS: [(&str, &str, &[&str]); 2] =
    [("bounds", "-fsanitize=address,alignment", &[]), ("races", "-fsanitize=thread", &["few"])];
/// Functions in which threads race on purpose: all write the same value, or one that is read may be old.
const MEANT: &str = "race:raise_flag\nrace:glimpse\n";

fn compiler() -> OsString {
    env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// Whether programs with the sanitizers can be compiled and run here.
fn available() -> bool {
    static WORKS: LazyLock<bool> = LazyLock::new(probe);
    *WORKS
}

fn probe() -> bool {
    let folder = folder("probe");
    let source = folder.join("probe.cpp");
    fs::write(&source, "int main() {}").expect("writable");
    let works = SANITIZERS.iter().all(|(name, flag, _)| {
        let program = folder.join(name);
        let compiled = Command::new(compiler()).args(["-std=c++20", flag, "-o"]).arg(&program).arg(&source).output();
        compiled.is_ok_and(|output| output.status.success())
            && Command::new(&program).output().is_ok_and(|output| output.status.success())
    });
    assert!(works || env::var_os("PMWD_REQUIRE_SANITIZERS").is_none(), "no C++ compiler with sanitizers");
    if !works {
        eprintln!("skipped: no C++ compiler with sanitizers");
    }
    works
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("emulated").join(name);
    fs::create_dir_all(&folder).expect("writable");
    folder
}

fn spec(num: i64, den: i64) -> Spec {
    Spec { spacing_num: [num; 3], spacing_den: [den; 3], origin: [0; 3], periodic: [true; 3], scale: [1.0; 3] }
}

/// The source of variants, each in a namespace, with what remains of CUDA once it runs on the host.
fn translated(units: &[(&str, Variant)], program: &str) -> String {
    let mut text = "#include \"cuda.hpp\"\n".to_owned();
    for (name, variant) in units {
        for option in variant.options.iter().filter_map(|option| option.strip_prefix("-D")) {
            let (macro_name, value) = option.split_once('=').unwrap_or((option, "1"));
            writeln!(text, "#undef {macro_name}\n#define {macro_name} {value}").expect("a string");
        }
        let source =
            variant.source.replace("extern \"C\" __global__", "__global__").replace("extern __shared__", "extern");
        write!(
            text,
            "namespace {name} {{\n{source}\n#ifdef BX\nconstexpr int SITES[3] = {{BX, BY, BZ}};\n#endif\n}}\n"
        )
        .expect("a string");
    }
    writeln!(text, "#include \"{program}.cpp\"").expect("a string");
    text
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulated")
}

/// A call of the compiler with a sanitizer, for an output.
fn compile(flag: &str, output: &Path) -> Command {
    let mut compile = Command::new(compiler());
    compile.args([
        "-std=c++20",
        "-O1",
        "-g1",
        "-w",
        "-pthread",
        "-ffp-contract=off",
        flag,
        "-fno-sanitize-recover=all",
    ]);
    compile.arg("-o").arg(output);
    compile
}

/// Folders with `cuda.hpp` as the compiler has read it with each sanitizer: half of the time of a program.
static HEADERS: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    SANITIZERS.map(|(sanitizer, flag, _)| {
        let folder = folder("headers").join(sanitizer);
        fs::create_dir_all(&folder).expect("writable");
        let mut compile = compile(flag, &folder.join("cuda.hpp.gch"));
        let output = compile.args(["-x", "c++-header"]).arg(sources().join("cuda.hpp")).output().expect("a compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
});

/// Compiles and runs a program of `emulated/` with the kernels of some variants.
fn run(program: &str, name: &str, units: &[(&str, Variant)], (num, den): (i64, i64)) {
    let folder = folder(name);
    let (source, meant) = (folder.join("kernels.cpp"), folder.join("meant.txt"));
    fs::write(&source, translated(units, program)).expect("writable");
    fs::write(&meant, MEANT).expect("writable");
    for ((sanitizer, flag, arguments), headers) in SANITIZERS.iter().zip(&*HEADERS) {
        let binary = folder.join(sanitizer);
        let mut compile = compile(flag, &binary);
        compile.arg(format!("-DNUM={num}")).arg(format!("-DDEN={den}"));
        compile.arg("-I").arg(headers).arg("-I").arg(sources()).arg(&source);
        let output = compile.output().expect("a compiler");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let options = format!("suppressions={} halt_on_error=1", meant.display());
        let output = Command::new(&binary).args(*arguments).env("TSAN_OPTIONS", options).output().expect("a program");
        assert!(output.status.success(), "{name}, {sanitizer}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn paints() {
    if !available() {
        return;
    }
    let common = |dtype, masks| Common { dtype, masks, wide: false };
    let paint = |common, (num, den), shared| [("unit", variants::paint(common, &spec(num, den), shared).variant)];
    run("paint", "paint", &paint(common(Dtype::F32, VALUE), (1, 1), true), (1, 1));
    run("paint", "weighted_paint", &paint(common(Dtype::F32, SLOPES), (3, 2), false), (3, 2));
    run("paint", "double_paint", &paint(common(Dtype::F64, SLOPES), (1, 2), false), (1, 2));
    run("paint", "paint_on_finer", &paint(common(Dtype::F32, VALUE), (2, 1), false), (2, 1));
    run("paint", "masks_on_finer", &paint(common(Dtype::F32, SLOPES), (5, 3), true), (5, 3));
}

#[test]
fn transposes_of_the_force() {
    if !available() {
        return;
    }
    let common = Common { dtype: Dtype::F32, masks: VALUE, wide: false };
    for (program, num, den) in
        [("vectors", 1, 1), ("vectors", 3, 2), ("vectors", 1, 2), ("field_by_field", 2, 1), ("field_by_field", 5, 3)]
    {
        let units = [("unit", variants::force_transpose(common, &spec(num, den)).variant)];
        run(program, &format!("{program}_{num}_{den}"), &units, (num, den));
    }
}

#[test]
fn reads_and_steps() {
    if !available() {
        return;
    }
    let common = |dtype, masks| Common { dtype, masks, wide: false };
    let read = |common, (num, den), fields, reduction| {
        [("unit", variants::read(common, &spec(num, den), fields, reduction).variant)]
    };
    run("read", "read", &read(common(Dtype::F32, VALUE), (1, 1), 3, Reduction::None), (1, 1));
    run("read", "read_of_masks", &read(common(Dtype::F64, SLOPES), (3, 2), 1, Reduction::OverMasks), (3, 2));
    run("read", "read_of_fields", &read(common(Dtype::F32, SLOPES), (2, 1), 3, Reduction::OverFields), (2, 1));
    for (name, dtype, (num, den)) in
        [("steps", Dtype::F32, (1, 1)), ("steps_between", Dtype::F32, (3, 2)), ("double_steps", Dtype::F64, (1, 1))]
    {
        let (common, spec) = (common(dtype, VALUE), spec(num, den));
        let units = [
            ("forth", variants::kick(common, &spec).variant),
            ("back", variants::step_vjp(common, &spec, true, true).variant),
        ];
        run("steps", name, &units, (num, den));
    }
}

#[test]
fn gradients_and_filters() {
    if !available() {
        return;
    }
    run("gradient", "gradient", &[("unit", stencil::variant(Dtype::F32, false))], (1, 1));
    run("gradient", "double_gradient", &[("unit", stencil::variant(Dtype::F64, true))], (1, 1));
    for (length, double, num_shards) in [(16, false, 1), (64, false, 2), (105, true, 1), (140, false, 1), (48, true, 3)]
    {
        let lines = Lines::new(length, double, num_shards).expect("a length with a kernel");
        run("filter", &format!("filter_{length}"), &[("unit", lines.variant)], (1, 1));
    }
}
