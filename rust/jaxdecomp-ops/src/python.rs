//! Python module: capsules for `jax.ffi.register_ffi_target`, and explicit set-up of libraries.

use crate::cic;
use crate::cuda;
use crate::cudecomp::{self, Error, Grid, Member};
use crate::fft;
use crate::friends;
use crate::stencil;
use core::ffi::CStr;
use core::ptr::NonNull;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict};
use std::path::PathBuf;
use xla_ffi::Threads;
use xla_ffi::sys::Handler;

/// Version of what targets and functions expect: raised with each change that callers written before would get wrong.
const INTERFACE: u32 = 6;

/// Name of XLA's capsules.
const CAPSULE: &CStr = c"xla._CUSTOM_CALL_TARGET";

/// FFI targets of a platform ("cpu" or "CUDA") for `jax.ffi.register_ffi_target`: capsules, or dictionaries of them by stage.
#[pyfunction]
fn targets<'py>(py: Python<'py>, platform: &str) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let handlers: &[(&str, Handler)] = match platform {
        "cpu" => &[&cic::handlers::CPU[..], &cic::steps::CPU, &fft::handlers::CPU, &stencil::handlers::CPU].concat(),
        "CUDA" => &[&cudecomp::handlers::CUDA[..], peer::HANDLERS].concat(),
        _ => &[],
    };
    for &(name, handler) in handlers {
        dict.set_item(name, capsule(py, handler)?)?;
    }
    let kernels = [&cic::cuda::targets()[..], peer::KERNELS, &stencil::handlers::CUDA].concat();
    for (name, [initialize, execute]) in kernels.into_iter().filter(|_| platform == "CUDA") {
        let stages = PyDict::new(py);
        stages.set_item("initialize", capsule(py, initialize)?)?;
        stages.set_item("execute", capsule(py, execute)?)?;
        dict.set_item(name, stages)?;
    }
    Ok(dict)
}

fn capsule(py: Python<'_>, handler: Handler) -> PyResult<Bound<'_, PyCapsule>> {
    let pointer = NonNull::new(handler as *mut core::ffi::c_void);
    let pointer = pointer.ok_or_else(|| PyRuntimeError::new_err("a handler has no address"))?;
    // SAFETY: functions live as long as the process.
    unsafe { PyCapsule::new_with_pointer(py, pointer, CAPSULE) }
}

/// Fail with `OSError` unless CUDA's driver and NVRTC load and support the GPUs; keep kernels in a folder.
#[pyfunction]
#[pyo3(signature = (devices, nvrtc, folder=None))]
#[allow(clippy::needless_pass_by_value, reason = "pyo3 converts lists to vectors")]
fn cic_probe(py: Python<'_>, devices: Vec<i32>, nvrtc: Vec<String>, folder: Option<PathBuf>) -> PyResult<()> {
    py.detach(|| cuda::gpus::probe(&devices, &nvrtc, folder)).map_err(|error| PyOSError::new_err(error.0))
}

/// Friends-of-friends groups: the least index in the group of each point, as the bytes of 32-bit integers.
///
/// Points are a buffer of coordinates in single or double precision, three a point, see [`friends::friends`].
#[pyfunction]
fn friends_of_friends<'py>(
    py: Python<'py>,
    points: &Bound<'py, PyAny>,
    sides: [f64; 3],
    length: f64,
) -> PyResult<Bound<'py, PyBytes>> {
    match PyBuffer::<f32>::get(points) {
        Ok(single) => labels(&single, py, sides, length),
        Err(_) => labels(&PyBuffer::<f64>::get(points)?, py, sides, length),
    }
}

fn labels<'py, T: friends::Coordinate + Element>(
    coordinates: &PyBuffer<T>,
    py: Python<'py>,
    sides: [f64; 3],
    length: f64,
) -> PyResult<Bound<'py, PyBytes>> {
    let points = vectors(coordinates)?;
    let found = py.detach(|| friends::friends(points, sides, length, &all_threads())).map_err(PyValueError::new_err)?;
    bytes(py, found.len(), found.into_iter().map(i32::to_ne_bytes))
}

/// Centre, mean velocity and core of groups, as the bytes of nine numbers in double precision for each.
///
/// Buffers of points, velocities in single precision, and the first point of each group: see [`friends::moments`].
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "pyo3 converts buffers")]
fn group_moments<'py>(
    py: Python<'py>,
    points: &Bound<'py, PyAny>,
    velocities: PyBuffer<f32>,
    starts: PyBuffer<i64>,
    sides: [f64; 3],
) -> PyResult<Bound<'py, PyBytes>> {
    let starts: Vec<_> =
        starts.to_vec(py)?.into_iter().map(|start| usize::try_from(start).unwrap_or(usize::MAX)).collect();
    let velocities = vectors(&velocities)?;
    match PyBuffer::<f32>::get(points) {
        Ok(single) => moments(py, vectors(&single)?, velocities, &starts, sides),
        Err(_) => moments(py, vectors(&PyBuffer::<f64>::get(points)?)?, velocities, &starts, sides),
    }
}

fn moments<'py, T: friends::Coordinate>(
    py: Python<'py>,
    points: &[[T; 3]],
    velocities: &[[f32; 3]],
    starts: &[usize],
    sides: [f64; 3],
) -> PyResult<Bound<'py, PyBytes>> {
    let found = py
        .detach(|| friends::moments::moments(points, velocities, starts, sides, &all_threads()))
        .map_err(PyValueError::new_err)?;
    let numbers = found.as_flattened().as_flattened();
    bytes(py, numbers.len(), numbers.iter().map(|number| number.to_ne_bytes()))
}

fn all_threads() -> Threads {
    Threads(std::thread::available_parallelism().map_or(1, usize::from))
}

/// Vectors of a buffer of coordinates, three of each.
fn vectors<T: Element>(coordinates: &PyBuffer<T>) -> PyResult<&[[T; 3]]> {
    if !coordinates.is_c_contiguous() || coordinates.item_count() % 3 != 0 {
        return Err(PyValueError::new_err("coordinates must be contiguous, three a point"));
    }
    match NonNull::new(coordinates.buf_ptr().cast()) {
        // SAFETY: the buffer is that many coordinates in a row, held by its exporter; the caller does not write to it.
        Some(first) => Ok(unsafe { core::slice::from_raw_parts(first.as_ptr(), coordinates.item_count() / 3) }),
        None => Ok(&[]),
    }
}

/// Numbers of N bytes each, in a row.
fn bytes<const N: usize>(
    py: Python<'_>,
    count: usize,
    numbers: impl Iterator<Item = [u8; N]>,
) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, N * count, |bytes| {
        bytes.chunks_exact_mut(N).zip(numbers).for_each(|(bytes, number)| bytes.copy_from_slice(&number));
        Ok(())
    })
}

/// Fail with `OSError` unless cuDecomp and CUDA's driver load.
#[pyfunction]
fn cudecomp_probe(py: Python<'_>, library: &str) -> PyResult<()> {
    py.detach(|| cudecomp::probe(library)).map_err(PyOSError::new_err)
}

/// Start cuDecomp. Collective over the communicator, given by its Fortran handle.
#[pyfunction]
fn cudecomp_open(
    py: Python<'_>,
    library: &str,
    device: i32,
    communicator: i32,
    rank: i64,
    num_processes: i64,
) -> PyResult<()> {
    let member = Member { communicator, rank, num_processes };
    py.detach(|| cudecomp::open(library, device, member)).map_err(raised)
}

/// Create the descriptor of a grid, unless it exists. Collective.
#[pyfunction]
fn cudecomp_open_grid(
    py: Python<'_>,
    shape: [i64; 3],
    pdims: [i64; 2],
    comms: [i32; 2],
    item_bytes: usize,
    halo: i64,
) -> PyResult<()> {
    let grid = grid(shape, pdims, comms);
    py.detach(|| cudecomp::open_grid(&grid, item_bytes, halo)).map_err(raised)
}

/// Number of elements of scratch memory for a transpose, or for halos of a width, of an open grid.
#[pyfunction]
#[pyo3(signature = (shape, pdims, comms, halo=None))]
fn cudecomp_scratch(shape: [i64; 3], pdims: [i64; 2], comms: [i32; 2], halo: Option<i64>) -> PyResult<i64> {
    let grid = grid(shape, pdims, comms);
    cudecomp::with_session(|session| match halo {
        None => session.transpose_scratch(&grid),
        Some(halo) => session.halo_scratch(&grid, halo),
    })
    .map_err(raised)
}

/// Close cuDecomp, if it is open. Collective.
#[pyfunction]
fn cudecomp_close(py: Python<'_>) -> PyResult<()> {
    py.detach(cudecomp::close).map_err(raised)
}

fn grid(shape: [i64; 3], pdims: [i64; 2], [transpose_comm, halo_comm]: [i32; 2]) -> Grid {
    Grid { shape, pdims, transpose_comm, halo_comm }
}

/// `ValueError` for invalid arguments, equal on every process; `RuntimeError` where other processes may wait.
fn raised(error: Error) -> PyErr {
    match error {
        Error::InvalidArgument(message) => PyValueError::new_err(message),
        Error::Fatal(message) => PyRuntimeError::new_err(message),
    }
}

#[pymodule]
fn _jaxdecomp_ops(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INTERFACE", INTERFACE)?;
    module.add_function(wrap_pyfunction!(targets, module)?)?;
    module.add_function(wrap_pyfunction!(cic_probe, module)?)?;
    module.add_function(wrap_pyfunction!(friends_of_friends, module)?)?;
    module.add_function(wrap_pyfunction!(group_moments, module)?)?;
    module.add_function(wrap_pyfunction!(cudecomp_probe, module)?)?;
    module.add_function(wrap_pyfunction!(cudecomp_open, module)?)?;
    module.add_function(wrap_pyfunction!(cudecomp_open_grid, module)?)?;
    module.add_function(wrap_pyfunction!(cudecomp_scratch, module)?)?;
    module.add_function(wrap_pyfunction!(cudecomp_close, module)?)?;
    peer::add_to(module)
}

/// Handlers and functions of the feature `peer`.
#[cfg(all(feature = "peer", target_os = "linux"))]
mod peer {
    use crate::cuda;
    use crate::peer::{self, Slabs, filter::Lines, handlers};
    use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
    use pyo3::prelude::*;
    use xla_ffi::sys::Handler;

    pub(super) const HANDLERS: &[(&str, Handler)] = &handlers::CUDA;
    pub(super) const KERNELS: &[(&str, [Handler; 2])] = &handlers::KERNELS;

    /// Fail with `OSError` unless CUDA's driver and cuFFT load and the GPUs can access each other's memory.
    #[pyfunction]
    #[allow(clippy::needless_pass_by_value, reason = "pyo3 converts lists to vectors")]
    fn peer_probe(py: Python<'_>, devices: Vec<i32>, cufft: Vec<String>) -> PyResult<()> {
        py.detach(|| peer::probe(&devices, &cufft)).map_err(|error| PyOSError::new_err(error.0))
    }

    /// Join processes of one host, given by numbers, each with one GPU, that write into each other's memory.
    ///
    /// Fail with `OSError` unless they can. Collective; call `peer_probe` before.
    #[pyfunction]
    #[allow(clippy::needless_pass_by_value, reason = "pyo3 converts lists to vectors")]
    fn peer_join(py: Python<'_>, key: &str, processes: Vec<i32>, process: i32, device: i32) -> PyResult<()> {
        let joined = py.detach(|| peer::join_processes(key, &processes, process, device));
        joined.map_err(|error| PyOSError::new_err(error.0))
    }

    /// Return once this process has waited for one that has ended, which would go on forever.
    #[pyfunction]
    fn peer_watch(py: Python<'_>) {
        py.detach(peer::watch);
    }

    /// Whether a mesh of a length along x can be filtered by `jaxdecomp_ops_peer_filtered`. Call `cic_probe` before.
    #[pyfunction]
    fn peer_filters(length: usize, double: bool) -> PyResult<bool> {
        let shared = cuda::gpus::shared_memory().map_err(|error| PyOSError::new_err(error.0))?;
        Ok(Lines::new(length, double, 1).is_some_and(|lines| lines.fits(shared)))
    }

    /// Whether cuFFT transforms slabs of a complex mesh along x without a work area. Call `peer_probe` before.
    #[pyfunction]
    fn peer_is_fast_along_x(
        py: Python<'_>,
        device: i32,
        num_shards: i64,
        shape: [i64; 3],
        double: bool,
    ) -> PyResult<bool> {
        let no_slabs = || PyValueError::new_err(format!("{shape:?} are not slabs over {num_shards} GPUs"));
        let slabs = Slabs::new(num_shards, shape, None, double).ok_or_else(no_slabs)?;
        let outcome = py.detach(|| peer::is_fast_along_x(&*peer::node(device)?, &slabs));
        outcome.map_err(|error| PyRuntimeError::new_err(error.0))
    }

    pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add_function(wrap_pyfunction!(peer_probe, module)?)?;
        module.add_function(wrap_pyfunction!(peer_join, module)?)?;
        module.add_function(wrap_pyfunction!(peer_watch, module)?)?;
        module.add_function(wrap_pyfunction!(peer_filters, module)?)?;
        module.add_function(wrap_pyfunction!(peer_is_fast_along_x, module)?)
    }
}

/// Without the feature `peer`, and elsewhere than on Linux, there are none.
#[cfg(not(all(feature = "peer", target_os = "linux")))]
mod peer {
    use pyo3::prelude::*;
    use xla_ffi::sys::Handler;

    pub(super) const HANDLERS: &[(&str, Handler)] = &[];
    pub(super) const KERNELS: &[(&str, [Handler; 2])] = &[];

    #[allow(clippy::unnecessary_wraps, reason = "as with the feature")]
    pub(super) fn add_to(_: &Bound<'_, PyModule>) -> PyResult<()> {
        Ok(())
    }
}
