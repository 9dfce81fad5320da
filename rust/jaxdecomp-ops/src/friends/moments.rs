//! Means and cores of groups of points.

use super::Coordinate;
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Points, or this part of a group, in the last sphere around its core.
const FEW: f64 = 10.0;
/// Ratio of the squared radii of two spheres.
const SHRINKING: f64 = 0.9 * 0.9;

/// Moments of a group: the centre and the core from its first point on, and the mean velocity.
pub type Moments = [[f64; 3]; 3];

/// Moments of the groups that begin at `starts`, in order.
///
/// Points are taken at their images nearest to the first one of their group. The core is the centre of the last of
/// spheres that shrink around it, see `pmwd_dist.observe.friends_of_friends`.
///
/// # Errors
/// If there are not as many velocities as points, or groups don't ascend from 0 or are empty.
pub fn moments<T: Coordinate>(
    points: &[[T; 3]],
    velocities: &[[f32; 3]],
    starts: &[usize],
    sides: [f64; 3],
    pool: &dyn Parallel,
) -> Result<Vec<Moments>, String> {
    let ends = || starts.iter().skip(1).copied().chain([points.len()]);
    let ascending = starts.iter().zip(ends()).all(|(&start, end)| start < end);
    if points.len() != velocities.len() || starts.first().is_some_and(|&first| first != 0) || !ascending {
        return Err("expected a velocity for each point, and starts that ascend from 0".into());
    }
    let ends: Vec<_> = ends().collect();
    let share = points.len().div_ceil(16 * pool.threads()).max(1);
    let mut found = vec![Moments::default(); starts.len()];
    let mut parts = Vec::new();
    let mut rest = &mut found[..];
    let mut first = 0;
    while first < starts.len() {
        let last = ends.partition_point(|&end| end < starts[first] + share).min(starts.len() - 1);
        let (part, others) = rest.split_at_mut(last + 1 - first);
        parts.push(Mutex::new((first, part)));
        (rest, first) = (others, last + 1);
    }
    pool.run(parts.len(), &|mine| {
        let mut scratch = Vec::new();
        for part in mine {
            let mut part = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            let first = part.0;
            for (i, found) in part.1.iter_mut().enumerate() {
                let own = starts[first + i]..ends[first + i];
                *found = of_group(&points[own.clone()], &velocities[own], sides, &mut scratch);
            }
        }
    });
    drop(parts);
    Ok(found)
}

fn of_group<T: Coordinate>(
    points: &[[T; 3]],
    velocities: &[[f32; 3]],
    sides: [f64; 3],
    scratch: &mut Vec<[f64; 3]>,
) -> Moments {
    let origin = points[0].map(Into::into);
    scratch.clear();
    scratch.extend(points.iter().map(|point| {
        core::array::from_fn(|axis| {
            let d = point[axis].into() - origin[axis];
            d - sides[axis] * (d / sides[axis]).round_ties_even()
        })
    }));
    let centre = mean(scratch.iter().copied());
    let velocity = mean(velocities.iter().map(|u| u.map(f64::from)));
    [centre, velocity, shrink(scratch, centre)]
}

fn mean(vectors: impl ExactSizeIterator<Item = [f64; 3]>) -> [f64; 3] {
    let count = vectors.len() as f64;
    vectors.fold([0.0; 3], |sum, x| core::array::from_fn(|axis| sum[axis] + x[axis])).map(|sum| sum / count)
}

/// Centre of the last sphere; points beyond it are dropped.
fn shrink(points: &mut Vec<[f64; 3]>, mut centre: [f64; 3]) -> [f64; 3] {
    let squared = |point: &[f64; 3], centre: &[f64; 3]| -> f64 {
        let d: [f64; 3] = core::array::from_fn(|axis| point[axis] - centre[axis]);
        d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
    };
    let few = (points.len() as f64 / FEW).max(FEW.min(points.len() as f64));
    let mut radius = points.iter().map(|point| squared(point, &centre)).fold(0.0, f64::max);
    let smallest = 1e-24 * radius; // points may coincide
    loop {
        points.retain(|point| squared(point, &centre) <= radius);
        if (points.len() as f64) < few || radius <= smallest {
            return centre;
        }
        centre = mean(points.iter().copied());
        radius *= SHRINKING;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_ffi::Threads;

    #[test]
    fn groups_across_the_border_have_their_means_and_cores() {
        let near = |x: f64| [x.rem_euclid(10.0), 5.0, 5.0];
        let mut points: Vec<_> = (0..20).map(|i| near(-0.19 + 0.02 * f64::from(i))).collect();
        points.extend([near(2.0), [1.0; 3], [1.0; 3]]);
        let velocities: Vec<_> = (0..23).map(|i| [i as f32, 0.0, -1.0]).collect();
        for threads in [1, 3] {
            let found = moments(&points, &velocities, &[0, 21], [10.0; 3], &Threads(threads)).expect("groups");
            let first = points[0][0] - 10.0;
            assert!((found[0][0][0] - (2.0 / 21.0 - first)).abs() < 1e-12);
            assert!((found[0][1][0] - 10.0).abs() < 1e-12 && (found[0][1][2] + 1.0).abs() < 1e-12);
            assert!((found[0][2][0] + first).abs() < 0.05, "the far point is not in the core: {:?}", found[0][2]);
            assert!((found[1][1][0] - 21.5).abs() < 1e-12);
            assert!([found[1][0], found[1][2]].as_flattened().iter().all(|x| x.abs() < 1e-12));
        }
    }

    #[test]
    fn wrong_starts_are_errors() {
        let points = [[0.5_f32; 3]; 2];
        for (velocities, starts) in [(1, &[0][..]), (2, &[1]), (2, &[0, 0]), (2, &[0, 2])] {
            assert!(moments(&points, &vec![[0.0; 3]; velocities], starts, [1.0; 3], &Threads(1)).is_err());
        }
        assert!(moments(&points[..0], &[], &[], [1.0; 3], &Threads(1)).expect("none").is_empty());
    }
}
