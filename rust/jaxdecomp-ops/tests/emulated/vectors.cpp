// The transpose of reading a force where particles share cells: vectors painted, and the differences of their sums, against
// double precision.
#include "transpose.hpp"

using namespace unit;

void run(Transpose<Geometry, Real>& t) {
    const int bits = 36;
    Potential p;
    for (int axis = 0; axis < 3; ++axis)
        p.per_cell[axis] = -(double)t.far[axis], p.cells[axis] = t.cells[axis], p.shift[axis] = t.shift[axis];
    Buffer<Bits> most(3);
    Buffer<u64> sums(t.field.count);
    most.zero(), t.invalid.zero(), sums.zero();
    launch({3}, 256, [&] { largest(t.weight.data, t.weight.count, 3, most.data, t.invalid.data); });
    launch(blocks(t.g, SITES), THREADS, [&] {
        paint_vectors(t.g, p, t.disp.data, t.weight.data, bits, most.data, sums.data, t.invalid.data);
    });
    launch({2}, 64, [&] { finish_potential(sums.data, sums.count, p, bits, most.data, t.invalid.data, t.field.data); });
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) check_transpose(seed, run, 2e-5);
}
