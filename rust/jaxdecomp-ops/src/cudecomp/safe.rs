//! Session with cuDecomp: the handle of a process and its grid descriptors.
//!
//! Opening and closing are collective and explicit. There is no `Drop`: a destructor could run on one process only, and would
//! wait for the others forever.

use super::grid::{Grid, MEMORY_ORDER};
use super::result::{Error, Result, check, invalid_argument};
use super::sys::{Api, GridDescConfig, LAYOUT_VERSION, MpiQueries, Opaque, PencilInfo};
use crate::cuda::Device;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use std::collections::BTreeMap;

/// A process and its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Fortran handle of the MPI communicator.
    pub communicator: i32,
    /// Rank of this process.
    pub rank: i64,
    /// Size of the communicator.
    pub num_processes: i64,
}

/// Environment variable of the number of NVSHMEM's teams, and its default.
const MAX_TEAMS: &str = "NVSHMEM_MAX_TEAMS";
const DEFAULT_TEAMS: usize = 32;
/// Number of teams that NVSHMEM reserves, and of a descriptor (row and column).
const OWN_TEAMS: usize = 8;
const GRID_TEAMS: usize = 2;

pub(super) struct Descriptor {
    pub(super) raw: Opaque,
    /// Number of elements of a transpose's workspace.
    pub(super) transpose_workspace: i64,
    /// Address and size [bytes] of the workspace that the library allocates for NVSHMEM.
    pub(super) own: Option<(*mut c_void, usize)>,
}

/// A handle of cuDecomp and its descriptors.
pub struct Session {
    pub(super) api: Api,
    queries: MpiQueries,
    pub(super) device: Device,
    member: Member,
    pub(super) handle: Opaque,
    // Ordered, so that all processes destroy descriptors in the same order.
    grids: BTreeMap<Grid, Descriptor>,
    /// First fatal failure, after which the library must not be called.
    failure: Option<String>,
}

// SAFETY: library and CUDA accept calls from any thread; a lock serializes callers.
unsafe impl Send for Session {}

impl Session {
    /// Initialises cuDecomp. Collective over the communicator.
    ///
    /// # Errors
    /// Errors of the library and of CUDA, which are fatal.
    pub fn open(api: Api, queries: MpiQueries, device: Device, member: Member) -> Result<Self> {
        device.enter()?;
        device.synchronize()?;
        let mut handle = null_mut();
        // SAFETY: writes the handle.
        check("Init_F", unsafe { (api.init_f)(&raw mut handle, member.communicator) })
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self { api, queries, device, member, handle, grids: BTreeMap::new(), failure: None })
    }

    /// Process and communicator of the session.
    #[must_use]
    pub fn member(&self) -> Member {
        self.member
    }

    /// Creates the descriptor of a grid, unless it exists. Collective.
    ///
    /// `item_bytes` and `halo` determine the size of a workspace that the library allocates.
    ///
    /// # Errors
    /// An invalid grid, an unavailable backend, or a failure of the library.
    pub fn open_grid(&mut self, grid: &Grid, item_bytes: usize, halo: i64) -> Result<()> {
        self.expect_usable()?;
        grid.check(self.member.num_processes)?;
        grid.padded(halo)?;
        if grid.needs_mpi() && !self.mpi_is_cuda_aware() {
            return invalid_argument("the MPI library is not CUDA-aware; use NCCL");
        }
        if grid.needs_nvshmem() && !self.grids.contains_key(grid) {
            self.expect_teams()?;
        }
        // Communicators must not be created while XLA's collectives run.
        let ready = self.enter().and_then(|()| Ok(self.device.synchronize()?));
        let outcome = ready.and_then(|()| self.create(grid)).and_then(|()| self.own_workspace(grid, item_bytes, halo));
        self.record_failure(outcome)
    }

    /// Fails if NVSHMEM has no teams left: cuDecomp 0.7.0 then creates a descriptor that crashes.
    fn expect_teams(&self) -> Result<()> {
        let most = std::env::var(MAX_TEAMS).ok().and_then(|value| value.parse().ok()).unwrap_or(DEFAULT_TEAMS);
        let grids = self.grids.keys().filter(|grid| grid.needs_nvshmem()).count();
        if OWN_TEAMS + (grids + 1) * GRID_TEAMS <= most {
            return Ok(());
        }
        invalid_argument(format!(
            "{grids} descriptors use all teams of NVSHMEM; set {MAX_TEAMS} above {most} before cuDecomp is opened, or close it"
        ))
    }

    pub(super) fn enter(&self) -> Result<()> {
        Ok(self.device.enter()?)
    }

    fn create(&mut self, grid: &Grid) -> Result<()> {
        if self.grids.contains_key(grid) {
            return Ok(());
        }
        let mut config = GridDescConfig::default();
        let size = size_of::<GridDescConfig>() as i64;
        // SAFETY: the struct has this size and version.
        let code = unsafe { (self.api.config_set_defaults)(&raw mut config, size, LAYOUT_VERSION) };
        check("GridDescConfigSetDefaults", code)?;
        grid.configure(&mut config);
        let mut raw = null_mut();
        // SAFETY: the handle is open; there are no options for autotuning.
        let code = unsafe {
            let (config, no_options) = (&raw mut config, core::ptr::null());
            (self.api.grid_create)(self.handle, &raw mut raw, config, size, LAYOUT_VERSION, no_options, 0, 0)
        };
        check("GridDescCreate", code)?;
        let mut transpose_workspace = 0;
        // SAFETY: handle and descriptor are open.
        let code = unsafe { (self.api.transpose_workspace)(self.handle, raw, &raw mut transpose_workspace) };
        check("GetTransposeWorkspaceSize", code)?;
        self.grids.insert(*grid, Descriptor { raw, transpose_workspace, own: None });
        // Another division would permute data silently.
        (0..3).try_for_each(|axis| self.expect_pencil(grid, raw, axis))
    }

    fn expect_pencil(&self, grid: &Grid, raw: Opaque, axis: usize) -> Result<()> {
        let Ok(expected) = grid.expected(axis, self.member.rank) else {
            return Ok(()); // the grid is for halos only
        };
        let mut info = PencilInfo::default();
        let (size, none) = (size_of::<PencilInfo>() as i64, core::ptr::null());
        // SAFETY: handle and descriptor are open; the struct is of this size and version.
        let code = unsafe {
            (self.api.pencil_info)(self.handle, raw, &raw mut info, size, LAYOUT_VERSION, axis as i32, none, none)
        };
        check("GetPencilInfo", code)?;
        let got = (info.shape, info.lo);
        if info.order == MEMORY_ORDER && got == expected {
            return Ok(());
        }
        let order = info.order;
        Err(Error::Fatal(format!(
            "pencil along axis {axis} of {grid:?}: expected shape and start {expected:?}, got {got:?} in order {order:?}"
        )))
    }

    /// Allocates the workspace for NVSHMEM, which sends only from its own memory.
    fn own_workspace(&mut self, grid: &Grid, item_bytes: usize, halo: i64) -> Result<()> {
        if !grid.needs_nvshmem() {
            return Ok(());
        }
        let halo_workspace = self.halo_workspace(grid, halo)?;
        let (api, handle) = (self.api, self.handle);
        let descriptor = self.descriptor_mut(grid)?;
        let bytes = descriptor.transpose_workspace.max(halo_workspace) as usize * item_bytes;
        if let Some((old, size)) = descriptor.own {
            if size >= bytes {
                return Ok(());
            }
            descriptor.own = None;
            // SAFETY: allocated below, for this descriptor.
            check("Free", unsafe { (api.free)(handle, descriptor.raw, old) })?;
        }
        let mut memory = null_mut();
        // SAFETY: handle and descriptor are open.
        check("Malloc", unsafe { (api.malloc)(handle, descriptor.raw, &raw mut memory, bytes) })?;
        descriptor.own = Some((memory, bytes));
        Ok(())
    }

    /// Number of elements of XLA's scratch memory for a transpose.
    ///
    /// # Errors
    /// If the grid is not open.
    pub fn transpose_scratch(&self, grid: &Grid) -> Result<i64> {
        let descriptor = self.descriptor(grid)?;
        Ok(if descriptor.own.is_some() { 0 } else { descriptor.transpose_workspace })
    }

    /// Number of elements of XLA's scratch memory for halos.
    ///
    /// # Errors
    /// If the grid is not open.
    pub fn halo_scratch(&self, grid: &Grid, halo: i64) -> Result<i64> {
        let own = self.descriptor(grid)?.own.is_some();
        if own { Ok(0) } else { self.halo_workspace(grid, halo) }
    }

    pub(super) fn halo_workspace(&self, grid: &Grid, halo: i64) -> Result<i64> {
        let (raw, extents, mut size) = (self.descriptor(grid)?.raw, grid.halo_extents(halo), 0);
        self.device.enter()?;
        // SAFETY: handle and descriptor are open.
        let code = unsafe { (self.api.halo_workspace)(self.handle, raw, 2, extents.as_ptr(), &raw mut size) };
        check("GetHaloWorkspaceSize", code)?;
        Ok(size)
    }

    /// Waits for the GPU and closes cuDecomp. Collective.
    ///
    /// # Errors
    /// Errors of the library and of CUDA.
    pub fn close(self) -> Result<()> {
        self.expect_usable()?;
        self.device.enter()?;
        self.device.synchronize()?;
        for descriptor in self.grids.values() {
            if let Some((memory, _)) = descriptor.own {
                // SAFETY: allocated for this descriptor.
                check("Free", unsafe { (self.api.free)(self.handle, descriptor.raw, memory) })?;
            }
            // SAFETY: open, and not used again.
            check("GridDescDestroy", unsafe { (self.api.grid_destroy)(self.handle, descriptor.raw) })?;
        }
        // SAFETY: as above.
        check("Finalize", unsafe { (self.api.finalize)(self.handle) })?;
        Ok(self.device.release()?)
    }

    /// Whether the MPI library says that it takes device memory: the alternative is a segmentation fault.
    #[must_use]
    pub fn mpi_is_cuda_aware(&self) -> bool {
        // SAFETY: takes no arguments.
        let cuda = self.queries.cuda.is_some_and(|query| unsafe { query() } == 1);
        cuda || self.queries.gpu.is_some_and(|query| {
            let mut supported = 0;
            // SAFETY: writes the answer; 0 asks for CUDA.
            unsafe { query(0, &raw mut supported) == 0 && supported != 0 }
        })
    }

    pub(super) fn descriptor(&self, grid: &Grid) -> Result<&Descriptor> {
        self.grids.get(grid).ok_or_else(|| not_open(grid))
    }

    fn descriptor_mut(&mut self, grid: &Grid) -> Result<&mut Descriptor> {
        self.grids.get_mut(grid).ok_or_else(|| not_open(grid))
    }

    pub(super) fn expect_usable(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(cause) => Err(Error::Fatal(format!("cuDecomp is unusable after an earlier failure: {cause}"))),
        }
    }

    pub(super) fn record_failure(&mut self, outcome: Result<()>) -> Result<()> {
        if let Err(Error::Fatal(cause)) = &outcome {
            self.failure.get_or_insert_with(|| cause.clone());
        }
        outcome
    }
}

fn not_open(grid: &Grid) -> Error {
    Error::InvalidArgument(format!("{grid:?} is not open; open it on every process before compiling the program"))
}
