// A case of the transpose of reading a force, with what it is in double precision.
#include "lattice.hpp"

template <class Geometry, class Real>
struct Transpose {
    Random random;
    Geometry g;
    int cells[3], shift[3];  // extents of the potential, and where the painted mesh begins in it
    float near[3], far[3];   // weights of the differences over one and two cells
    Buffer<Real> disp, weight, field;
    Buffer<unsigned> invalid;

    explicit Transpose(unsigned seed)
        : random{std::mt19937_64(seed)},
          g(lattice<Geometry>(random, seed, NUM, DEN, NUM < DEN ? 10 : 18)),
          disp(displacements<Real>(random, g, 1 / 1024.)),
          weight(3 * particles(g)),
          field(extents()),
          invalid(1) {
        for (size_t i = 0; i < weight.count; ++i) weight[i] = (Real)(random.normal() * std::pow(10, random.uniform(-3, 3)));
    }

    std::vector<double> expected() const {
        std::vector<double> sum(field.count);
        const bool mask[3] = {};
        each_corner(g, disp, mask, [&](size_t particle, int, size_t cell, double share) {
            for (int axis = 0; axis < 3; ++axis) subtract_from(sum, cell, axis, share * weight[3 * particle + axis]);
        });
        return sum;
    }

   private:
    size_t extents() {
        size_t size = 1;
        for (int axis = 0; axis < 3; ++axis) {
            shift[axis] = g.periodic[axis] ? 0 : 2;
            cells[axis] = g.cells[axis] + 2 * shift[axis];
            near[axis] = (float)random.uniform(0.5, 2), far[axis] = -near[axis] / 8;
            size *= cells[axis];
        }
        return size;
    }

    // What an amount in a cell of the painted mesh adds to those beside it along an axis.
    void subtract_from(std::vector<double>& sum, size_t cell, int axis, double amount) const {
        const int at[3] = {(int)(cell / g.cells[2] / g.cells[1]), (int)(cell / g.cells[2] % g.cells[1]), (int)(cell % g.cells[2])};
        const double factor[5] = {far[axis], near[axis], 0, -near[axis], -far[axis]};
        for (int k = -2; k <= 2; ++k) {
            size_t to = 0;
            for (int a = 0; a < 3; ++a) {
                int n = cells[a];
                to = to * n + (at[a] + shift[a] + (a == axis ? k : 0) + n) % n;
            }
            sum[to] -= factor[k + 2] * amount;
        }
    }
};

// Checks that a number that is not finite, instead of a valid one, leaves NaN everywhere.
template <class Case, class Real>
void check_that_all_is_nan(Case& c, void (*run)(Case&), Real& value, Real bad) {
    const Real good = value;
    value = bad;
    run(c);
    value = good;
    check(c.invalid[0] == 1, "an invalid particle is not reported");
    for (size_t i = 0; i < c.field.count; ++i) check(std::isnan(c.field[i]), "an invalid particle leaves numbers");
}

// Checks `run`, which launches the kernels.
template <class Geometry, class Real>
void check_transpose(unsigned seed, void (*run)(Transpose<Geometry, Real>&), double tolerance) {
    Transpose<Geometry, Real> c(seed);
    run(c);
    check(c.invalid[0] == 0, "valid particles are reported");
    close(c.field, c.expected(), c.field.count, tolerance, "transpose of a force");
    if (seed != 1) return;  // the first lattice is the largest
    check_that_all_is_nan(c, run, c.weight[c.weight.count - 1], (Real)INFINITY);
    check_that_all_is_nan(c, run, c.disp[c.disp.count - 2], (Real)NAN);
}
