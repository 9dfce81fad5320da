//! Meshes to paint to.

use crate::cic::real::Real;
use std::sync::Mutex;

/// A mesh to paint to, by the order of its fields in memory.
pub(crate) enum Mesh<'m, T: Real> {
    /// The fields of a cell are adjacent.
    Interleaved(&'m mut [T]),
    /// One field after the other.
    Planar(&'m mut [T]),
    /// Both halves of the integer sums of one field, see [`Real::halves`].
    Sums(&'m mut [T::Whole]),
}

/// All fields of a block of the mesh.
pub(crate) enum Output<'a, T: Real> {
    /// The fields of a cell are adjacent.
    Interleaved(&'a mut [T]),
    /// One slice a field.
    Planar(Vec<&'a mut [T]>),
    /// Both halves of the integer sum of the only field.
    Sums(&'a mut [T::Whole]),
}

impl<T: Real> Mesh<'_, T> {
    /// Number of values of all fields.
    pub(crate) fn values(&self) -> usize {
        match self {
            Self::Interleaved(values) | Self::Planar(values) => values.len(),
            Self::Sums(halves) => halves.len() / 2,
        }
    }

    /// Fills with a value, or with a sum.
    pub(crate) fn fill(&mut self, value: T, sum: T::Sum) {
        match self {
            Self::Interleaved(values) | Self::Planar(values) => values.fill(value),
            Self::Sums(halves) => halves.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&T::halves(sum))),
        }
    }

    /// The parts of all `fields` on blocks of so many of the `volume` cells.
    pub(crate) fn blocks(&mut self, cells: usize, volume: usize, fields: usize) -> Vec<Mutex<Output<'_, T>>> {
        match self {
            Self::Interleaved(values) => {
                values.chunks_mut(cells * fields).map(|part| Mutex::new(Output::Interleaved(part))).collect()
            }
            Self::Sums(halves) => halves.chunks_mut(2 * cells).map(|part| Mutex::new(Output::Sums(part))).collect(),
            Self::Planar(values) => {
                let mut fields: Vec<_> = values.chunks_mut(volume).map(|field| field.chunks_mut(cells)).collect();
                let parts = (0..volume.div_ceil(cells)).map(|_| fields.iter_mut().filter_map(Iterator::next).collect());
                parts.map(|parts| Mutex::new(Output::Planar(parts))).collect()
            }
        }
    }
}
