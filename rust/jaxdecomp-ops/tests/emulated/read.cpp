// Read of fields, against sums in double precision.
#include "lattice.hpp"

using namespace unit;

void read_once(unsigned seed) {
    Random random{std::mt19937_64(seed)};
    Geometry g = lattice<Geometry>(random, seed, NUM, DEN, 15);
    const size_t count = particles(g);
    const int weights = REDUCTION == 1 ? K : REDUCTION == 2 ? FIELDS : 0;
    Buffer<Real> disp = displacements<Real>(random, g, 1 / 1024.), fields(cells(g) * FIELDS), weight(count * weights);
    Buffer<Real> out(count * RESULTS);
    for (size_t i = 0; i < fields.count; ++i) fields[i] = (Real)random.normal();
    for (size_t i = 0; i < weight.count; ++i) weight[i] = (Real)random.normal();
    std::vector<double> expected(out.count);
    for (int k = 0; k < K; ++k)
        each_corner(g, disp, MASK + 3 * k, [&](size_t p, int, size_t cell, double share) {
            for (int f = 0; f < FIELDS; ++f) {
                int result = REDUCTION == 0 ? k * FIELDS + f : REDUCTION == 1 ? f : k;
                double factor = REDUCTION == 0 ? 1 : weight[p * weights + (REDUCTION == 1 ? k : f)];
                expected[p * RESULTS + result] += share * factor * fields[cell * FIELDS + f];
            }
        });
    launch(blocks(g, SITES), BX * BY * BZ, [&] { read(g, disp.data, fields.data, weight.data, out.data); });
    close(out, expected, out.count, REAL_BITS == 32 ? 1e-5 : 1e-13, "read");
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) read_once(seed);
}
