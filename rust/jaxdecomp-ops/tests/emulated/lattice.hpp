// Lattices of particles and naive cloud-in-cell, for the kernels of particles.

// A lattice of at most about `most` cells along each axis, in a mesh that is periodic along two of them and has 5 cells more on
// each side along the third.
template <class Geometry>
Geometry lattice(Random& random, unsigned seed, int num, int den, int most) {
    Geometry g{};
    for (int axis = 0; axis < 3; ++axis) {
        g.num[axis] = num, g.den[axis] = den;
        g.sites[axis] = random.integer(seed ? 1 : max(1, most / num), max(1, most / num)) * den;
        g.periodic[axis] = (seed + axis) % 3 != 0;
        g.origin[axis] = g.periodic[axis] ? 0 : 5;
        g.cells[axis] = g.sites[axis] * num / den + 2 * (int)g.origin[axis];
        g.scale[axis] = random.uniform(0.5, 1.5);
        g.scale32[axis] = (float)g.scale[axis];
    }
    return g;
}

template <class Geometry>
size_t particles(const Geometry& g) {
    return (size_t)g.sites[0] * g.sites[1] * g.sites[2];
}

template <class Geometry>
size_t cells(const Geometry& g) {
    return (size_t)g.cells[0] * g.cells[1] * g.cells[2];
}

// Displacements of at most three cells, on a grid; along periodic axes a few are of at most nine, and a few of at most forty.
template <class Real, class Geometry>
Buffer<Real> displacements(Random& random, const Geometry& g, double grid) {
    Buffer<Real> disp(3 * particles(g));
    for (size_t i = 0; i < disp.count; ++i) {
        int kind = g.periodic[i % 3] ? random.integer(0, 9) : 9;
        disp[i] = (Real)(std::rint((kind == 0 ? 40 : kind < 3 ? 9 : 3) * random.uniform(-1, 1) / grid) * grid);
    }
    return disp;
}

// The grid of blocks of sites.
template <class Geometry>
Dim blocks(const Geometry& g, const int block[3]) {
    auto along = [&](int axis) { return (unsigned)((g.sites[axis] + block[axis] - 1) / block[axis]); };
    return {along(2), along(1), along(0)};
}

// Calls body(particle, corner, cell, weight) for the eight cells that a particle reaches; a weight is differentiated along the
// axes of a mask.
template <class Real, class Geometry, class Body>
void each_corner(const Geometry& g, const Buffer<Real>& disp, const bool mask[3], Body body) {
    for (size_t p = 0; p < particles(g); ++p) {
        size_t site[3] = {p / g.sites[2] / g.sites[1], p / g.sites[2] % g.sites[1], p % g.sites[2]};
        int lower[3];
        double t[3];
        for (int axis = 0; axis < 3; ++axis) {
            long long product = (long long)site[axis] * g.num[axis];
            Real frac = (Real)((double)(product % g.den[axis]) / (double)g.den[axis]);
            Real position = disp[3 * p + axis] * (Real)g.scale[axis] + frac;
            int below = (int)std::floor(position);
            t[axis] = (double)(position - (Real)below);
            lower[axis] = (int)(g.origin[axis] + product / g.den[axis]) + below;
        }
        for (int corner = 0; corner < 8; ++corner) {
            double weight = 1;
            size_t cell = 0;
            for (int axis = 0; axis < 3; ++axis) {
                int upper = corner >> (2 - axis) & 1, n = g.cells[axis], at = lower[axis] + upper;
                weight *= mask[axis] ? (upper ? 1 : -1) : upper ? t[axis] : 1 - t[axis];
                check(g.periodic[axis] || (at >= 0 && at < n), "the test moves a particle out of its mesh");
                cell = cell * n + ((at % n) + n) % n;
            }
            body(p, corner, cell, weight);
        }
    }
}
