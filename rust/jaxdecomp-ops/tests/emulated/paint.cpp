// Paint: two fields with every mask, against sums in double precision.
#include "lattice.hpp"

using namespace unit;

void paint_once(unsigned seed) {
    Random random{std::mt19937_64(seed)};
    Geometry g = lattice<Geometry>(random, seed, NUM, DEN, 16);
    const u32 fields = 2;
    const size_t count = SHARED ? 1 : particles(g);
    Buffer<Real> disp = displacements<Real>(random, g, 1 / 1024.), weight(count * K * fields), mesh(cells(g) * fields);
    for (size_t i = 0; i < weight.count; ++i) weight[i] = (Real)random.normal();
    std::vector<double> expected(mesh.count);
    for (int k = 0; k < K; ++k)
        each_corner(g, disp, MASK + 3 * k, [&](size_t p, int, size_t cell, double share) {
            for (u32 f = 0; f < fields; ++f) expected[cell * fields + f] += share * weight[((SHARED ? 0 : p) * K + k) * fields + f];
        });
    Buffer<Bits> most(fields);
    Buffer<u32> invalid(1);
    most.zero(), invalid.zero();
    launch({fields}, 256, [&] { largest(weight.data, weight.count, fields, most.data, invalid.data); });
    const int bits = REAL_BITS == 32 ? 40 : 55;
    for (u32 field = 0; field < fields; ++field) {
        Buffer<u64> sums(cells(g) * WORDS);
        sums.zero();
        launch(blocks(g, SITES), THREADS, [&] {
            paint(g, disp.data, weight.data, fields, field, bits, most.data, sums.data, invalid.data);
        });
        launch({2}, 64, [&] { finish(sums.data, cells(g), fields, field, bits, most.data, invalid.data, mesh.data); });
    }
    check(invalid[0] == 0, "valid particles are reported");
    close(mesh, expected, mesh.count, REAL_BITS == 32 ? 1e-5 : 1e-12, "paint");
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) paint_once(seed);
}
