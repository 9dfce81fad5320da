//! Passes of cuFFT over the slabs of one GPU.

use super::exchange::Rows;
use super::job::Job;
use super::node::{Node, SharedPlan, lock};
use super::slabs::Slabs;
use crate::cuda::cufft::{Kind, Layout};
use crate::cuda::{Result, Stream};
use core::ffi::c_void;
use core::ptr::null_mut;

/// Plans and parameters of the passes.
pub(super) struct Passes<'a> {
    pub(super) slabs: &'a Slabs,
    pub(super) stream: Stream,
    /// Index of the slab on this GPU.
    pub(super) rank: usize,
    pub(super) inverse: bool,
    sign: i64,
    work: *mut c_void,
    /// Transform along y and z of one piece.
    planes: SharedPlan,
    /// Transform along x of one band; none if left to the caller.
    lines: Option<SharedPlan>,
}

impl<'a> Passes<'a> {
    pub(super) fn new(
        node: &Node,
        slabs: &'a Slabs,
        job: &Job,
        memory: impl FnOnce(usize) -> Result<*mut c_void>,
    ) -> Result<Self> {
        node.enter()?;
        job.participant.enable_access(node)?;
        let [_, ny, nz] = slabs.field_block();
        let nk = slabs.shape[2];
        let (field, spectrum) = (ny * nz, ny * nk);
        let (kind, distances) = match (slabs.real, job.inverse) {
            (None, _) => (Kind::C2C, [field, field]),
            (Some(_), false) => (Kind::R2C, [field, spectrum]),
            (Some(_), true) => (Kind::C2R, [spectrum, field]),
        };
        let planes = Layout { dims: vec![ny, nz], stride: 1, distances, batch: slabs.planes() };
        let planes = node.plan(kind, slabs.double, planes)?;
        let lines = if job.planes_only { None } else { Some(plan_along_x(node, slabs)?) };
        let work_bytes =
            [Some(&planes), lines.as_ref()].into_iter().flatten().map(|plan| lock(plan).work_bytes()).max();
        let work_bytes = work_bytes.unwrap_or(0);
        let work = if work_bytes > 0 { memory(work_bytes)? } else { null_mut() };
        let (stream, rank) = (node.stream(job.participant.stream), job.participant.rank);
        Ok(Self { slabs, stream, rank, inverse: job.inverse, sign: job.sign, work, planes, lines })
    }

    /// Transforms the planes of one piece along y and z.
    ///
    /// # Safety
    /// `from` and `to` are slabs divided along x.
    pub(super) unsafe fn piece(&self, piece: i64, from: *mut c_void, to: *mut c_void) -> Result<()> {
        let [_, ny, nz] = self.slabs.field_block();
        let values = (piece * self.slabs.planes() * ny) as usize;
        let field = values * nz as usize * self.slabs.field_item();
        let spectrum = values * self.slabs.shape[2] as usize * self.slabs.item();
        let (before, after) = if self.inverse { (spectrum, field) } else { (field, spectrum) };
        // SAFETY: by contract; the lock excludes other threads.
        unsafe {
            lock(&self.planes).run(self.stream.raw(), self.work, offset(from, before), offset(to, after), self.sign)
        }
    }

    /// Transforms one band along x, or moves it where the transform is left to the caller.
    ///
    /// # Safety
    /// `from` and `to` are slabs divided along y.
    pub(super) unsafe fn band(&self, band: i64, from: *mut c_void, to: *mut c_void) -> Result<()> {
        let width = (self.slabs.lines() * self.slabs.shape[2]) as usize * self.slabs.item();
        let start = band as usize * width;
        let (from, to) = (offset(from, start), offset(to, start));
        let Some(lines) = &self.lines else {
            let [height, pitch] = [self.slabs.shape[0] as usize, self.slabs.bands as usize * width];
            let rows = Rows { offsets: [0; 2], pitches: [pitch; 2], width, height };
            if from != to {
                // SAFETY: by contract.
                unsafe { self.stream.copy(&rows.copy(from as usize, to as usize)) }?;
            }
            return Ok(());
        };
        // SAFETY: as above.
        unsafe { lock(lines).run(self.stream.raw(), self.work, from, to, self.sign) }
    }

    /// Transforms all bands along x.
    ///
    /// # Safety
    /// As for [`Self::band`].
    pub(super) unsafe fn along_x(&self, from: *mut c_void, to: *mut c_void) -> Result<()> {
        // SAFETY: by contract.
        (0..self.slabs.bands).try_for_each(|band| unsafe { self.band(band, from, to) })
    }
}

/// Whether cuFFT's strided transform along x needs no work area. It takes one or two passes for such lengths; for others it
/// reaches a tenth of the speed.
///
/// # Errors
/// cuFFT's own.
pub fn is_fast_along_x(node: &Node, slabs: &Slabs) -> Result<bool> {
    node.enter()?;
    let plan = plan_along_x(node, slabs)?;
    let work_bytes = lock(&plan).work_bytes();
    Ok(work_bytes == 0)
}

/// Plan of the transform of one band.
fn plan_along_x(node: &Node, slabs: &Slabs) -> Result<SharedPlan> {
    let [nx, lines, nk] = slabs.spectrum_block();
    let layout = Layout { dims: vec![nx], stride: lines * nk, distances: [1, 1], batch: slabs.lines() * nk };
    node.plan(Kind::C2C, slabs.double, layout)
}

pub(super) fn offset(pointer: *mut c_void, bytes: usize) -> *mut c_void {
    pointer.wrapping_byte_add(bytes)
}
