// A case of the transpose of reading a force, with what it is in double precision.
#include "lattice.hpp"

template <class Geometry, class Real>
struct Transpose {
    Random random;
    Geometry g;
    int cells[3], shift[3];  // extents of the potential, and where the painted mesh begins in it
    double per_cell[3];
    Buffer<Real> disp, weight, field;
    std::vector<double> expected;

    Transpose(unsigned seed, int num, int den, int most)
        : random{std::mt19937_64(seed)},
          g(lattice<Geometry>(random, seed, num, den, most)),
          disp(displacements<Real>(random, g, 1 / 1024.)),
          weight(3 * particles(g)),
          field(extents()),
          expected(field.count) {
        for (size_t i = 0; i < weight.count; ++i) weight[i] = (Real)random.normal();
        const bool mask[3] = {};
        each_corner(g, disp, mask, [&](size_t particle, int, size_t cell, double share) {
            for (int axis = 0; axis < 3; ++axis) add_differences(cell, axis, share * weight[3 * particle + axis] * per_cell[axis]);
        });
    }

   private:
    size_t extents() {
        size_t size = 1;
        for (int axis = 0; axis < 3; ++axis) {
            per_cell[axis] = 1 / (12 * random.uniform(0.5, 2));
            shift[axis] = g.periodic[axis] ? 0 : 2;
            cells[axis] = g.cells[axis] + 2 * shift[axis];
            size *= cells[axis];
        }
        return size;
    }

    // What an amount in a cell of the painted mesh adds to those beside it along an axis.
    void add_differences(size_t cell, int axis, double amount) {
        const int at[3] = {(int)(cell / g.cells[2] / g.cells[1]), (int)(cell / g.cells[2] % g.cells[1]), (int)(cell % g.cells[2])};
        for (int k = -2; k <= 2; ++k) {
            const double factor[5] = {1, -8, 0, 8, -1};
            size_t to = 0;
            for (int a = 0; a < 3; ++a) {
                int n = cells[a];
                to = to * n + (at[a] + shift[a] + (a == axis ? k : 0) + n) % n;
            }
            expected[to] += factor[k + 2] * amount;
        }
    }
};
