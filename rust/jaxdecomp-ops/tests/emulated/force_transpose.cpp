// The transpose of reading a force: one field after the other is painted and its differences subtracted from the potential,
// against double precision.
#include "lattice.hpp"

using namespace unit;

struct Case {
    Random random;
    Geometry g;
    Differences d;
    Buffer<Real> disp, weight, field;
    Buffer<u32> invalid;

    explicit Case(unsigned seed)
        : random{std::mt19937_64(seed)},
          g(lattice<Geometry>(random, seed, NUM, DEN, NUM < DEN ? 10 : 18)),
          disp(displacements<Real>(random, g, 1 / 1024.)),
          weight(3 * particles(g)),
          field(extents()),
          invalid(1) {
        for (size_t i = 0; i < weight.count; ++i) weight[i] = (Real)(random.normal() * std::pow(10, random.uniform(-3, 3)));
    }

    void run() {
        const int bits = 42;
        const unsigned lines = (d.cells[0] + PLANES - 1) / PLANES * d.cells[1] * d.cells[2];
        Buffer<Bits> most(3);
        Buffer<u64> sums(cells(g));
        most.zero(), invalid.zero();
        launch({3}, 256, [&] { largest(weight.data, weight.count, 3, most.data, invalid.data); });
        for (u32 axis = 0; axis < 3; ++axis) {
            sums.zero();
            launch(blocks(g, SITES), THREADS, [&] {
                paint(g, disp.data, weight.data, 3, axis, bits, most.data, sums.data, invalid.data);
            });
            launch({(lines + 63) / 64}, 64, [&] {
                subtract_differences(g, d, axis, sums.data, bits, most.data, invalid.data, field.data);
            });
        }
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
            d.shift[axis] = g.periodic[axis] ? 0 : 2;
            d.cells[axis] = g.cells[axis] + 2 * d.shift[axis];
            d.near[axis] = (float)random.uniform(0.5, 2), d.far[axis] = -d.near[axis] / 8;
            size *= d.cells[axis];
        }
        return size;
    }

    // What an amount in a cell of the painted mesh adds to those beside it along an axis.
    void subtract_from(std::vector<double>& sum, size_t cell, int axis, double amount) const {
        const int at[3] = {(int)(cell / g.cells[2] / g.cells[1]), (int)(cell / g.cells[2] % g.cells[1]), (int)(cell % g.cells[2])};
        const double factor[5] = {d.far[axis], d.near[axis], 0, -d.near[axis], -d.far[axis]};
        for (int k = -2; k <= 2; ++k) {
            size_t to = 0;
            for (int a = 0; a < 3; ++a) {
                int n = d.cells[a];
                to = to * n + (at[a] + d.shift[a] + (a == axis ? k : 0) + n) % n;
            }
            sum[to] -= factor[k + 2] * amount;
        }
    }
};

void check_that_all_is_nan(Case& c, Real& value, Real bad) {
    const Real good = value;
    value = bad;
    c.run();
    value = good;
    check(c.invalid[0] == 1, "an invalid particle is not reported");
    for (size_t i = 0; i < c.field.count; ++i) check(std::isnan(c.field[i]), "an invalid particle leaves numbers");
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 3); ++seed) {
        Case c(seed);
        c.run();
        check(c.invalid[0] == 0, "valid particles are reported");
        close(c.field, c.expected(), c.field.count, 5e-7, "transpose of a force");
        if (seed != 1) continue;  // the first lattice is the largest
        check_that_all_is_nan(c, c.weight[c.weight.count - 1], INFINITY);
        check_that_all_is_nan(c, c.disp[c.disp.count - 2], NAN);
    }
}
