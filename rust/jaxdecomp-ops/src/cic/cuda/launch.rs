//! Launches of the kernels.

use super::variants::{self, Common, PaintVariant, ReadVariant};
use crate::cic::geometry::Spec;
use crate::cic::operands::{Extents, Particles, Reduction};
use crate::cic::real::{Real, ceil_log2};
use crate::cuda::kernel::{Compiler, Gpu, Module, arguments};
use crate::cuda::{Opaque, Result, gpus};
use core::ffi::{CStr, c_void};
use xla_ffi::{Call, Dtype, Error, Output};

/// Bytes of the head of the scratch memory: the largest weight of each field, and a flag of invalid values.
pub(super) const HEAD: usize = 4096;
/// Offset of the flag.
pub(super) const FLAG: usize = HEAD - 8;
/// Largest number of fields.
pub(crate) const MOST_FIELDS: usize = FLAG / 8;

/// `Geometry` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    num: [i64; 3],
    den: [i64; 3],
    origin: [i64; 3],
    sites: [i32; 3],
    cells: [i32; 3],
    periodic: [i32; 3],
    scale: [f64; 3],
    scale32: [f32; 3],
}

const _: () = assert!(size_of::<Geometry>() == 152 && core::mem::offset_of!(Geometry, scale) == 112);

impl Geometry {
    pub(super) fn new(spec: &Spec, extents: &Extents) -> Self {
        Self {
            num: spec.spacing_num,
            den: spec.spacing_den,
            origin: spec.origin,
            sites: extents.sites.map(|n| n as i32),
            cells: extents.cells.map(|n| n as i32),
            periodic: spec.periodic.map(i32::from),
            scale: spec.scale,
            scale32: spec.scale.map(|x| x as f32),
        }
    }
}

/// What all launches need.
pub(crate) struct Context<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) compiler: &'a Compiler,
    pub(crate) stream: Opaque,
    pub(crate) spec: &'a Spec,
    pub(crate) extents: &'a Extents,
    pub(crate) common: Common<'a>,
}

/// Device memory of a paint, for one element of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaintBuffers {
    pub(crate) disp: *const c_void,
    pub(crate) weight: *const c_void,
    pub(crate) mesh: *mut c_void,
    /// Memory of [`scratch_bytes`].
    pub(crate) scratch: *mut c_void,
}

/// Device memory of a paint that returns integer sums, for one element of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumsBuffers {
    pub(crate) disp: *const c_void,
    pub(crate) weight: *const c_void,
    /// What no weight exceeds.
    pub(crate) bound: *const c_void,
    pub(crate) sums: *mut c_void,
    /// Memory of [`HEAD`] bytes.
    pub(crate) head: *mut c_void,
}

/// Device memory of a read, for one element of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBuffers {
    pub(crate) disp: *const c_void,
    pub(crate) fields: *const c_void,
    pub(crate) weight: *const c_void,
    pub(crate) out: *mut c_void,
}

/// Device memory of a step of the particles, for one element of the batch: vectors, mesh and coefficients, and results.
#[derive(Clone, Debug)]
pub(crate) struct StepBuffers {
    pub(crate) inputs: Vec<*const c_void>,
    pub(crate) results: Vec<*mut c_void>,
    /// A few numbers for all particles.
    pub(crate) summary: *mut c_void,
    /// Memory of [`Context::partial_bytes`], or null.
    pub(crate) partial: *mut c_void,
}

/// Bytes of scratch memory of a paint: a head, and one sum (64 bits for f32, 128 for f64) for each cell.
pub(crate) fn scratch_bytes(dtype: Dtype, cells: usize) -> usize {
    HEAD + cells * sum_bytes(dtype)
}

pub(super) fn sum_bytes(dtype: Dtype) -> usize {
    2 * item(dtype)
}

/// Size of a value [bytes].
pub(crate) fn item(dtype: Dtype) -> usize {
    if dtype == Dtype::F64 { 8 } else { 4 }
}

/// Blocks of sites along z, y and x.
pub(super) fn blocks(sites: [usize; 3], block: [usize; 3]) -> [u32; 3] {
    [2, 1, 0].map(|axis| sites[axis].div_ceil(block[axis]) as u32)
}

impl Context<'_> {
    /// Compiles and loads the paint kernels.
    pub(crate) fn load_paint(&self, shared: bool) -> Result<()> {
        self.gpu.module(self.compiler, &variants::paint(self.common, self.spec, shared).variant).map(drop)
    }

    /// Compiles and loads the read kernel.
    pub(crate) fn load_read(&self, reduction: Reduction) -> Result<()> {
        self.gpu
            .module(self.compiler, &variants::read(self.common, self.spec, self.extents.fields, reduction).variant)
            .map(drop)
    }

    /// Paints one element of the batch, field by field.
    ///
    /// # Safety
    /// The buffers are device memory of the operands' extents.
    pub(crate) unsafe fn paint(&self, shared: bool, buffers: PaintBuffers) -> Result<()> {
        let PaintVariant { variant, block, threads } = variants::paint(self.common, self.spec, shared);
        let module = self.gpu.module(self.compiler, &variant)?;
        let Extents { sites, cells, fields, .. } = *self.extents;
        let (particles, masks) = (sites.iter().product::<usize>(), self.common.masks.len());
        let (cells, count) = (cells.iter().product::<usize>() as u64, fields as u32);
        let weights = (if shared { 1 } else { particles } * masks * fields) as u64;
        let bits = match self.common.dtype {
            Dtype::F64 => f64::contribution_bits(particles),
            _ => f32::contribution_bits(particles),
        } - ceil_log2(masks);
        let geometry = Geometry::new(self.spec, self.extents);
        let PaintBuffers { disp, weight, mesh, scratch: largest } = buffers;
        let (flag, sums) = (largest.wrapping_byte_add(FLAG), largest.wrapping_byte_add(HEAD));
        let share = cells.div_ceil(256).min(self.most_blocks().into()) as u32;
        // SAFETY: by contract; the arguments are those of the kernels.
        unsafe {
            self.largest(&module, weight, weights, count, largest)?;
            for field in 0..count {
                self.gpu.clear(sums, cells as usize * sum_bytes(self.common.dtype), self.stream)?;
                let mut arguments = arguments![geometry, disp, weight, count, field, bits, largest, sums, flag];
                module.launch_grid(c"paint", (blocks(sites, block), threads), 0, self.stream, &mut arguments)?;
                let mut arguments = arguments![sums, cells, count, field, bits, largest, flag, mesh];
                module.launch(c"finish", [share, 256], self.stream, &mut arguments)?;
            }
        }
        Ok(())
    }

    /// Paints the only field of one element of the batch to integers, with a number of bits for the contribution of a mask.
    ///
    /// # Safety
    /// The buffers are device memory of the operands' extents.
    pub(crate) unsafe fn paint_sums(&self, shared: bool, bits: i32, buffers: SumsBuffers) -> Result<()> {
        let PaintVariant { variant, block, threads } = variants::paint(self.common, self.spec, shared);
        let module = self.gpu.module(self.compiler, &variant)?;
        let Extents { sites, cells, .. } = *self.extents;
        let (cells, count, field) = (cells.iter().product::<usize>() as u64, 1u32, 0u32);
        let geometry = Geometry::new(self.spec, self.extents);
        let SumsBuffers { disp, weight, bound, sums, head: largest } = buffers;
        let flag = largest.wrapping_byte_add(FLAG);
        let share = cells.div_ceil(256).min(self.most_blocks().into()) as u32;
        // SAFETY: by contract; the arguments are those of the kernels.
        unsafe {
            self.largest(&module, bound, 1, count, largest)?;
            self.gpu.clear(sums, cells as usize * sum_bytes(self.common.dtype), self.stream)?;
            let mut arguments = arguments![geometry, disp, weight, count, field, bits, largest, sums, flag];
            module.launch_grid(c"paint", (blocks(sites, block), threads), 0, self.stream, &mut arguments)?;
            module.launch(c"invalidate", [share, 256], self.stream, &mut arguments![flag, cells, sums])
        }
    }

    /// Blocks of a kernel that goes over an array in strides.
    pub(super) fn most_blocks(&self) -> u32 {
        16 * self.gpu.multiprocessors()
    }

    /// Clears the head of the scratch memory and finds the largest of the `weights` of each field.
    ///
    /// # Safety
    /// The weights and the head are device memory of these sizes.
    pub(super) unsafe fn largest(
        &self,
        module: &Module,
        weight: *const c_void,
        weights: u64,
        fields: u32,
        head: *mut c_void,
    ) -> Result<()> {
        let flag = head.wrapping_byte_add(FLAG);
        // A multiple of the number of fields, so that each thread has one field.
        let most = u64::from(self.most_blocks().div_ceil(fields));
        let shares = (weights / (256 * 8 * u64::from(fields))).clamp(1, most) as u32;
        // SAFETY: by contract; the arguments are those of the kernel.
        unsafe {
            self.gpu.clear(head, HEAD, self.stream)?;
            let mut arguments = arguments![weight, weights, fields, head, flag];
            module.launch(c"largest", [shares * fields, 256], self.stream, &mut arguments)
        }
    }

    /// Reads one element of the batch.
    ///
    /// # Safety
    /// The buffers are device memory of the operands' extents.
    pub(crate) unsafe fn read(&self, reduction: Reduction, buffers: ReadBuffers) -> Result<()> {
        let ReadVariant { variant, block } = variants::read(self.common, self.spec, self.extents.fields, reduction);
        let module = self.gpu.module(self.compiler, &variant)?;
        let geometry = Geometry::new(self.spec, self.extents);
        let ReadBuffers { disp, fields, weight, out } = buffers;
        let grid = (blocks(self.extents.sites, block), block.iter().product::<usize>() as u32);
        let mut arguments = arguments![geometry, disp, fields, weight, out];
        // SAFETY: by contract; the arguments are those of the kernel.
        unsafe { module.launch_grid(c"read", grid, 0, self.stream, &mut arguments) }
    }

    /// Compiles and loads the kernel of a step.
    pub(crate) fn load_step(&self, kernel: StepKernel) -> Result<()> {
        self.gpu.module(self.compiler, &kernel.variant(self.common, self.spec).variant).map(drop)
    }

    /// Bytes of the sums of the blocks of a kernel.
    pub(crate) fn partial_bytes(&self, kernel: StepKernel) -> usize {
        let blocks = blocks(self.extents.sites, kernel.variant(self.common, self.spec).block);
        blocks.iter().map(|&n| n as usize).product::<usize>() * kernel.sums() * 8
    }

    /// Runs a step of the particles of one element of the batch.
    ///
    /// # Safety
    /// The buffers are device memory of the operands' extents.
    pub(crate) unsafe fn step(&self, kernel: StepKernel, resolution: f64, buffers: &StepBuffers) -> Result<()> {
        let ReadVariant { variant, block } = kernel.variant(self.common, self.spec);
        let module = self.gpu.module(self.compiler, &variant)?;
        let geometry = Geometry::new(self.spec, self.extents);
        let grid = (blocks(self.extents.sites, block), block.iter().product::<usize>() as u32);
        let last = if kernel.sums() == 0 { buffers.summary } else { buffers.partial };
        let mut arguments = arguments![geometry, resolution].to_vec();
        arguments.extend(buffers.inputs.iter().map(|pointer| (&raw const *pointer).cast_mut().cast::<c_void>()));
        arguments.extend(buffers.results.iter().map(|pointer| (&raw const *pointer).cast_mut().cast::<c_void>()));
        arguments.extend(arguments![last]);
        let (count, sums) = (grid.0.iter().map(|&n| u64::from(n)).product::<u64>(), kernel.sums() as u32);
        // SAFETY: by contract; the arguments are those of the kernels.
        unsafe {
            self.gpu.clear(buffers.summary, item(self.common.dtype) * kernel.numbers(), self.stream)?;
            module.launch_grid(kernel.name(), grid, 0, self.stream, &mut arguments)?;
            if sums > 0 && count > 0 {
                let mut arguments = arguments![last, count, buffers.summary];
                module.launch(c"total", [sums, 1024], self.stream, &mut arguments)?;
            }
        }
        Ok(())
    }
}

/// Calls `body` with the GPU of the call, after checking the extents.
pub(super) fn with_context(
    call: &Call<'_>,
    particles: &Particles<'_>,
    body: impl FnOnce(&Context<'_>) -> Result<()>,
) -> xla_ffi::Result<()> {
    let Particles { spec, masks, extents, disp } = particles;
    spec.check(extents.sites, extents.cells)?;
    let largest = extents.sites.iter().max().copied().unwrap_or(0);
    if i32::try_from(largest).is_err() || extents.sites.iter().product::<usize>() >= 1 << 36 {
        return Err(Error::invalid(format!("expected fewer than 2^36 particles a device, got {:?}", extents.sites)));
    }
    if extents.sites[..2].iter().any(|&n| n > 65535) {
        return Err(Error::invalid(format!("expected at most 65535 particles along x and y, got {:?}", extents.sites)));
    }
    let wide = u32::try_from(extents.cells.iter().product::<usize>() * extents.fields).is_err();
    let internal = |error: crate::cuda::Error| Error::internal(error.0);
    let (compiler, gpu) = (gpus::compiler().map_err(internal)?, gpus::gpu(call.device_ordinal()?).map_err(internal)?);
    let common = Common { dtype: disp.dtype(), masks, wide };
    body(&Context { gpu: &gpu, compiler, stream: call.stream()?, spec, extents, common }).map_err(internal)
}

/// Fails unless scratch memory has the type and the size that kernels need.
pub(super) fn check_scratch(scratch: &Output<'_>, bytes: usize) -> xla_ffi::Result<()> {
    let ([len], needed) = (scratch.expect_rank::<1>("element")?, bytes / 4);
    if scratch.dtype() == Dtype::S32 && len >= needed {
        return Ok(());
    }
    Err(Error::invalid(format!("scratch: expected {needed} of s32, got {len} of {}", scratch.dtype())))
}

/// A kernel that moves the particles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKernel {
    KickDrift,
    UndoKick,
    UndoDrift,
    /// `UndoDrift`, then `UndoKick`.
    UndoDriftAndKick,
}

impl StepKernel {
    fn variant(self, common: Common<'_>, spec: &Spec) -> ReadVariant {
        match self {
            Self::KickDrift => variants::kick(common, spec),
            Self::UndoKick => variants::step_vjp(common, spec, false, true),
            Self::UndoDrift => variants::step_vjp(common, spec, true, false),
            Self::UndoDriftAndKick => variants::step_vjp(common, spec, true, true),
        }
    }

    fn name(self) -> &'static CStr {
        match self {
            Self::KickDrift => c"kick_drift",
            Self::UndoKick | Self::UndoDrift | Self::UndoDriftAndKick => c"undo",
        }
    }

    /// Number of sums over the particles.
    pub(crate) fn sums(self) -> usize {
        match self {
            Self::KickDrift => 0,
            Self::UndoKick => 3,
            Self::UndoDrift => 1,
            Self::UndoDriftAndKick => 4,
        }
    }

    /// Size of the summary: the sums, or the largest displacement.
    pub(crate) fn numbers(self) -> usize {
        self.sums().max(1)
    }
}
