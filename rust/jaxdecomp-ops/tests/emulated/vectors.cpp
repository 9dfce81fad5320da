// The transpose of reading a force: vectors painted, and the differences of their sums, against double precision.
#include "transpose.hpp"

using namespace unit;

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) {
        Transpose<Geometry, Real> t(seed, NUM, DEN, 18);
        Potential p;
        for (int axis = 0; axis < 3; ++axis)
            p.per_cell[axis] = t.per_cell[axis], p.cells[axis] = t.cells[axis], p.shift[axis] = t.shift[axis];
        Buffer<Bits> most(3);
        Buffer<u32> invalid(1);
        Buffer<u64> sums(t.field.count);
        most.zero(), invalid.zero(), sums.zero();
        const int bits = 36;
        launch({3}, 256, [&] { largest(t.weight.data, t.weight.count, 3, most.data, invalid.data); });
        launch(blocks(t.g, SITES), THREADS, [&] {
            paint_vectors(t.g, p, t.disp.data, t.weight.data, bits, most.data, sums.data, invalid.data);
        });
        launch({2}, 64, [&] { finish_potential(sums.data, sums.count, p, bits, most.data, invalid.data, t.field.data); });
        check(invalid[0] == 0, "valid particles are reported");
        close(t.field, t.expected, t.field.count, 2e-5, "transpose of a force");
    }
}
