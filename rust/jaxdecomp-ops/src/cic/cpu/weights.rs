//! Weights of a particle on the eight cells around it.

use super::lanes::Lanes;
use crate::cic::masks::Mask;
use crate::cic::real::Real;

/// Coefficients of the weights on the lower and upper cell along one axis, `(1-t) c - d` and `t c + d`: c = 1, d = 0 for a
/// value, c = 0, d = 1 for a derivative. Exact, without branches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<T> {
    c: T,
    d: T,
}

/// Coefficients of three masks along one axis, one mask a lane.
#[derive(Clone, Copy)]
pub(crate) struct ThreeFactors<V> {
    c: V,
    d: V,
}

/// Coefficients of three masks by axis.
pub(crate) fn three_factors<T: Real, V: Lanes<T>>(masks: &[[Factor<T>; 3]; 3]) -> [ThreeFactors<V>; 3] {
    core::array::from_fn(|axis| {
        let of_masks = masks.map(|factors| factors[axis]);
        ThreeFactors { c: V::load(&of_masks.map(|factor| factor.c)), d: V::load(&of_masks.map(|factor| factor.d)) }
    })
}

/// Coefficients of a mask by axis.
pub(crate) fn factors<T: Real>(mask: Mask) -> [Factor<T>; 3] {
    mask.map(|derivative| if derivative { Factor { c: T::ZERO, d: T::ONE } } else { Factor { c: T::ONE, d: T::ZERO } })
}

/// Weights on the lower and upper cell along each axis at the offsets `t`.
#[inline(always)]
pub(crate) fn pairs<T: Real>(t: [T; 3]) -> [[T; 2]; 3] {
    [[T::ONE - t[0], t[0]], [T::ONE - t[1], t[1]], [T::ONE - t[2], t[2]]]
}

/// Weights of a mask on the lower and upper cell along each axis.
#[inline(always)]
pub(crate) fn masked_pairs<T: Real>(t: [T; 3], factors: &[Factor<T>; 3]) -> [[T; 2]; 3] {
    let mut pairs = pairs(t);
    for (pair, Factor { c, d }) in pairs.iter_mut().zip(factors) {
        *pair = [pair[0] * *c - *d, pair[1] * *c + *d];
    }
    pairs
}

/// Weights of three masks, one mask a lane.
#[inline(always)]
pub(crate) fn three_pairs<T: Real, V: Lanes<T>>(t: [T; 3], factors: &[ThreeFactors<V>; 3]) -> [[V; 2]; 3] {
    let mut pairs: [[V; 2]; 3] = splat(pairs(t));
    for (pair, ThreeFactors { c, d }) in pairs.iter_mut().zip(factors) {
        *pair = [pair[0].scale(*c).minus(*d), pair[1].scale(*c).plus(*d)];
    }
    pairs
}

/// Copies the weights to all lanes.
#[inline(always)]
pub(crate) fn splat<T: Real, V: Lanes<T>>([x, y, z]: [[T; 2]; 3]) -> [[V; 2]; 3] {
    [[V::splat(x[0]), V::splat(x[1])], [V::splat(y[0]), V::splat(y[1])], [V::splat(z[0]), V::splat(z[1])]]
}

/// Products of the weights on the corners (x y z, z fastest).
#[inline(always)]
pub(crate) fn product<T: Real>([x, y, z]: [[T; 2]; 3]) -> [T; 8] {
    let xy = [x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1]];
    core::array::from_fn(|i| xy[i >> 1] * z[i & 1])
}
