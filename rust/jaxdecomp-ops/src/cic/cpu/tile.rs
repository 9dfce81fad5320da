//! Integer sums of the block of the mesh that a painting task owns.

use super::batch::{Batch, SIZE};
use super::mesh::Output;
use super::weights::{self, Factor};
use crate::cic::geometry::{Geometry, pair};
use crate::cic::real::Real;
use core::ops::Range;

/// Weights and their fixed-point resolution.
pub(crate) struct Source<'a, T> {
    /// Shape (particle, k, field), or (k, field) if shared.
    pub(crate) weight: &'a [T],
    /// Whether all particles have the same weight.
    pub(crate) shared: bool,
    /// Values of `weight` for each particle: masks times `fields`.
    pub(crate) stride: usize,
    pub(crate) fields: usize,
    /// Coefficients of each mask; empty if the only mask is the value's.
    pub(crate) factors: Vec<[Factor<f64>; 3]>,
    /// Inverse resolution of each field.
    pub(crate) inverse: Vec<f64>,
}

impl<'a, T: Real> Source<'a, T> {
    fn lanes<const L: usize>(&'a self, fields: &Range<usize>) -> Fields<'a, T, L> {
        let inverse = core::array::from_fn(|l| self.inverse[fields.clone()].get(l).copied().unwrap_or(0.0));
        Fields { source: self, first: fields.start, last: fields.len() - 1, inverse }
    }
}

/// A range of fields of a source, one a lane.
struct Fields<'a, T, const L: usize> {
    source: &'a Source<'a, T>,
    first: usize,
    /// Lane of the last field.
    last: usize,
    inverse: [f64; L],
}

impl<T: Real, const L: usize> Fields<'_, T, L> {
    /// Weights of a particle in units of the resolution.
    #[inline(always)]
    fn amounts(&self, site: usize, k: usize) -> [f64; L] {
        let source = self.source;
        let first = if source.shared { 0 } else { site * source.stride } + k * source.fields + self.first;
        let own = &source.weight[first..=first + self.last];
        let mut amounts = [0.0; L];
        for l in 0..L {
            amounts[l] = own[l.min(self.last)].to_f64() * self.inverse[l];
        }
        amounts
    }
}

/// Contributions of a particle to its eight corners. Not a closure, which would not be compiled for AVX2.
trait Contribution<const L: usize> {
    fn on_corners(&self, site: usize, t: [f64; 3]) -> [[f64; L]; 8];
}

/// Contributions with one weight for all particles, without masks.
struct Shared<const L: usize>([f64; L]);

impl<const L: usize> Contribution<L> for Shared<L> {
    #[inline(always)]
    fn on_corners(&self, _site: usize, t: [f64; 3]) -> [[f64; L]; 8] {
        product(&weights::product(weights::pairs(t)), &self.0)
    }
}

/// Contributions with a weight for each particle, without masks.
struct Own<'a, T, const L: usize>(Fields<'a, T, L>);

impl<T: Real, const L: usize> Contribution<L> for Own<'_, T, L> {
    #[inline(always)]
    fn on_corners(&self, site: usize, t: [f64; 3]) -> [[f64; L]; 8] {
        product(&weights::product(weights::pairs(t)), &self.0.amounts(site, 0))
    }
}

/// Contributions summed over masks.
struct Masked<'a, T, const L: usize>(Fields<'a, T, L>);

impl<T: Real, const L: usize> Contribution<L> for Masked<'_, T, L> {
    #[inline(always)]
    fn on_corners(&self, site: usize, t: [f64; 3]) -> [[f64; L]; 8] {
        let mut total = [[0.0; L]; 8];
        for (k, factors) in self.0.source.factors.iter().enumerate() {
            let part = product(&weights::product(weights::masked_pairs(t, factors)), &self.0.amounts(site, k));
            for c in 0..8 {
                for l in 0..L {
                    total[c][l] += part[c][l];
                }
            }
        }
        total
    }
}

#[inline(always)]
fn product<const L: usize>(corner: &[f64; 8], amounts: &[f64; L]) -> [[f64; L]; 8] {
    let mut product = [*amounts; 8];
    for c in 0..8 {
        for l in 0..L {
            product[c][l] *= corner[c];
        }
    }
    product
}

/// Sums of up to `L` fields over a block of x-planes. A further plane receives contributions outside the block, so that
/// particles at its edge need no branch. A further cell in each row receives contributions that wrap around, so that both
/// corners along z are adjacent.
pub(crate) struct Tile<'a, T: Real, const L: usize> {
    sums: Vec<[T::Sum; L]>,
    geometry: &'a Geometry<T>,
    block: Range<i32>,
}

/// Indices of all particles of a batch.
const ALL: [u8; SIZE] = {
    let mut all = [0; SIZE];
    let mut n = 0;
    while n < SIZE {
        all[n] = n as u8;
        n += 1;
    }
    all
};

/// Offsets in a tile of the lower and upper corners of a batch by axis; along z of the lower corner only.
struct Offsets {
    x: [[u32; SIZE]; 2],
    y: [[u32; SIZE]; 2],
    z: [u32; SIZE],
}

impl<'a, T: Real, const L: usize> Tile<'a, T, L> {
    pub(crate) fn new(geometry: &'a Geometry<T>) -> Self {
        Self { sums: Vec::new(), geometry, block: 0..0 }
    }

    /// Number of sums in a row and in a plane.
    #[inline(always)]
    fn extents(&self) -> [usize; 2] {
        let [_, my, mz] = self.geometry.cells();
        [mz + 1, my * (mz + 1)]
    }

    /// Clears the sums for the planes of `block`.
    #[inline(always)]
    pub(crate) fn start(&mut self, block: Range<i32>) {
        let [_, plane] = self.extents();
        self.sums.clear();
        self.sums.resize((block.len() + 1) * plane, [T::ZERO_SUM; L]);
        self.block = block;
    }

    /// Adds the particles of a batch that touch the block; all particles if `whole`.
    #[inline(always)]
    pub(crate) fn add(&mut self, batch: &Batch<T>, whole: bool, source: &Source<'_, T>, fields: &Range<usize>) {
        let offsets = self.offsets(batch);
        let (mut chosen, mut count) = (ALL, batch.len);
        if !whole {
            count = self.choose(batch.len, &offsets, &mut chosen);
        }
        let chosen = &chosen[..count];
        // A loop for each kind of weight: a branch inside the loop costs as much as the sums.
        let lanes = source.lanes(fields);
        if !source.factors.is_empty() {
            self.deposit(batch, chosen, &offsets, &Masked(lanes));
        } else if source.shared {
            self.deposit(batch, chosen, &offsets, &Shared(lanes.amounts(0, 0)));
        } else {
            self.deposit(batch, chosen, &offsets, &Own(lanes));
        }
    }

    #[inline(always)]
    fn deposit(&mut self, batch: &Batch<T>, chosen: &[u8], offsets: &Offsets, contribution: &impl Contribution<L>) {
        let sums = self.sums.as_mut_slice();
        for &n in chosen {
            let n = n as usize % SIZE;
            let t = [batch.offset[0][n].to_f64(), batch.offset[1][n].to_f64(), batch.offset[2][n].to_f64()];
            let amounts = contribution.on_corners(batch.site[n] as usize, t);
            let mut integers = [[T::ZERO_SUM; L]; 8];
            for c in 0..8 {
                for l in 0..L {
                    integers[c][l] = T::quantize(amounts[c][l]);
                }
            }
            for c in 0..4 {
                let at = (offsets.x[c >> 1][n] + offsets.y[c & 1][n] + offsets.z[n]) as usize;
                debug_assert!(at + 1 < sums.len());
                // SAFETY: `Batch` wraps every cell into the mesh, so `offsets` lie inside the tile; a row has a further
                // cell. A bounds check would be slow.
                let pair = unsafe { sums.get_unchecked_mut(at..at + 2) };
                for l in 0..L {
                    pair[0][l] = T::sum(pair[0][l], integers[2 * c][l]);
                    pair[1][l] = T::sum(pair[1][l], integers[2 * c + 1][l]);
                }
            }
        }
    }

    /// Lists the particles that touch the block.
    #[inline(always)]
    fn choose(&self, len: usize, offsets: &Offsets, chosen: &mut [u8; SIZE]) -> usize {
        let [_, plane] = self.extents();
        let beside = (self.block.len() * plane) as u32;
        let mut count = 0;
        for n in 0..len {
            chosen[count] = n as u8;
            count += usize::from((offsets.x[0][n] < beside) | (offsets.x[1][n] < beside));
        }
        count
    }

    #[inline(always)]
    fn offsets(&self, batch: &Batch<T>) -> Offsets {
        let [mx, my, _] = self.geometry.axes.each_ref().map(|axis| axis.mesh.cells);
        let first = self.block.start;
        let planes = self.block.len() as i32;
        let [row, plane] = self.extents().map(|extent| extent as u32);
        let mut offsets = Offsets { x: [[0; SIZE]; 2], y: [[0; SIZE]; 2], z: [0; SIZE] };
        let beside = planes as u32 * plane;
        for n in 0..SIZE {
            let ahead = batch.cell[0][n] - first;
            let ahead = if ahead < 0 { ahead + mx } else { ahead };
            let [lower, upper] = pair(ahead, mx, plane);
            offsets.x[0][n] = if ahead < planes { lower } else { beside };
            offsets.x[1][n] = if ahead + 1 < planes || ahead + 1 == mx { upper } else { beside };
            [offsets.y[0][n], offsets.y[1][n]] = pair(batch.cell[1][n], my, row);
            offsets.z[n] = batch.cell[2][n] as u32;
        }
        offsets
    }

    /// Writes the block. `output` and `resolutions` hold all fields, the tile holds `fields`.
    #[inline(always)]
    pub(crate) fn finish(&mut self, output: &mut Output<'_, T>, resolutions: &[f64], fields: &Range<usize>) {
        let [row, plane] = self.extents();
        let (count, resolutions) = (resolutions.len(), &resolutions[fields.clone()]);
        let rows = &mut self.sums[..self.block.len() * plane];
        for sums in rows.chunks_exact_mut(row) {
            for l in 0..L {
                sums[0][l] = T::sum(sums[0][l], sums[row - 1][l]);
            }
        }
        match output {
            Output::Interleaved(output) => {
                for (values, sums) in output.chunks_exact_mut((row - 1) * count).zip(rows.chunks_exact(row)) {
                    for (values, sums) in values.chunks_exact_mut(count).zip(sums) {
                        for ((value, &sum), &resolution) in values[fields.clone()].iter_mut().zip(sums).zip(resolutions)
                        {
                            *value = T::from_sum(sum, resolution);
                        }
                    }
                }
            }
            Output::Sums(output) => {
                for (halves, sums) in output.chunks_exact_mut(2 * (row - 1)).zip(rows.chunks_exact(row)) {
                    for (halves, sums) in halves.chunks_exact_mut(2).zip(sums) {
                        halves.copy_from_slice(&T::halves(sums[0]));
                    }
                }
            }
            Output::Planar(outputs) => {
                for (lane, (output, &resolution)) in outputs[fields.clone()].iter_mut().zip(resolutions).enumerate() {
                    for (values, sums) in output.chunks_exact_mut(row - 1).zip(rows.chunks_exact(row)) {
                        for (value, sums) in values.iter_mut().zip(sums) {
                            *value = T::from_sum(sums[lane], resolution);
                        }
                    }
                }
            }
        }
    }
}
