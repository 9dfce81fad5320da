//! Where the pieces of a mesh lie that is divided into slabs: along x before the exchange, along y after it.

use super::Rows;
use xla_ffi::Dtype;

/// A complex mesh of slabs, and the real one that it may be the spectrum of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slabs {
    /// Number of slabs.
    pub parts: i64,
    /// Extents of the whole mesh of complex values.
    pub shape: [i64; 3],
    /// Extent along z of the mesh of real values; none where both are complex.
    pub real: Option<i64>,
    /// Whether values are of double precision.
    pub double: bool,
    /// Into how many pieces of planes a slab along x is cut, which are transformed and sent one after the other.
    pub pieces: i64,
    /// Into how many pieces of lines a slab along y is cut, which are transformed along x one after the other.
    pub bands: i64,
}

/// Some planes of a slab along x, and the lines of them that go to one slab along y: where they begin, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Planes, counted within the slab along x.
    pub planes: [i64; 2],
    /// Lines, counted within the slab along y.
    pub lines: [i64; 2],
}

/// Transforms of more values than this go slower, and need a work area as large as their data.
const LARGEST_TRANSFORM: i64 = 1 << 30;
/// Exchanges shorter than this are not worth to be begun early.
const SHORTEST_EXCHANGE: i64 = 64 << 20;
/// Into how many pieces transform and exchange are cut, so that one hides the other.
const PIECES: i64 = 4;

impl Slabs {
    /// Slabs along x and along y; `None` if the mesh doesn't divide.
    #[must_use]
    pub fn new(parts: i64, shape: [i64; 3], real: Option<i64>, double: bool) -> Option<Self> {
        let divides = parts > 0 && shape.iter().all(|&n| n > 0) && shape[0] % parts == 0 && shape[1] % parts == 0;
        let fits = real.is_none_or(|nz| nz > 0 && nz / 2 + 1 == shape[2]);
        if !(divides && fits) {
            return None;
        }
        let slabs = Self { parts, shape, real, double, pieces: 1, bands: 1 };
        let ([planes, ny, nz], lines) = (slabs.field_block(), slabs.spectrum_block()[1]);
        let bytes = slabs.values() * slabs.item() as i64;
        let wanted = if parts == 1 { 1 } else { (bytes / SHORTEST_EXCHANGE).clamp(1, PIECES) };
        // No more than are wanted, lest a prime number of planes be sent one by one.
        let cut = |n: i64, least: i64| {
            let hidden = (1..=wanted).rev().find(|d| n % d == 0).unwrap_or(1);
            hidden.max(divisor(n, least))
        };
        let pieces = cut(planes, transforms(planes * ny * nz));
        // Real values must lie where a complex one could.
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

    /// Type of complex values.
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

    /// Extents of a slab along x of the real mesh, or of the complex one where both are.
    #[must_use]
    pub fn field_block(&self) -> [i64; 3] {
        [self.shape[0] / self.parts, self.shape[1], self.real.unwrap_or(self.shape[2])]
    }

    /// Extents of a slab along y of the complex mesh.
    #[must_use]
    pub fn spectrum_block(&self) -> [i64; 3] {
        [self.shape[0], self.shape[1] / self.parts, self.shape[2]]
    }

    /// Complex values of a slab.
    #[must_use]
    pub fn values(&self) -> i64 {
        self.shape.iter().product::<i64>() / self.parts
    }

    /// Planes of a piece.
    #[must_use]
    pub fn planes(&self) -> i64 {
        self.field_block()[0] / self.pieces
    }

    /// Lines of a band.
    #[must_use]
    pub fn lines(&self) -> i64 {
        self.spectrum_block()[1] / self.bands
    }

    /// How many pieces are sent band by band: the last ones on the way there, the first ones on the way back. The transform
    /// along x thus goes on beside the exchange of half of the values, as that of the planes does beside the other half.
    #[must_use]
    pub fn banded(&self) -> i64 {
        if self.bands > 1 { self.pieces / 2 } else { 0 }
    }

    /// What is sent, one after the other.
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

    /// What slab `a` along x and slab `b` along y have in common, of a share.
    #[must_use]
    pub fn common(&self, a: i64, b: i64, share: &Share) -> Rows {
        let [nx, ny, nk] = self.shape.map(|n| n as usize);
        let (parts, a, b) = (self.parts as usize, a as usize, b as usize);
        let ([plane, planes], [first, lines]) = (share.planes.map(|n| n as usize), share.lines.map(|n| n as usize));
        let line = nk * self.item();
        let (there, here) = (ny / parts * line, ny * line);
        Rows {
            offsets: [plane * here + b * there + first * line, (a * (nx / parts) + plane) * there + first * line],
            pitches: [here, there],
            width: lines * line,
            height: planes,
        }
    }
}

/// Into how many transforms so many values are to be cut.
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
        let big = Slabs::new(4, [1024, 1024, 513], Some(1024), false).expect("it divides");
        assert_eq!((big.planes(), big.lines()), (64, 64));
        let small = Slabs::new(4, [64, 64, 33], Some(64), false).expect("it divides");
        assert_eq!((small.planes(), small.lines()), (16, 16));
        let odd = Slabs::new(2, [1016, 510, 256], Some(511), true).expect("it divides");
        assert_eq!((odd.planes() * 510 * 511 % 2, odd.pieces > 1), (0, true));
        let odder = Slabs::new(1, [2049, 1023, 512], Some(1023), false).expect("it divides");
        assert_eq!(odder.pieces, 1);
        let prime = Slabs::new(2, [1018, 1018, 510], Some(1018), false).expect("it divides");
        assert_eq!(prime.pieces, 1, "509 planes");
        let huge = Slabs::new(1, [2048, 2048, 1025], Some(2048), false).expect("it divides");
        assert_eq!((huge.planes(), huge.lines()), (256, 256));
    }

    #[test]
    fn shares_are_everything_once() {
        for (pieces, bands) in [(1, 1), (4, 1), (1, 2), (2, 2), (3, 2), (4, 4)] {
            let slabs = Slabs::new(2, [24, 16, 5], Some(8), false).expect("it divides");
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
    fn what_does_not_divide_is_no_slab() {
        assert_eq!(Slabs::new(4, [6, 8, 5], Some(8), false), None);
        assert_eq!(Slabs::new(4, [8, 6, 5], Some(8), false), None);
        assert_eq!(Slabs::new(2, [8, 8, 5], Some(10), false), None);
        assert_eq!(Slabs::new(0, [8, 8, 5], None, false), None);
    }
}
