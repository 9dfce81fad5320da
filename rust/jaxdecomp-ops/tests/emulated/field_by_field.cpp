// The transpose of reading a force where particles share no cells: one field after the other is painted and its differences
// subtracted from the potential, against double precision.
#include "transpose.hpp"

using namespace unit;

void run(Transpose<Geometry, Real>& t) {
    const int bits = 42;
    Differences d;
    for (int axis = 0; axis < 3; ++axis) {
        d.cells[axis] = t.cells[axis], d.shift[axis] = t.shift[axis];
        d.near[axis] = t.near[axis], d.far[axis] = t.far[axis];
    }
    const unsigned lines = (d.cells[0] + PLANES - 1) / PLANES * d.cells[1] * d.cells[2];
    Buffer<Bits> most(3);
    Buffer<u64> sums(cells(t.g));
    most.zero(), t.invalid.zero();
    launch({3}, 256, [&] { largest(t.weight.data, t.weight.count, 3, most.data, t.invalid.data); });
    for (u32 axis = 0; axis < 3; ++axis) {
        sums.zero();
        launch(blocks(t.g, SITES), THREADS, [&] {
            paint(t.g, t.disp.data, t.weight.data, 3, axis, bits, most.data, sums.data, t.invalid.data);
        });
        launch({(lines + 63) / 64}, 64, [&] {
            subtract_differences(t.g, d, axis, sums.data, bits, most.data, t.invalid.data, t.field.data);
        });
    }
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) check_transpose(seed, run, 5e-7);
}
