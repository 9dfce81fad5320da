//! Division of a mesh into slabs, along x before the exchange and along y after it, and of slabs into pieces.

use super::exchange::Rows;
use xla_ffi::Dtype;

/// A complex mesh divided into slabs, and the real mesh of which it may be the spectrum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slabs {
    /// Number of slabs.
    pub num_shards: i64,
    /// Extents of the whole complex mesh.
    pub shape: [i64; 3],
    /// Extent of the real mesh along z; none if both meshes are complex.
    pub real: Option<i64>,
    /// Whether values have double precision.
    pub double: bool,
    /// Number of pieces of planes of a slab along x, transformed and sent one at a time.
    pub pieces: i64,
    /// Number of bands of lines of a slab along y, transformed along x one at a time.
    pub bands: i64,
}

/// Values sent at a time: a range of planes, and a range of lines of the destination. Each is first index and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Planes relative to the slab along x.
    pub planes: [i64; 2],
    /// Lines relative to the slab along y.
    pub lines: [i64; 2],
}

/// Largest number of values of a transform: cuFFT is slower beyond, and needs a work area as large as the data.
const LARGEST_TRANSFORM: i64 = 1 << 30;
/// Smallest exchange worth dividing [bytes].
const SHORTEST_EXCHANGE: i64 = 64 << 20;
/// Number of pieces with which transform and exchange overlap.
const PIECES: i64 = 4;

impl Slabs {
    /// Divides a mesh; `None` if its extents are not divisible.
    #[must_use]
    pub fn new(num_shards: i64, shape: [i64; 3], real: Option<i64>, double: bool) -> Option<Self> {
        let divides =
            num_shards > 0 && shape.iter().all(|&n| n > 0) && shape[0] % num_shards == 0 && shape[1] % num_shards == 0;
        let fits = real.is_none_or(|nz| nz > 0 && nz / 2 + 1 == shape[2]);
        if !(divides && fits) {
            return None;
        }
        let slabs = Self { num_shards, shape, real, double, pieces: 1, bands: 1 };
        let ([planes, ny, nz], lines) = (slabs.field_block(), slabs.spectrum_block()[1]);
        let bytes = slabs.values() * slabs.item() as i64;
        let wanted = if num_shards == 1 { 1 } else { (bytes / SHORTEST_EXCHANGE).clamp(1, PIECES) };
        // At most `wanted`: a prime number of planes must not be sent one by one.
        let cut = |n: i64, least: i64| {
            let hidden = (1..=wanted).rev().find(|d| n % d == 0).unwrap_or(1);
            hidden.max(divisor(n, least))
        };
        let pieces = cut(planes, transforms(planes * ny * nz));
        // Pieces of real values must be aligned like complex values.
        let aligned = real.is_none() || planes / pieces * ny * nz % 2 == 0;
        let pieces = if aligned { pieces } else { 1 };
        Some(Self { pieces, bands: cut(lines, transforms(slabs.values())), ..slabs })
    }

    /// Bytes of a complex value.
    #[must_use]
    pub fn item(&self) -> usize {
        if self.double { 16 } else { 8 }
    }

    /// Bytes of a value of the mesh that is divided along x.
    #[must_use]
    pub fn field_item(&self) -> usize {
        if self.real.is_some() { self.item() / 2 } else { self.item() }
    }

    /// Type of the complex values.
    #[must_use]
    pub fn complex_dtype(&self) -> Dtype {
        if self.double { Dtype::C128 } else { Dtype::C64 }
    }

    /// Type of the values of the mesh that is divided along x.
    #[must_use]
    pub fn field_dtype(&self) -> Dtype {
        match (self.real, self.double) {
            (None, _) => self.complex_dtype(),
            (Some(_), false) => Dtype::F32,
            (Some(_), true) => Dtype::F64,
        }
    }

    /// Extents of a slab along x.
    #[must_use]
    pub fn field_block(&self) -> [i64; 3] {
        [self.shape[0] / self.num_shards, self.shape[1], self.real.unwrap_or(self.shape[2])]
    }

    /// Extents of a slab along y of the complex mesh.
    #[must_use]
    pub fn spectrum_block(&self) -> [i64; 3] {
        [self.shape[0], self.shape[1] / self.num_shards, self.shape[2]]
    }

    /// Number of complex values of a slab.
    #[must_use]
    pub fn values(&self) -> i64 {
        self.shape.iter().product::<i64>() / self.num_shards
    }

    /// Number of planes of a piece.
    #[must_use]
    pub fn planes(&self) -> i64 {
        self.field_block()[0] / self.pieces
    }

    /// Number of lines of a band.
    #[must_use]
    pub fn lines(&self) -> i64 {
        self.spectrum_block()[1] / self.bands
    }

    /// Number of pieces that are sent band by band: the last pieces forward, the first pieces of the inverse. The transform
    /// along x thus overlaps with the exchange of half of the values, that of the planes with the other half.
    #[must_use]
    pub fn banded(&self) -> i64 {
        if self.bands > 1 { self.pieces / 2 } else { 0 }
    }

    /// Shares in the order in which they are sent.
    #[must_use]
    pub fn shares(&self, inverse: bool) -> Vec<Share> {
        let (planes, banded) = (self.planes(), self.banded());
        let whole = [0, self.spectrum_block()[1]];
        let pieces =
            |range: core::ops::Range<i64>| range.map(|piece| Share { planes: [piece * planes, planes], lines: whole });
        let bands = |first: i64| {
            let planes = [first * planes, banded * planes];
            let count = if banded > 0 { self.bands } else { 0 };
            (0..count).map(move |band| Share { planes, lines: [band * self.lines(), self.lines()] })
        };
        if inverse {
            return bands(0).chain(pieces(banded..self.pieces)).collect();
        }
        let first = self.pieces - banded;
        pieces(0..first).chain(bands(first)).collect()
    }

    /// Intersection of slab `a` along x and slab `b` along y within a share, as a copy from the former to the latter.
    #[must_use]
    pub fn common(&self, a: i64, b: i64, share: &Share) -> Rows {
        let [nx, ny, nk] = self.shape.map(|n| n as usize);
        let (num_shards, a, b) = (self.num_shards as usize, a as usize, b as usize);
        let ([plane, planes], [first, lines]) = (share.planes.map(|n| n as usize), share.lines.map(|n| n as usize));
        let line = nk * self.item();
        let (there, here) = (ny / num_shards * line, ny * line);
        Rows {
            offsets: [plane * here + b * there + first * line, (a * (nx / num_shards) + plane) * there + first * line],
            pitches: [here, there],
            width: lines * line,
            height: planes,
        }
    }
}

/// Smallest number of transforms for a number of values.
fn transforms(values: i64) -> i64 {
    (values - 1) / LARGEST_TRANSFORM + 1
}

/// The smallest divisor of `n` that is at least `least`.
fn divisor(n: i64, least: i64) -> i64 {
    (least.max(1)..=n).find(|d| n % d == 0).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use super::{Share, Slabs, divisor};

    #[test]
    fn pieces_divide() {
        assert_eq!((divisor(256, 4), divisor(6, 4), divisor(7, 2), divisor(5, 9)), (4, 6, 7, 5));
        let big = Slabs::new(4, [1024, 1024, 513], Some(1024), false).expect("divisible");
        assert_eq!((big.planes(), big.lines()), (64, 64));
        let small = Slabs::new(4, [64, 64, 33], Some(64), false).expect("divisible");
        assert_eq!((small.planes(), small.lines()), (16, 16));
        let odd = Slabs::new(2, [1016, 510, 256], Some(511), true).expect("divisible");
        assert_eq!((odd.planes() * 510 * 511 % 2, odd.pieces > 1), (0, true));
        let odder = Slabs::new(1, [2049, 1023, 512], Some(1023), false).expect("divisible");
        assert_eq!(odder.pieces, 1);
        let prime = Slabs::new(2, [1018, 1018, 510], Some(1018), false).expect("divisible");
        assert_eq!(prime.pieces, 1, "509 planes");
        let huge = Slabs::new(1, [2048, 2048, 1025], Some(2048), false).expect("divisible");
        assert_eq!((huge.planes(), huge.lines()), (256, 256));
    }

    #[test]
    fn shares_cover_every_value_once() {
        for (pieces, bands) in [(1, 1), (4, 1), (1, 2), (2, 2), (3, 2), (4, 4)] {
            let slabs = Slabs::new(2, [24, 16, 5], Some(8), false).expect("divisible");
            let slabs = Slabs { pieces, bands, ..slabs };
            for inverse in [false, true] {
                let mut times = [[0; 8]; 12];
                for Share { planes: [plane, planes], lines: [line, lines] } in slabs.shares(inverse) {
                    for row in &mut times[plane as usize..][..planes as usize] {
                        row[line as usize..][..lines as usize].iter_mut().for_each(|count| *count += 1);
                    }
                }
                assert_eq!(times, [[1; 8]; 12], "{slabs:?}");
            }
        }
    }

    #[test]
    fn indivisible_meshes_have_no_slabs() {
        assert_eq!(Slabs::new(4, [6, 8, 5], Some(8), false), None);
        assert_eq!(Slabs::new(4, [8, 6, 5], Some(8), false), None);
        assert_eq!(Slabs::new(2, [8, 8, 5], Some(10), false), None);
        assert_eq!(Slabs::new(0, [8, 8, 5], None, false), None);
    }
}
