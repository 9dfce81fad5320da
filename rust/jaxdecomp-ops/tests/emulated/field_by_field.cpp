// The transpose of reading a force where particles share no cells: one field after the other is painted and its differences
// subtracted from the potential, against double precision.
#include "transpose.hpp"

using namespace unit;

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) {
        Transpose<Geometry, Real> t(seed, NUM, DEN, 18);
        Differences d;
        for (int axis = 0; axis < 3; ++axis) {
            d.cells[axis] = t.cells[axis], d.shift[axis] = t.shift[axis];
            d.near[axis] = (float)(8 * t.per_cell[axis]), d.far[axis] = (float)-t.per_cell[axis];
        }
        Buffer<Bits> most(3);
        Buffer<u32> invalid(1);
        most.zero(), invalid.zero();
        const int bits = 42;
        launch({3}, 256, [&] { largest(t.weight.data, t.weight.count, 3, most.data, invalid.data); });
        const unsigned lines = (d.cells[0] + PLANES - 1) / PLANES * d.cells[1] * d.cells[2];
        for (u32 axis = 0; axis < 3; ++axis) {
            Buffer<u64> sums(cells(t.g));
            sums.zero();
            launch(blocks(t.g, SITES), THREADS, [&] {
                paint(t.g, t.disp.data, t.weight.data, 3, axis, bits, most.data, sums.data, invalid.data);
            });
            launch({(lines + 63) / 64}, 64, [&] {
                subtract_differences(t.g, d, axis, sums.data, bits, most.data, invalid.data, t.field.data);
            });
        }
        check(invalid[0] == 0, "valid particles are reported");
        close(t.field, t.expected, t.field.count, 5e-7, "transpose of a force, field by field");
        invalid[0] = 1;
        Buffer<u64> sums(cells(t.g));
        sums.zero();
        for (u32 axis = 0; axis < 3; ++axis) {
            launch({(lines + 63) / 64}, 64, [&] {
                subtract_differences(t.g, d, axis, sums.data, bits, most.data, invalid.data, t.field.data);
            });
        }
        for (std::size_t i = 0; i < t.field.count; ++i) check(std::isnan(t.field[i]), "invalid particles leave numbers");
    }
}
