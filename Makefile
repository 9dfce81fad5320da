# make demo   build everything, run the example simulation, say where its pictures are
# make test   build everything, check the code, run the first tier of the tests
# make test-all   the same with all tests
# make docs   build the documentation: site/index.html
# make packages       build wheels and sdists: dist/; TARGETS="x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu"
# make try-packages   install those in fresh environments and run a simulation: PYTHON=python3.12 JAX=0.11
# make third-party    write the licences of the dependencies anew, after they changed
#
# Needs python3 (3.11 or newer, with venv), cargo and a C compiler; the rest comes from PyPI and crates.io into .venv.
# Without cargo the demo runs in plain JAX.
# Another Python: make test PYTHON=python3.13. Arguments for pytest: make test PYTEST="tests/test_fft.py -k slab".

PYTHON ?= python3
VENV ?= .venv
# A test that ends its process fails, and another process goes on with the rest (with loadfile it is tried again and again).
PYTEST ?= -n auto --dist worksteal --max-worker-restart 2

BIN := $(VENV)/bin
STAMPS := $(VENV)/.make
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust/*/Cargo.toml rust/*/pyproject.toml rust/*/README.md rust/*/src \
	rust/*/python -type f -not -name '*.so' -not -name '*.pyc' 2>/dev/null)

CARGO := $(shell cargo --version 2>/dev/null)

# The test extra brings NVRTC where there is a wheel: there the CUDA kernels must compile, for which no GPU is needed.
REQUIRE_NVRTC := $(if $(filter Linux,$(shell uname -s)),PMWD_REQUIRE_NVRTC=1)

# What may take long ends by itself, also where no limit of a test applies, as while tests are collected.
LIMIT = $(if $(shell command -v timeout),timeout --kill-after=30s $(if $(TIER),60m,30m))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles the modules that are imported, once for all processes; pip would compile all of them.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL = $(BIN)/pip install --quiet --no-compile
export PYO3_PYTHON := $(abspath $(BIN))/python

.PHONY: demo test test-all docs packages try-packages third-party check-python check-rust test-rust tools rust-tools test-tools
.DELETE_ON_ERROR:

demo: $(STAMPS)/demo
	@$(if $(CARGO),,echo "no Rust (https://rustup.rs) for the native ops: the demo runs in plain JAX, slower")
	$(BIN)/pmwd-dist run sims/quickstart.toml --output demo --overwrite
	@echo; echo "The pictures:"; ls demo/*.png

test: test-tools
	@$(MAKE) --no-print-directory -j 2 check-python test-rust
	PATH="$(abspath $(BIN)):$$PATH" PMWD_REQUIRE_NATIVE=1 $(LIMIT) $(BIN)/pytest $(TIER) $(PYTEST)

test-all: TIER := --all
test-all: test

docs: $(STAMPS)/docs
	$(BIN)/mkdocs build --strict

# Zig links against the symbols of an old glibc, for other processors too: the wheel runs on every Linux of that glibc or
# newer. Other targets than this machine's need `rustup target add`.
TARGETS ?= $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
packages: $(STAMPS)/packaging | rust-tools
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	cd rust/jaxdecomp-ops && export PATH="$(abspath $(BIN)):$$PATH" && maturin sdist --out ../../dist && \
	for target in $(TARGETS); do \
		case $$target in *linux*) linux="--zig --compatibility manylinux2014";; *) linux=;; esac; \
		maturin build --release --locked $$linux --target $$target --out ../../dist || exit 1; \
	done
	$(BIN)/twine check --strict dist/*

JAX ?= 0.12
try-packages:
	packaging/try_packages.sh $(PYTHON) $(JAX)

third-party: $(STAMPS)/demo | rust-tools
	$(BIN)/python packaging/third_party.py

# Side by side: one compiles while the other downloads or checks.
check-python: $(STAMPS)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/stubtest jaxdecomp_ops

# Clippy finds the macros and build scripts of dependencies where the wheel was compiled.
check-rust: $(STAMPS)/wheel
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --all-features --locked -- -D warnings
	cargo clippy --release --package jaxdecomp-ops --no-default-features --features python --locked -- -D warnings
	cargo test --workspace --lib --tests --locked --no-run

test-rust: check-rust $(STAMPS)/test
	XLA_FFI_REQUIRE_HEADER=1 $(REQUIRE_NVRTC) PYTHON=$(PYO3_PYTHON) cargo test --workspace --lib --tests --locked
	cargo test --workspace --doc --locked

# What is installed is remembered by stamps in the virtual environment.
$(STAMPS)/demo: pyproject.toml $(STAMPS)/python-$(PYTHON_VERSION) $(if $(CARGO),$(STAMPS)/native)
	$(PIP_INSTALL) --editable .
	@touch $@

$(STAMPS)/docs: pyproject.toml $(STAMPS)/python-$(PYTHON_VERSION)
	$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(STAMPS)/test: $(STAMPS)/packages $(STAMPS)/native
	@touch $@ $(STAMPS)/demo

$(STAMPS)/packages: pyproject.toml $(STAMPS)/maturin
	$(PIP_INSTALL) --editable '.[test]'
	@touch $@

$(STAMPS)/native: $(STAMPS)/wheel
	$(PIP_INSTALL) --force-reinstall --no-deps $(STAMPS)/wheels/*.whl
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/maturin $(RUST_SOURCES) | rust-tools
	rm -rf $(STAMPS)/wheels
	$(BIN)/maturin build --quiet --release --locked --manifest-path rust/jaxdecomp-ops/Cargo.toml \
		--interpreter $(PYO3_PYTHON) --out $(STAMPS)/wheels
	@touch $@

$(STAMPS)/maturin: $(STAMPS)/python-$(PYTHON_VERSION)
	$(PIP_INSTALL) 'maturin>=1.9,<2'
	@touch $@

$(STAMPS)/packaging: $(STAMPS)/maturin
	$(PIP_INSTALL) build 'maturin[zig]>=1.9,<2' twine
	@touch $@

$(STAMPS)/python-$(PYTHON_VERSION): | tools
	@if [ -x $(BIN)/python ] && ! $(BIN)/python -c \
		'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(PYTHON_VERSION)")'; then \
		if [ ! -d $(STAMPS) ]; then echo "$(VENV) is of another Python: remove it, or make VENV=..." >&2; exit 1; fi; \
		rm -rf $(VENV); fi
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

tools:
	@missing=0; need() { echo "$$1" >&2; missing=1; }; \
	if [ -z "$(PYTHON_VERSION)" ]; then \
		need "$(PYTHON) not found: apt-get install python3 python3-venv, or make PYTHON=/path/to/python3.11"; \
	elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		need "$(PYTHON) is Python $(PYTHON_VERSION), older than 3.11: make PYTHON=/path/to/a/newer/python3"; \
	elif ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
		need "$(PYTHON) has no venv: apt-get install python3-venv"; \
	fi; \
	exit $$missing

rust-tools:
	@missing=0; need() { echo "$$1" >&2; missing=1; }; \
	if ! command -v cargo >/dev/null; then \
		need "cargo not found: install Rust $(RUST_VERSION) or newer, with rustup (https://rustup.rs)"; \
	elif ! cargo --version >/dev/null 2>&1; then \
		need "cargo has no toolchain that it can run: rustup default stable"; \
	elif [ "$$(printf '%s\n' "$(RUST_VERSION)" "$$(cargo --version | cut -d ' ' -f 2)" | sort -V | head -1)" \
		!= "$(RUST_VERSION)" ]; then \
		need "$$(cargo --version) is older than $(RUST_VERSION): rustup update, or install rustup (https://rustup.rs)"; \
	fi; \
	command -v cc >/dev/null || need "no C compiler (cc): apt-get install gcc libc6-dev"; \
	exit $$missing

test-tools: tools rust-tools
	@missing=0; for tool in clippy fmt; do cargo $$tool --version >/dev/null 2>&1 || \
		{ echo "cargo $$tool not found: rustup component add clippy rustfmt" >&2; missing=1; }; done; exit $$missing
