//! Weights of the eight cells around a particle.

use super::real::Real;

/// Along which axes the weight is differentiated.
pub type Mask = [bool; 3];

/// The undifferentiated weight.
pub(crate) const VALUE: Mask = [false; 3];

/// The weights on the lower and upper cell along one axis are `(1-t) c - d` and `t c + d`: for a value c = 1, d = 0,
/// for a derivative c = 0, d = 1. Exact, and free of branches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<T> {
    c: T,
    d: T,
}

/// Factors of a mask.
pub(crate) fn factors<T: Real>(mask: Mask) -> [Factor<T>; 3] {
    mask.map(|derivative| if derivative { Factor { c: T::ZERO, d: T::ONE } } else { Factor { c: T::ONE, d: T::ZERO } })
}

/// Weights on the corners (x y z, z fastest) at the offsets `t`.
#[inline(always)]
pub(crate) fn value<T: Real>(t: [T; 3]) -> [T; 8] {
    let [x, y, z] = t.map(|t| [T::ONE - t, t]);
    product(x, y, z)
}

/// The same, differentiated.
#[inline(always)]
pub(crate) fn masked<T: Real>(t: [T; 3], factors: &[Factor<T>; 3]) -> [T; 8] {
    let axis = |i: usize| {
        let Factor { c, d } = factors[i];
        [(T::ONE - t[i]) * c - d, t[i] * c + d]
    };
    product(axis(0), axis(1), axis(2))
}

#[inline(always)]
fn product<T: Real>(x: [T; 2], y: [T; 2], z: [T; 2]) -> [T; 8] {
    let xy = [x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1]];
    core::array::from_fn(|i| xy[i >> 1] * z[i & 1])
}
