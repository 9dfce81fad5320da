//! Friends-of-friends groups of points in a periodic box.
//!
//! Points at a distance of at most the linking length belong to one group. The diagonal of a cell is just shorter than
//! this length, so that the points of a cell are one group without a comparison, and a group is a set of cells.

mod cells;
pub mod moments;
mod union;

use cells::{Cells, Grid};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use union::Sets;
use xla_ffi::Parallel;

/// A coordinate.
pub trait Coordinate: Copy + Sync + Send + Into<f64> {}
impl Coordinate for f32 {}
impl Coordinate for f64 {}

/// Labels of the points, the least index in the group of each.
///
/// Coordinates are at least 0 and below the sides of the box. A distance is that of the nearest images in double
/// precision: d0² + d1² + d2², in this order, is at most the square of the length.
///
/// # Errors
/// If a coordinate is not in the box, the grid of cells is too fine, or there are 2³¹ points or more.
pub fn friends<T: Coordinate>(
    points: &[[T; 3]],
    sides: [f64; 3],
    length: f64,
    pool: &dyn Parallel,
) -> Result<Vec<i32>, String> {
    if i32::try_from(points.len()).is_err() {
        return Err(format!("expected fewer than 2^31 points, got {}", points.len()));
    }
    let inside = |point: &[T; 3]| (0..3).all(|i| (0.0..sides[i]).contains(&point[i].into()));
    if let Some(first) = points.iter().position(|point| !inside(point)) {
        let place = points[first].map(Into::into);
        return Err(format!("expected points from 0 to below {sides:?}, got {place:?} at index {first}"));
    }
    let grid = Grid::new(sides, length)?;
    let cells = Cells::sort(&grid, points, pool);
    let sets = Sets::new(cells.count());
    pool.run(cells.planes(), &|mine| mine.for_each(|plane| link_plane(&grid, &cells, plane, length, &sets)));
    let least: Vec<_> = (0..cells.count()).map(|_| AtomicU32::new(u32::MAX)).collect();
    pool.run(cells.planes(), &|mine| {
        for cell in mine.flat_map(|plane| cells.of_rows(grid.rows_of(plane))) {
            least[sets.root(cell) as usize].fetch_min(cells.first_point(cell), Relaxed);
        }
    });
    let mut labels = vec![0; points.len()];
    let share = labels.len().div_ceil(8 * pool.threads()).max(1);
    let parts: Vec<_> = labels.chunks_mut(share).map(Mutex::new).collect();
    pool.run(parts.len(), &|mine| {
        for part in mine {
            let mut labels = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            for (label, point) in labels.iter_mut().zip(&points[part * share..]) {
                let root = sets.root(cells.of_point(&grid, point));
                *label = least[root as usize].load(Relaxed) as i32;
            }
        }
    });
    drop(parts);
    Ok(labels)
}

/// Joins the cells of a plane along x with their neighbours; of two opposite directions one is followed.
fn link_plane<T: Coordinate>(grid: &Grid, cells: &Cells<T>, plane: usize, length: f64, sets: &Sets) {
    let [reach_x, reach_y, reach_z] = grid.reach.map(|n| n as i64);
    for row in grid.rows_of(plane) {
        for number in cells.of_rows(row..row + 1) {
            let z = i64::from(cells.cell(number).z);
            let join = |row: usize, from: i64, to: i64| {
                for (low, high) in grid.wrapped(from, to) {
                    for other in cells.between(row, low, high) {
                        if sets.root(number) != sets.root(other) && touch(grid, cells, number, other, length) {
                            sets.unite(number, other);
                        }
                    }
                }
            };
            join(row, z + 1, z + reach_z);
            for dx in 0..=reach_x {
                let first = if dx == 0 { 1 } else { -reach_y };
                for dy in first..=reach_y {
                    join(grid.neighbour(row, dx, dy), z - reach_z, z + reach_z);
                }
            }
        }
    }
}

/// Whether two cells have points within the linking length.
fn touch<T: Coordinate>(grid: &Grid, cells: &Cells<T>, one: u32, other: u32, length: f64) -> bool {
    let squared = length * length;
    let others = cells.points(other);
    cells.points(one).iter().any(|p| others.iter().any(|q| grid.squared_distance(p, q) <= squared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_ffi::Threads;

    /// Labels by comparing all pairs, until none changes.
    fn by_pairs(points: &[[f32; 3]], sides: [f64; 3], length: f64) -> Vec<i32> {
        let mut labels: Vec<i32> = (0..points.len() as i32).collect();
        let apart = |a: f32, b: f32, side: f64| {
            let d = f64::from(a) - f64::from(b);
            if d < -0.5 * side {
                d + side
            } else if d > 0.5 * side {
                d - side
            } else {
                d
            }
        };
        loop {
            let before = labels.clone();
            for i in 0..points.len() {
                for j in 0..i {
                    let d: [f64; 3] = core::array::from_fn(|axis| apart(points[i][axis], points[j][axis], sides[axis]));
                    if d[0] * d[0] + d[1] * d[1] + d[2] * d[2] <= length * length {
                        let least = labels[i].min(labels[j]);
                        (labels[i], labels[j]) = (least, least);
                    }
                }
            }
            if labels == before {
                return labels;
            }
        }
    }

    fn check(points: &[[f32; 3]], sides: [f64; 3], length: f64) {
        for threads in [1, 3] {
            let labels = friends(points, sides, length, &Threads(threads)).expect("a grid");
            assert_eq!(labels, by_pairs(points, sides, length), "{sides:?} {length}");
        }
    }

    #[test]
    fn groups_are_those_of_all_pairs() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        for (sides, length) in [([4.0, 5.0, 3.0], 0.4), ([1.0, 8.0, 1.1], 0.45), ([1.0, 1.0, 1.0], 0.11)] {
            let points: Vec<_> = (0..400).map(|_| sides.map(|side| random() * side as f32)).collect();
            check(&points, sides, length);
            // On a lattice, many distances are the length itself, and points lie on the borders of cells and box.
            let lattice: Vec<_> = points.iter().map(|p| p.map(|x| (x * 8.0).floor() / 8.0)).collect();
            check(&lattice, sides, 0.125);
        }
        check(&[[0.5; 3]; 50], [1.0; 3], 0.1);
        check(&[], [1.0; 3], 0.1);
    }

    #[test]
    fn a_point_that_is_not_in_the_box_is_an_error() {
        for x in [f64::NAN, f64::INFINITY, -1e-9, 2.0] {
            let error = friends(&[[0.5; 3], [0.5, x, 0.5]], [1.0, 2.0, 1.0], 0.2, &Threads(1));
            assert!(error.is_err_and(|text| text.ends_with("at index 1")), "{x}");
        }
    }

    #[test]
    fn a_grid_that_is_too_fine_is_an_error() {
        let error = friends(&[[0.5_f64; 3]], [1.0; 3], 1e-6, &Threads(1));
        assert!(error.is_err_and(|text| text.contains("linking length")));
    }
}
