//! Cloud-in-cell paint in fixed point.

use super::batch::{Batch, SIZE};
use super::bounds::{Bounds, pieces_per_row};
use super::mesh::{Mesh, Output};
use super::order::Order;
use super::simd::{Work, widest};
use super::tile::{Source, Tile};
use super::weights;
use crate::cic::geometry::Geometry;
use crate::cic::masks::{Mask, VALUE};
use crate::cic::real::{Real, ceil_log2};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xla_ffi::Parallel;

/// Bytes of a tile. A tile may exceed the L2 cache, since a lattice row uses a small part of it; deeper blocks locate fewer
/// particles twice.
const TILE: usize = 1 << 22;
/// Average number of blocks touched by a piece of a row above which sorting the particles is faster.
const SCATTERED: u64 = 6;

/// Source of the resolution of integer sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale<'a, T> {
    /// Values among whose magnitudes are the largest weights, field by field.
    pub(crate) bounds: &'a [T],
    /// Bits of the largest contribution of a mask.
    pub(crate) bits: i32,
}

/// Paints particles: `mesh[c, f] = sum_p sum_k weight[p, k, f] W_k(x_p - c)`, overwriting `mesh`.
///
/// `weight` has shape (particles, masks, fields) or (1, masks, fields), `disp` (particles, 3). If any position or weight is
/// invalid, all of `mesh` is NaN.
///
/// # Panics
/// If the lengths are inconsistent, or there are 2³² particles or more.
pub fn paint<T: Real>(
    geometry: &Geometry<T>,
    masks: &[Mask],
    disp: &[T],
    weight: &[T],
    mesh: &mut [T],
    pool: &dyn Parallel,
) {
    paint_as(Mesh::Interleaved(mesh), geometry, masks, disp, weight, pool);
}

/// [`paint`] to a mesh whose fields lie in memory as told.
pub(crate) fn paint_as<T: Real>(
    mesh: Mesh<'_, T>,
    geometry: &Geometry<T>,
    masks: &[Mask],
    disp: &[T],
    weight: &[T],
    pool: &dyn Parallel,
) {
    let bits = T::contribution_bits(geometry.particles()) - ceil_log2(masks.len());
    paint_scaled(mesh, geometry, masks, disp, weight, Scale { bounds: weight, bits }, pool);
}

/// [`paint_as`] with integer sums of a given resolution; if anything is invalid, all sums are [`Real::INVALID_SUM`].
pub(crate) fn paint_scaled<T: Real>(
    mut mesh: Mesh<'_, T>,
    geometry: &Geometry<T>,
    masks: &[Mask],
    disp: &[T],
    weight: &[T],
    scale: Scale<'_, T>,
    pool: &dyn Parallel,
) {
    let particles = geometry.particles();
    let fields = mesh.values() / geometry.volume();
    let stride = masks.len() * fields;
    assert_eq!(disp.len(), 3 * particles, "three displacements a particle");
    assert_eq!(mesh.values(), fields * geometry.volume(), "whole fields");
    assert!(u32::try_from(particles).is_ok(), "expected fewer than 2^32 particles a device, got {particles}");
    let shared = weight.len() == stride;
    assert!(shared || weight.len() == particles * stride, "one weight for all or one each");
    if particles == 0 || stride == 0 {
        mesh.fill(T::ZERO, T::ZERO_SUM);
        return;
    }
    let resolutions = resolutions(scale, fields, pool);
    let bounds = Bounds::measure(geometry, disp, pool);
    let (Some(resolutions), Some(bounds)) = (resolutions, bounds) else {
        mesh.fill(T::NAN, T::INVALID_SUM);
        return;
    };
    let source = Source {
        weight,
        shared,
        stride,
        fields,
        factors: if masks == [VALUE] { Vec::new() } else { masks.iter().map(|&mask| weights::factors(mask)).collect() },
        inverse: resolutions.iter().map(|resolution| 1.0 / resolution).collect(),
    };
    let job = Job { geometry, disp, source, bounds, resolutions, pool };
    let (mut field, mesh) = (0, &mut mesh);
    while field < fields {
        // Several fields at once share the location of particles.
        field += if fields - field > 1 { job.fields::<4>(field, mesh) } else { job.fields::<1>(field, mesh) };
    }
}

struct Job<'a, T> {
    geometry: &'a Geometry<T>,
    disp: &'a [T],
    source: Source<'a, T>,
    bounds: Bounds,
    resolutions: Vec<f64>,
    pool: &'a dyn Parallel,
}

impl<T: Real> Job<'_, T> {
    /// Paints up to `L` fields from `field` on.
    fn fields<const L: usize>(&self, field: usize, mesh: &mut Mesh<'_, T>) -> usize {
        let count = self.resolutions.len();
        let fields = field..count.min(field + L);
        let [planes, my, mz] = self.geometry.cells();
        let fit = TILE / (L * my * mz * size_of::<T::Sum>());
        let depth = fit.min(planes.div_ceil(4 * self.pool.threads())).max(1);
        let blocks = mesh.blocks(depth * my * mz, self.geometry.volume(), count);
        let order = self.scattered(depth).then(|| Order::sort(self.geometry, self.disp, self.pool));
        self.pool.run(blocks.len(), &|mine| {
            let mut tile = Tile::<T, L>::new(self.geometry);
            let mut batch = Batch::new();
            for n in mine {
                let range = n * depth..((n + 1) * depth).min(planes);
                let (batch, tile, mut output) = (&mut batch, &mut tile, lock(&blocks[n]));
                let order = order.as_ref();
                widest(Block { job: self, order, range, fields: &fields, batch, tile, output: &mut output });
            }
        });
        fields.len()
    }

    /// Whether particles are so far from lattice order that sorting them is faster.
    fn scattered(&self, depth: usize) -> bool {
        self.bounds.total > (SCATTERED - 1) * (depth * self.bounds.pieces.len()) as u64
    }

    /// Adds the pieces of lattice rows that intersect the block.
    #[inline(always)]
    fn add_rows<const L: usize>(
        &self,
        block: &Range<usize>,
        fields: &Range<usize>,
        batch: &mut Batch<T>,
        tile: &mut Tile<'_, T, L>,
    ) {
        let geometry = self.geometry;
        let ([_, py, pz], cells) = (geometry.sites(), geometry.axes[0].mesh.cells);
        let per_row = pieces_per_row(geometry);
        let block = block.start as i32..block.end as i32;
        let plane_intersects = |&i: &usize| self.bounds.planes[i].intersects(&block, cells);
        for i in (0..self.bounds.planes.len()).filter(plane_intersects) {
            let pieces = &self.bounds.pieces[i * py * per_row..(i + 1) * py * per_row];
            for (piece, span) in pieces.iter().enumerate().filter(|(_, span)| span.intersects(&block, cells)) {
                let (j, k) = (piece / per_row, piece % per_row * SIZE);
                let row = (i * py + j) * pz;
                let disp = &self.disp[3 * (row + k)..3 * (row + pz.min(k + SIZE))];
                batch.locate_row(geometry, disp, [i, j, k]);
                batch.wrap(geometry);
                tile.add(batch, span.within(&block, cells), &self.source, fields);
            }
        }
    }

    /// Adds the particles of the block and of the plane below, which touch it.
    #[inline(always)]
    fn add_sorted<const L: usize>(
        &self,
        order: &Order,
        block: &Range<usize>,
        fields: &Range<usize>,
        batch: &mut Batch<T>,
        tile: &mut Tile<'_, T, L>,
    ) {
        let planes = self.geometry.cells()[0];
        let mut add = |planes: Range<usize>| {
            for sites in order.of(planes).chunks(SIZE) {
                batch.locate_sites(self.geometry, self.disp, sites);
                batch.wrap(self.geometry);
                tile.add(batch, false, &self.source, fields);
            }
        };
        add(block.clone());
        let below = block.start.checked_sub(1).unwrap_or(planes - 1);
        if !block.contains(&below) {
            add(below..below + 1);
        }
    }
}

/// A block of x-planes: the work of one task.
struct Block<'a, 't, 'm, T: Real, const L: usize> {
    job: &'a Job<'a, T>,
    order: Option<&'a Order>,
    range: Range<usize>,
    fields: &'a Range<usize>,
    batch: &'a mut Batch<T>,
    tile: &'a mut Tile<'t, T, L>,
    /// All fields of the block.
    output: &'a mut Output<'m, T>,
}

impl<T: Real, const L: usize> Work for Block<'_, '_, '_, T, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.tile.start(self.range.start as i32..self.range.end as i32);
        match self.order {
            Some(order) => self.job.add_sorted(order, &self.range, self.fields, self.batch, self.tile),
            None => self.job.add_rows(&self.range, self.fields, self.batch, self.tile),
        }
        self.tile.finish(self.output, &self.job.resolutions, self.fields);
    }
}

/// Resolution of each field: a power of two such that no sum overflows. None if any bound is not finite.
fn resolutions<T: Real>(scale: Scale<'_, T>, fields: usize, pool: &dyn Parallel) -> Option<Vec<f64>> {
    let largest = largest(scale.bounds, fields, pool);
    largest.into_iter().map(|w| w.is_finite().then(|| power_of_two(exponent_above(w) - scale.bits))).collect()
}

/// Largest |weight| of each field; not finite if any weight is not.
fn largest<T: Real>(weight: &[T], fields: usize, pool: &dyn Parallel) -> Vec<f64> {
    const LANES: usize = 8; // so that the loop vectorises
    const SHARE: usize = 1 << 12;
    // Magnitudes compare like their bits; infinity and NaN are largest.
    let largest: Vec<AtomicU64> = (0..fields).map(|_| AtomicU64::new(0)).collect();
    let shares: Vec<&[T]> = weight.chunks(SHARE * LANES * fields).collect();
    pool.run(shares.len(), &|mine| {
        let (mut own, mut invalid) = (vec![T::ZERO; LANES * fields], vec![false; LANES * fields]);
        for share in mine {
            for weights in shares[share].chunks(LANES * fields) {
                for ((own, invalid), w) in own.iter_mut().zip(&mut invalid).zip(weights) {
                    let w = w.magnitude();
                    *own = if w > *own { w } else { *own };
                    *invalid |= !w.is_finite();
                }
            }
        }
        for (lane, (own, invalid)) in own.into_iter().zip(invalid).enumerate() {
            let own = if invalid { f64::NAN } else { own.to_f64() };
            largest[lane % fields].fetch_max(own.to_bits(), Relaxed);
        }
    });
    largest.into_iter().map(|bits| f64::from_bits(bits.into_inner())).collect()
}

/// Exponent n with |x| < 2ⁿ, at least -961 so that all products stay normal: weights below 1e-289 lose bits.
fn exponent_above(x: f64) -> i32 {
    ((x.to_bits() >> 52) as i32 - 1022).max(-961)
}

/// Power 2ⁿ, for normal results.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
