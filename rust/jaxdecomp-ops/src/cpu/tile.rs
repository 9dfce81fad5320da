//! The block of the mesh that a painting task owns, as integers.

use super::batch::{Batch, SIZE};
use super::geometry::Geometry;
use super::real::Real;
use super::weights::{self, Factor};
use core::ops::Range;

/// What is painted: the weights and how they turn into integers.
pub(crate) struct Source<'a, T> {
    /// (particle or nothing, k, field)
    pub(crate) weight: &'a [T],
    /// One weight for all particles.
    pub(crate) shared: bool,
    /// Values of `weight` a particle, `fields` of which belong to one k.
    pub(crate) stride: usize,
    pub(crate) fields: usize,
    /// Of each k; empty if there is one k and its mask is that of the value.
    pub(crate) factors: Vec<[Factor<f64>; 3]>,
    /// One over the quantum of each field.
    pub(crate) inverse: Vec<f64>,
}

impl<T: Real> Source<'_, T> {
    /// Weight of a particle, in quanta.
    #[inline(always)]
    fn amount(&self, site: usize, k: usize, field: usize) -> f64 {
        let first = if self.shared { 0 } else { site * self.stride };
        self.weight[first + k * self.fields + field].to_f64() * self.inverse[field]
    }

    /// Sum over k of the weights of `F` fields from `field` on, on the corners.
    #[inline(always)]
    fn masked<const F: usize>(&self, site: usize, field: usize, t: [f64; 3]) -> [[f64; 8]; F] {
        let mut total = [[0.0; 8]; F];
        for (k, factors) in self.factors.iter().enumerate() {
            let corner = weights::masked(t, factors);
            for (f, total) in total.iter_mut().enumerate() {
                let amount = self.amount(site, k, field + f);
                total.iter_mut().zip(corner).for_each(|(total, w)| *total += w * amount);
            }
        }
        total
    }
}

/// The weights of `F` fields on the corners, without masks.
#[inline(always)]
fn unmasked<const F: usize>(amounts: [f64; F], t: [f64; 3]) -> [[f64; 8]; F] {
    let corner = weights::value(t);
    amounts.map(|amount| corner.map(|w| w * amount))
}

/// Sums of `F` fields over a block of x-planes. One more plane takes what falls beside the block, so that a particle at
/// its edge needs no branch.
pub(crate) struct Tile<'a, T: Real, const F: usize> {
    sums: Vec<T::Sum>,
    geometry: &'a Geometry<T>,
    block: Range<i32>,
}

/// All particles of a batch.
const ALL: [u8; SIZE] = {
    let mut all = [0; SIZE];
    let mut n = 0;
    while n < SIZE {
        all[n] = n as u8;
        n += 1;
    }
    all
};

/// Where the corners of a batch's particles lie in a tile, by axis, lower and upper.
struct Offsets {
    x: [[u32; SIZE]; 2],
    y: [[u32; SIZE]; 2],
    z: [[u32; SIZE]; 2],
}

impl<'a, T: Real, const F: usize> Tile<'a, T, F> {
    pub(crate) fn new(geometry: &'a Geometry<T>) -> Self {
        Self { sums: Vec::new(), geometry, block: 0..0 }
    }

    fn plane(&self) -> usize {
        let [_, my, mz] = self.geometry.cells();
        my * mz
    }

    /// Empties it for the planes of `block`.
    pub(crate) fn start(&mut self, block: Range<i32>) {
        let size = (block.len() + 1) * self.plane();
        self.sums.clear();
        self.sums.resize(F * size, T::ZERO_SUM);
        self.block = block;
    }

    /// Adds the part of a batch that falls into the block: all of it, if `whole`.
    #[inline(always)]
    pub(crate) fn add(&mut self, batch: &Batch<T>, whole: bool, source: &Source<'_, T>, field: usize) {
        let offsets = self.offsets(batch);
        let (mut chosen, mut count) = (ALL, batch.len);
        if !whole {
            count = self.choose(batch.len, &offsets, &mut chosen);
        }
        let chosen = &chosen[..count];
        let amounts = |site: usize| core::array::from_fn::<f64, F, _>(|f| source.amount(site, 0, field + f));
        // One loop a kind of weight: a branch inside costs as much as the sums.
        if !source.factors.is_empty() {
            self.deposit(batch, chosen, &offsets, |site, t| source.masked(site, field, t));
        } else if source.shared {
            let amounts = amounts(0);
            self.deposit(batch, chosen, &offsets, |_, t| unmasked(amounts, t));
        } else {
            self.deposit(batch, chosen, &offsets, |site, t| unmasked(amounts(site), t));
        }
    }

    /// Adds the chosen particles, with contributions by site and offset.
    #[inline(always)]
    fn deposit(
        &mut self,
        batch: &Batch<T>,
        chosen: &[u8],
        offsets: &Offsets,
        contributions: impl Fn(usize, [f64; 3]) -> [[f64; 8]; F],
    ) {
        let size = self.sums.len() / F;
        for &n in chosen {
            let n = n as usize % SIZE;
            let t = batch.offset.each_ref().map(|offset| offset[n].to_f64());
            let amounts = contributions(batch.site[n] as usize, t);
            for (f, amounts) in amounts.into_iter().enumerate() {
                for (c, amount) in amounts.map(T::quantize).into_iter().enumerate() {
                    let at = (offsets.x[c >> 2][n] + offsets.y[c >> 1 & 1][n] + offsets.z[c & 1][n]) as usize;
                    debug_assert!(at < size);
                    // SAFETY: `offsets` are those of a plane of the tile and of a cell of the plane, since `Batch`
                    // wraps every cell into the mesh. The check would cost a tenth of the time.
                    let sum = unsafe { self.sums.get_unchecked_mut(f * size + at) };
                    *sum = T::sum(*sum, amount);
                }
            }
        }
    }

    /// Lists the particles that reach into the block.
    #[inline(always)]
    fn choose(&self, len: usize, offsets: &Offsets, chosen: &mut [u8; SIZE]) -> usize {
        let beside = (self.block.len() * self.plane()) as u32;
        let mut count = 0;
        for n in 0..len {
            chosen[count] = n as u8;
            count += usize::from((offsets.x[0][n] < beside) | (offsets.x[1][n] < beside));
        }
        count
    }

    #[inline(always)]
    fn offsets(&self, batch: &Batch<T>) -> Offsets {
        let [x, y, z] = &self.geometry.axes;
        let planes = self.block.len() as i32;
        let plane = self.plane() as u32;
        let mut offsets = Offsets { x: [[0; SIZE]; 2], y: [[0; SIZE]; 2], z: [[0; SIZE]; 2] };
        let beside = planes as u32 * plane;
        for n in 0..SIZE {
            let ahead = batch.cell[0][n] - self.block.start;
            let ahead = if ahead < 0 { ahead + x.cells } else { ahead };
            let [lower, upper] = x.pair(ahead, plane);
            offsets.x[0][n] = if ahead < planes { lower } else { beside };
            offsets.x[1][n] = if ahead + 1 < planes || ahead + 1 == x.cells { upper } else { beside };
            [offsets.y[0][n], offsets.y[1][n]] = y.pair(batch.cell[1][n], z.cells as u32);
            [offsets.z[0][n], offsets.z[1][n]] = z.pair(batch.cell[2][n], 1);
        }
        offsets
    }

    /// Writes the block of each field.
    pub(crate) fn finish<'o>(&self, outputs: impl Iterator<Item = &'o mut [T]>, quanta: &[f64]) {
        let size = self.sums.len() / F;
        for ((output, sums), &quantum) in outputs.zip(self.sums.chunks_exact(size)).zip(quanta) {
            for (value, &sum) in output.iter_mut().zip(sums) {
                *value = T::from_sum(sum, quantum);
            }
        }
    }
}
