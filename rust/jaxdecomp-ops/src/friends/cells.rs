//! Points sorted by the cells of a grid, of which only those that hold points are stored.

use super::Coordinate;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use xla_ffi::Parallel;

/// Largest number of rows of cells along z.
const MOST_ROWS: usize = 1 << 31;

/// A periodic grid of cells.
pub(super) struct Grid {
    sides: [f64; 3],
    counts: [usize; 3],
    /// Largest difference of the cells of two points within the linking length.
    pub(super) reach: [usize; 3],
}

impl Grid {
    pub(super) fn new(sides: [f64; 3], length: f64) -> Result<Self, String> {
        // Cells of points at their borders are rounded: by less than 1e-9 of a cell.
        let largest = length / 3.0_f64.sqrt() * (1.0 - 1e-8);
        let counts = sides.map(|side| (side / largest).ceil().clamp(1.0, 1e6) as usize);
        if !(0..3).all(|i| sides[i] / counts[i] as f64 <= largest) || counts[0] * counts[1] >= MOST_ROWS {
            return Err(format!("the linking length {length} is too small for a box of {sides:?}"));
        }
        let reach = core::array::from_fn(|i| {
            let cells = (length * counts[i] as f64 / sides[i] * (1.0 + 1e-8)).ceil() as usize;
            cells.min(counts[i])
        });
        Ok(Self { sides, counts, reach })
    }

    /// Row along z, and cell in it, of a point.
    fn locate<T: Coordinate>(&self, point: &[T; 3]) -> (usize, u32) {
        let [x, y, z] = core::array::from_fn(|i| {
            let cell: f64 = point[i].into() * (self.counts[i] as f64 / self.sides[i]);
            (cell as usize).min(self.counts[i] - 1)
        });
        (x * self.counts[1] + y, z as u32)
    }

    fn rows(&self) -> usize {
        self.counts[0] * self.counts[1]
    }

    /// Rows of a plane along x.
    pub(super) fn rows_of(&self, plane: usize) -> Range<usize> {
        plane * self.counts[1]..(plane + 1) * self.counts[1]
    }

    /// The row at an offset, of at most the reach, from a row.
    pub(super) fn neighbour(&self, row: usize, dx: i64, dy: i64) -> usize {
        let [nx, ny] = [self.counts[0] as i64, self.counts[1] as i64];
        let (x, y) = (row as i64 / ny + dx, row as i64 % ny + dy);
        (x.rem_euclid(nx) * ny + y.rem_euclid(ny)) as usize
    }

    /// Ranges of cells of a row, from those that may lie beyond its ends; the second one may be empty.
    pub(super) fn wrapped(&self, from: i64, to: i64) -> [(u32, u32); 2] {
        let count = self.counts[2] as i64;
        let range = |low: i64, high: i64| (low as u32, (high + 1) as u32);
        if to - from + 1 >= count {
            return [range(0, count - 1), (0, 0)];
        }
        let (low, high) = (from.rem_euclid(count), to.rem_euclid(count));
        if low <= high { [range(low, high), (0, 0)] } else { [range(low, count - 1), range(0, high)] }
    }

    /// Squared distance of the nearest images of two points.
    pub(super) fn squared_distance<T: Coordinate>(&self, one: &[T; 3], other: &[T; 3]) -> f64 {
        let [x, y, z]: [f64; 3] = core::array::from_fn(|i| {
            let (d, side): (f64, f64) = (one[i].into() - other[i].into(), self.sides[i]);
            if d < -0.5 * side {
                side + d
            } else if d > 0.5 * side {
                d - side
            } else {
                d
            }
        });
        x * x + y * y + z * z
    }
}

/// A cell with points: its place in its row, and its first points among the sorted ones.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) z: u32,
    first: u32,
    end: u32,
}

/// Sorted points, and the cells that hold them.
pub(super) struct Cells<T> {
    points: Vec<[T; 3]>,
    /// Index of each sorted point, ascending in a cell.
    indices: Vec<u32>,
    filled: Vec<Cell>,
    /// First cell of each row, and the number of all cells.
    rows: Vec<u32>,
    planes: usize,
}

/// The sorted points of a plane.
struct Plane<'a, T> {
    points: &'a mut [[T; 3]],
    indices: &'a mut [u32],
    cells: Vec<Cell>,
    /// First cell of each row in `cells`.
    rows: Vec<u32>,
}

impl<T: Coordinate> Cells<T> {
    pub(super) fn sort(grid: &Grid, points: &[[T; 3]], pool: &dyn Parallel) -> Self {
        let (starts, mut indices) = by_row(grid, points, pool);
        let mut sorted = points.to_vec();
        let planes = grid.counts[0];
        let (mut rest, mut others, mut tasks) = (&mut sorted[..], &mut indices[..], Vec::with_capacity(planes));
        for plane in 0..planes {
            let rows = grid.rows_of(plane);
            let count = (starts[rows.end] - starts[rows.start]) as usize;
            let (points, indices);
            (points, rest) = rest.split_at_mut(count);
            (indices, others) = others.split_at_mut(count);
            tasks.push(Mutex::new(Plane { points, indices, cells: Vec::new(), rows: Vec::new() }));
        }
        pool.run(planes, &|mine| {
            for plane in mine {
                let mut task = tasks[plane].lock().unwrap_or_else(PoisonError::into_inner);
                let rows = grid.rows_of(plane);
                task.sort(grid, points, &starts[rows.start..=rows.end]);
            }
        });
        let (mut cells, mut rows) = (Vec::new(), Vec::with_capacity(grid.rows() + 1));
        for task in tasks {
            let plane = task.into_inner().unwrap_or_else(PoisonError::into_inner);
            rows.extend(plane.rows.iter().map(|first| cells.len() as u32 + first));
            cells.extend(plane.cells);
        }
        rows.push(cells.len() as u32);
        Self { points: sorted, indices, filled: cells, rows, planes }
    }

    pub(super) fn count(&self) -> usize {
        self.filled.len()
    }

    /// Number of planes along x.
    pub(super) fn planes(&self) -> usize {
        self.planes
    }

    /// Points of a cell.
    pub(super) fn points(&self, number: u32) -> &[[T; 3]] {
        let cell = self.cell(number);
        &self.points[cell.first as usize..cell.end as usize]
    }

    /// Least index of the points of a cell.
    pub(super) fn first_point(&self, number: u32) -> u32 {
        self.indices[self.cell(number).first as usize]
    }

    /// Numbers of the cells of some rows.
    pub(super) fn of_rows(&self, rows: Range<usize>) -> Range<u32> {
        self.rows[rows.start]..self.rows[rows.end]
    }

    pub(super) fn cell(&self, number: u32) -> Cell {
        self.filled[number as usize]
    }

    /// Numbers of the cells of a row from `low` to below `high`.
    pub(super) fn between(&self, row: usize, low: u32, high: u32) -> impl Iterator<Item = u32> {
        (self.number(row, low)..self.rows[row + 1]).take_while(move |&number| self.cell(number).z < high)
    }

    /// Number of the first cell of a row from `z` on.
    fn number(&self, row: usize, z: u32) -> u32 {
        let range = self.rows[row] as usize..self.rows[row + 1] as usize;
        self.rows[row] + self.filled[range].partition_point(|cell| cell.z < z) as u32
    }

    /// Number of the cell of a point.
    pub(super) fn of_point(&self, grid: &Grid, point: &[T; 3]) -> u32 {
        let (row, z) = grid.locate(point);
        self.number(row, z)
    }
}

impl<T: Coordinate> Plane<'_, T> {
    /// Sorts the points of each row by their cells, from the first place of each row among all points.
    fn sort(&mut self, grid: &Grid, points: &[[T; 3]], starts: &[u32]) {
        let (mut keys, start) = (Vec::new(), starts[0]);
        for row in starts.windows(2) {
            self.rows.push(self.cells.len() as u32);
            let range = (row[0] - start) as usize..(row[1] - start) as usize;
            keys.clear();
            keys.extend(self.indices[range.clone()].iter().map(|&i| (grid.locate(&points[i as usize]).1, i)));
            keys.sort_unstable();
            for (place, &(z, index)) in range.zip(&keys) {
                self.points[place] = points[index as usize];
                self.indices[place] = index;
                let first = start + place as u32;
                let row_cells = self.rows[self.rows.len() - 1] as usize;
                match self.cells[row_cells..].last_mut() {
                    Some(cell) if cell.z == z => cell.end = first + 1,
                    _ => self.cells.push(Cell { z, first, end: first + 1 }),
                }
            }
        }
    }
}

/// The first place of each row of cells, and the indices of points sorted by row, in any order within a row.
fn by_row<T: Coordinate>(grid: &Grid, points: &[[T; 3]], pool: &dyn Parallel) -> (Vec<u32>, Vec<u32>) {
    let share = points.len().div_ceil(8 * pool.threads()).max(1);
    let shares = points.len().div_ceil(share);
    let each = |action: &(dyn Fn(u32, usize) + Sync)| {
        pool.run(shares, &|mine| {
            for task in mine {
                let own = points.iter().enumerate().skip(task * share).take(share);
                own.for_each(|(i, point)| action(i as u32, grid.locate(point).0));
            }
        });
    };
    let next: Vec<_> = (0..=grid.rows()).map(|_| AtomicU32::new(0)).collect();
    each(&|_, row| {
        next[row].fetch_add(1, Relaxed);
    });
    let mut start = 0;
    let starts: Vec<u32> = next
        .iter()
        .map(|count| {
            let first = start;
            start += count.swap(first, Relaxed);
            first
        })
        .collect();
    let sorted: Vec<_> = points.iter().map(|_| AtomicU32::new(0)).collect();
    each(&|i, row| sorted[next[row].fetch_add(1, Relaxed) as usize].store(i, Relaxed));
    (starts, sorted.into_iter().map(AtomicU32::into_inner).collect())
}
