//! Random cases, and both ops by definition.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use jaxdecomp_ops::cic::cpu::{Packed, Values, paint, read};
use jaxdecomp_ops::cic::{Geometry, Mask, Real, Spec};
use xla_ffi::Threads;

pub const VALUE: Mask = [false; 3];

/// Random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, inclusive.
    pub fn integer(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    pub fn coin(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// Uniform in ±1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    pub fn values<T: Real>(&mut self, len: usize, amplitude: f64) -> Vec<T> {
        (0..len).map(|_| T::from_f64(self.uniform() * amplitude)).collect()
    }
}

/// A lattice in a mesh with valid displacements.
#[derive(Clone, Debug)]
pub struct Case<T> {
    pub spec: Spec,
    pub sites: [usize; 3],
    pub cells: [usize; 3],
    pub disp: Vec<T>,
}

impl<T: Packed> Case<T> {
    /// Periodic case with one particle a cell.
    pub fn plain(side: usize, disp: Vec<T>) -> Self {
        let spec =
            Spec { spacing_num: [1; 3], spacing_den: [1; 3], origin: [0; 3], periodic: [true; 3], scale: [1.0; 3] };
        Self { spec, sites: [side; 3], cells: [side; 3], disp }
    }

    /// Case of random shape, spacing and periodicity; displacements of up to `max_disp` cells.
    pub fn random(random: &mut Random, longest: [usize; 3], max_disp: usize) -> Self {
        let sites = longest.map(|longest| random.integer(1, longest));
        let num: [usize; 3] = std::array::from_fn(|_| random.integer(1, 3));
        let den: [usize; 3] = std::array::from_fn(|_| random.integer(1, 3));
        let periodic: [bool; 3] = std::array::from_fn(|_| random.coin());
        let cells = std::array::from_fn(|i| {
            let padded = (sites[i] - 1) * num[i] / den[i] + 2 * max_disp + 3;
            if periodic[i] { random.integer(1, 12) } else { padded }
        });
        let scale = std::array::from_fn(|_| 1.25 + 0.75 * random.uniform());
        let spec = Spec {
            spacing_num: num.map(|n| n as i64),
            spacing_den: den.map(|n| n as i64),
            origin: periodic.map(|periodic| if periodic { 0 } else { max_disp as i64 + 1 }),
            periodic,
            scale,
        };
        let mut disp: Vec<T> = random.values(3 * sites.iter().product::<usize>(), max_disp as f64);
        for (n, d) in disp.iter_mut().enumerate() {
            *d = T::from_f64(d.to_f64() / scale[n % 3]);
        }
        Self { spec, sites, cells, disp }
    }

    pub fn geometry(&self) -> Geometry<T> {
        Geometry::new(&self.spec, self.sites, self.cells).expect("a valid geometry")
    }

    pub fn particles(&self) -> usize {
        self.sites.iter().product()
    }

    pub fn volume(&self) -> usize {
        self.cells.iter().product()
    }

    pub fn paint(&self, masks: &[Mask], weight: &[T], fields: usize, threads: usize) -> Vec<T> {
        let mut mesh = vec![T::from_f64(7.0); fields * self.volume()];
        paint(&self.geometry(), masks, &self.disp, weight, &mut mesh, &Threads(threads));
        mesh
    }

    pub fn read(&self, masks: &[Mask], fields: &[T], threads: usize) -> Vec<T> {
        self.read_values(masks, fields, Values::All, masks.len() * fields.len() / self.volume(), threads)
    }

    /// Reads `count` values for each particle.
    pub fn read_values(
        &self,
        masks: &[Mask],
        fields: &[T],
        values: Values<'_, T>,
        count: usize,
        threads: usize,
    ) -> Vec<T> {
        let mut out = vec![T::from_f64(7.0); count * self.particles()];
        read(&self.geometry(), masks, &self.disp, fields, values, &mut out, &Threads(threads));
        out
    }

    /// Cell and weight of the eight corners of a particle by definition.
    pub fn corners(&self, particle: usize, mask: Mask) -> Vec<(usize, f64)> {
        let [_, py, pz] = self.sites;
        let site = [particle / (py * pz), particle / pz % py, particle % pz];
        let axes: [[(usize, f64); 2]; 3] = std::array::from_fn(|i| {
            let (num, den) = (self.spec.spacing_num[i] as usize, self.spec.spacing_den[i] as usize);
            let frac = T::from_f64((site[i] * num % den) as f64 / den as f64);
            let u = (self.disp[3 * particle + i] * T::from_f64(self.spec.scale[i]) + frac).to_f64();
            let t = T::from_f64(u - u.floor()).to_f64();
            let cell = self.spec.origin[i] + (site[i] * num / den) as i64 + u.floor() as i64;
            let wrap = |cell: i64| cell.rem_euclid(self.cells[i] as i64) as usize;
            assert!(self.spec.periodic[i] || (0..self.cells[i] as i64 - 1).contains(&cell), "inside the block");
            let (lower, upper) = if mask[i] { (-1.0, 1.0) } else { (1.0 - t, t) };
            [(wrap(cell), lower), (wrap(cell + 1), upper)]
        });
        let corner = |c: usize| {
            let [x, y, z] = [axes[0][c >> 2], axes[1][c >> 1 & 1], axes[2][c & 1]];
            ((x.0 * self.cells[1] + y.0) * self.cells[2] + z.0, x.1 * y.1 * z.1)
        };
        (0..8).map(corner).collect()
    }

    pub fn paint_by_definition(&self, masks: &[Mask], weight: &[T], fields: usize) -> Vec<f64> {
        let stride = masks.len() * fields;
        let mut mesh = vec![0.0; fields * self.volume()];
        for particle in 0..self.particles() {
            let first = if weight.len() == stride { 0 } else { particle * stride };
            for (k, &mask) in masks.iter().enumerate() {
                for (cell, w) in self.corners(particle, mask) {
                    for f in 0..fields {
                        mesh[cell * fields + f] += w * weight[first + k * fields + f].to_f64();
                    }
                }
            }
        }
        mesh
    }

    pub fn read_by_definition(&self, masks: &[Mask], fields: &[T]) -> Vec<f64> {
        let count = fields.len() / self.volume();
        let mut out = Vec::new();
        for particle in 0..self.particles() {
            for &mask in masks {
                let corners = self.corners(particle, mask);
                for f in 0..count {
                    out.push(corners.iter().map(|(cell, w)| w * fields[cell * count + f].to_f64()).sum());
                }
            }
        }
        out
    }
}

pub fn random_masks(random: &mut Random, count: usize) -> Vec<Mask> {
    (0..count).map(|_| std::array::from_fn(|_| random.coin())).collect()
}

pub fn assert_close<T: Real>(got: &[T], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (n, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (got.to_f64() - expected).abs();
        assert!(error <= tolerance, "{what}: element {n}: expected {expected}, got {got:?}");
    }
}

/// Bits of the values, for comparison including NaN.
pub fn bits<T: Real>(values: &[T]) -> Vec<u64> {
    values.iter().map(|x| x.to_f64().to_bits()).collect()
}
