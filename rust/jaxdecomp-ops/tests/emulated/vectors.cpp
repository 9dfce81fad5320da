// The transpose of reading a force: vectors painted, and the differences of their sums, against double precision.
#include "lattice.hpp"

using namespace unit;

void transpose_once(unsigned seed) {
    Random random{std::mt19937_64(seed)};
    Geometry g = lattice<Geometry>(random, seed, NUM, DEN, 18);
    Potential p;
    size_t size = 1;
    for (int axis = 0; axis < 3; ++axis) {
        p.per_cell[axis] = 1 / (12 * random.uniform(0.5, 2));
        p.shift[axis] = g.periodic[axis] ? 0 : 2;
        p.cells[axis] = g.cells[axis] + 2 * p.shift[axis];
        size *= p.cells[axis];
    }
    Buffer<Real> disp = displacements<Real>(random, g, 1 / 1024.), weight(3 * particles(g)), field(size);
    for (size_t i = 0; i < weight.count; ++i) weight[i] = (Real)random.normal();
    std::vector<double> expected(size);
    const bool mask[3] = {};
    each_corner(g, disp, mask, [&](size_t particle, int, size_t cell, double share) {
        const int at[3] = {(int)(cell / g.cells[2] / g.cells[1]), (int)(cell / g.cells[2] % g.cells[1]), (int)(cell % g.cells[2])};
        for (int axis = 0; axis < 3; ++axis)
            for (int k = -2; k <= 2; ++k) {
                const double factor[5] = {1, -8, 0, 8, -1};
                size_t to = 0;
                for (int a = 0; a < 3; ++a) {
                    int n = p.cells[a];
                    to = to * n + (at[a] + p.shift[a] + (a == axis ? k : 0) + n) % n;
                }
                expected[to] += factor[k + 2] * share * weight[3 * particle + axis] * p.per_cell[axis];
            }
    });
    Buffer<Bits> most(3);
    Buffer<u32> invalid(1);
    Buffer<u64> sums(size);
    most.zero(), invalid.zero(), sums.zero();
    const int bits = 36;
    launch({3}, 256, [&] { largest(weight.data, weight.count, 3, most.data, invalid.data); });
    launch(blocks(g, SITES), THREADS, [&] {
        paint_vectors(g, p, disp.data, weight.data, bits, most.data, sums.data, invalid.data);
    });
    launch({2}, 64, [&] { finish_potential(sums.data, size, p, bits, most.data, invalid.data, field.data); });
    check(invalid[0] == 0, "valid particles are reported");
    close(field, expected, size, 2e-5, "transpose of a force");
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) transpose_once(seed);
}
