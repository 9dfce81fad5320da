//! Transforms along the strided axes of a field, tile by tile.

use super::Precision;
use core::marker::PhantomData;
use realfft::num_complex::Complex;
use rustfft::Fft;
use std::sync::Arc;
use xla_ffi::Parallel;

/// Bytes of a row of a tile: two cache lines.
const TILE: usize = 128;

/// A field of three axes, of which threads take parts that don't overlap.
pub(super) struct Field<'a, V> {
    start: *mut V,
    sides: [usize; 3],
    life: PhantomData<&'a mut [V]>,
}

// SAFETY: threads take disjoint parts, by the contracts of the functions that give them.
unsafe impl<V: Send> Sync for Field<'_, V> {}

impl<'a, V> Field<'a, V> {
    /// # Panics
    /// If the length is not that of the sides.
    pub(super) fn new(values: &'a mut [V], sides: [usize; 3]) -> Self {
        assert_eq!(values.len(), sides.iter().product::<usize>(), "a whole field");
        Self { start: values.as_mut_ptr(), sides, life: PhantomData }
    }

    /// A row along the last axis.
    ///
    /// # Safety
    /// No other thread has a part of it.
    #[allow(clippy::mut_from_ref, reason = "rows are disjoint")]
    pub(super) unsafe fn row(&self, x: usize, y: usize) -> &mut [V] {
        let [nx, ny, nz] = self.sides;
        assert!(x < nx && y < ny, "a row of the field");
        // SAFETY: it is inside, and not shared by contract.
        unsafe { core::slice::from_raw_parts_mut(self.start.add((x * ny + y) * nz), nz) }
    }
}

/// Memory of a thread.
pub(super) struct Scratch<T> {
    pub(super) real: Vec<T>,
    pub(super) complex: Vec<Complex<T>>,
    tile: Vec<Complex<T>>,
}

impl<T: Precision> Scratch<T> {
    fn new() -> Self {
        Self { real: Vec::new(), complex: Vec::new(), tile: Vec::new() }
    }
}

/// Function of (x, y, row of a field, memory of the thread).
pub(super) type OfRow<'a, T> = dyn Fn(usize, usize, &mut [Complex<T>], &mut Scratch<T>) + Sync + 'a;

/// Transforms each plane of constant x along y, if there is a plan, and calls a function of each row, before or after.
pub(super) fn planes<T: Precision>(
    field: &mut Field<'_, Complex<T>>,
    plan: Option<&Arc<dyn Fft<T>>>,
    pool: &dyn Parallel,
    rows_first: bool,
    of_row: &OfRow<'_, T>,
) {
    let [nx, ny, nk] = field.sides;
    let field = &*field;
    pool.run(nx, &|mine| {
        let mut scratch = Scratch::new();
        for x in mine {
            let rows = |scratch: &mut Scratch<T>| {
                for y in 0..ny {
                    // SAFETY: a plane belongs to one thread.
                    of_row(x, y, unsafe { field.row(x, y) }, scratch);
                }
            };
            if rows_first {
                rows(&mut scratch);
            }
            if let Some(plan) = plan {
                let width = width::<T>();
                for first in (0..nk).step_by(width) {
                    // SAFETY: a plane belongs to one thread, and these columns lie in it.
                    unsafe {
                        let start = field.start.add(x * ny * nk + first);
                        strided(start, nk, width.min(nk - first), plan, &mut scratch);
                    }
                }
            }
            if !rows_first {
                rows(&mut scratch);
            }
        }
    });
}

/// Transforms a field along x.
pub(super) fn columns<T: Precision>(field: &mut Field<'_, Complex<T>>, plan: &Arc<dyn Fft<T>>, pool: &dyn Parallel) {
    let [_, ny, nk] = field.sides;
    let (all, width) = (ny * nk, width::<T>());
    let field = &*field;
    pool.run(all.div_ceil(width), &|mine| {
        let mut scratch = Scratch::new();
        for tile in mine {
            let first = tile * width;
            // SAFETY: tiles of columns don't overlap, and lie inside the field.
            unsafe { strided(field.start.add(first), all, width.min(all - first), plan, &mut scratch) };
        }
    });
}

/// Columns of a tile.
fn width<T>() -> usize {
    (TILE / size_of::<Complex<T>>()).max(1)
}

/// Transforms columns beside each other, of values that lie a stride apart.
///
/// # Safety
/// All values of the columns are in one field, and no other thread has a part of them.
unsafe fn strided<T: Precision>(
    start: *mut Complex<T>,
    stride: usize,
    count: usize,
    plan: &Arc<dyn Fft<T>>,
    scratch: &mut Scratch<T>,
) {
    let length = plan.len();
    scratch.tile.resize(count * length, Complex::default());
    scratch.complex.resize(plan.get_inplace_scratch_len().max(scratch.complex.len()), Complex::default());
    for row in 0..length {
        for column in 0..count {
            // SAFETY: by contract.
            scratch.tile[column * length + row] = unsafe { *start.add(row * stride + column) };
        }
    }
    plan.process_with_scratch(&mut scratch.tile, &mut scratch.complex);
    for row in 0..length {
        for column in 0..count {
            // SAFETY: by contract.
            unsafe { *start.add(row * stride + column) = scratch.tile[column * length + row] };
        }
    }
}
