// A kick with drifts, and its undoing with cotangents, which gives back every bit of the particles.
#include "lattice.hpp"

typedef forth::Real Real;

const double Q = 1 / 262144., UNIT = 1 / 2097152.;

void step_once(unsigned seed) {
    Random random{std::mt19937_64(seed)};
    forth::Geometry g = lattice<forth::Geometry>(random, seed, NUM, DEN, 15);
    back::Geometry same;
    static_assert(sizeof(same) == sizeof(g));
    std::memcpy(&same, &g, sizeof(g));
    const size_t count = 3 * particles(g);
    Buffer<Real> disp = displacements<Real>(random, g, Q), vel(count), fields(3 * cells(g)), field(cells(g));
    Buffer<Real> ct_disp(count), ct_vel(count), new_disp(count), new_vel(count), new_ct_disp(count), new_ct_vel(count);
    for (size_t i = 0; i < count; ++i) {
        vel[i] = bits_of<Real>((forth::Whole)(random.integer(-1000000, 1000000) + ONE));
        ct_disp[i] = (Real)random.normal(), ct_vel[i] = (Real)random.normal();
    }
    for (size_t i = 0; i < fields.count; ++i) fields[i] = (Real)random.normal();
    for (size_t i = 0; i < field.count; ++i) field[i] = (Real)random.normal();
    Buffer<forth::Step> step(1);
    step[0] = {(Real)(0.3 / UNIT), (Real)(1 / UNIT), (Real)UNIT, (Real)(0.1 / Q), (Real)(0.2 / Q), 1};
    Buffer<forth::Bits> most(1);
    most.zero();
    launch(blocks(g, forth::SITES), forth::SITES[0] * forth::SITES[1] * forth::SITES[2], [&] {
        forth::kick_drift(g, Q, disp.data, vel.data, fields.data, step.data, new_disp.data, new_vel.data, most.data);
    });
    Real largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(new_disp[i]));
    check(bits_of<Real>(most[0]) == largest, "the largest displacement is another");
    // Coefficients of the drifts, and of the kick.
    Buffer<Real> coefficients(12);
    const double values[12] = {0.3, 1.1, UNIT, -0.2 / Q, -0.1 / Q, 1, 0.3 / UNIT, UNIT, UNIT, 0.1, 0.3, 1};
    for (int i = 0; i < 12; ++i) coefficients[i] = (Real)values[i];
    const Dim grid = blocks(g, back::SITES);
    const unsigned number = grid.x * grid.y * grid.z;
    Buffer<double> partial((size_t)number * back::SUMS);
    launch(grid, back::SITES[0] * back::SITES[1] * back::SITES[2], [&] {
        // In place, as in a loop.
        back::undo(same, Q, new_disp.data, new_vel.data, ct_disp.data, ct_vel.data, field.data, fields.data, coefficients.data,
                   new_disp.data, new_vel.data, new_ct_disp.data, new_ct_vel.data, partial.data);
    });
    check(!std::memcmp(new_disp.data, disp.data, count * sizeof(Real)), "displacements are not restored");
    check(!std::memcmp(new_vel.data, vel.data, count * sizeof(Real)), "momenta are not restored");
    for (size_t i = 0; i < count; ++i)
        check(std::isfinite(new_ct_disp[i]) && std::isfinite(new_ct_vel[i]), "a cotangent is not finite");
    if (seed) return;
    Buffer<Real> sums(back::SUMS);
    launch({back::SUMS}, 1024, [&] { back::total(partial.data, number, sums.data); });
    for (int s = 0; s < back::SUMS; ++s) {
        double expected = 0;
        for (unsigned i = 0; i < number; ++i) expected += partial[(size_t)s * number + i];
        check(std::fabs(sums[s] - expected) <= 1e-5 * std::fabs(expected) + 1e-3, "a sum is another");
    }
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 2); ++seed) step_once(seed);
}
