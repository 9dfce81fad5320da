// Differences of painted fields, added up to the transpose of reading a force where particles share no cells: one field after
// the other is painted to the same sums. Concatenated after paint.cu, for float.

// Extents of the potential, which has `shift` cells more than the painted mesh on each side, and weights of the differences
// over one and two cells.
struct Differences {
    int cells[3], shift[3];
    float near[3], far[3];
};

constexpr int PLANES = 16;  // that a thread follows

// A cell of the painted mesh along an axis, for one of the potential that may be two beyond it; -1 if there is none.
__device__ inline int mesh_cell(const Geometry& g, const Differences& d, int axis, int cell) {
    cell -= d.shift[axis];
    if (g.periodic[axis]) return wrap(cell, g.cells[axis]);
    return (u32)cell < (u32)g.cells[axis] ? cell : -1;
}

// Subtracts the differences along an axis from the potential, which the first axis sets. `value` converts a sum; beyond the
// painted mesh there is `beyond`.
template <int AXIS, class Value>
__device__ inline void subtract(const Geometry& g, const Differences& d, const u64* sums, Value value, Real beyond,
                                Real* potential) {
    const u64 line = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const int z = line % d.cells[2], y = line / d.cells[2] % d.cells[1];
    const u64 first = line / d.cells[2] / d.cells[1] * PLANES;
    if (first >= d.cells[0]) return;
    const int last = min((int)first + PLANES, d.cells[0]);
    const Index plane = (Index)g.cells[1] * g.cells[2];
    // Of the cells two before, one before, one behind and two behind: their offsets in a plane.
    constexpr int STEP[4] = {-2, -1, 1, 2};
    Index aside[4];
    bool there[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int v = mesh_cell(g, d, 1, y + (AXIS == 1 ? STEP[i] : 0)), w = mesh_cell(g, d, 2, z + (AXIS == 2 ? STEP[i] : 0));
        there[i] = v >= 0 && w >= 0;
        aside[i] = (Index)v * g.cells[2] + w;
    }
    for (int x = (int)first; x < last; ++x) {
        Real v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = mesh_cell(g, d, 0, x + (AXIS == 0 ? STEP[i] : 0));
            v[i] = there[i] && at >= 0 ? value(sums + (at * plane + aside[i])) : beyond;
        }
        Real* const cell = potential + (((Index)x * d.cells[1] + y) * d.cells[2] + z);
        *cell = (AXIS ? *cell : 0) - ((v[2] - v[1]) * d.near[AXIS] + (v[3] - v[0]) * d.far[AXIS]);
    }
}

// `subtract` for the sums of one field; NaN everywhere if any position or weight is invalid.
extern "C" __global__ void subtract_differences(Geometry g, Differences d, u32 axis, const u64* sums, int contribution_bits,
                                                const Bits* largest, const u32* invalid, Real* potential) {
    const double resolution = power_of_two(resolution_exponent(magnitude(largest[axis]), contribution_bits));
    const Real beyond = *invalid ? NOT_A_NUMBER : 0;
    auto value = [=](const u64* sum) { return beyond + (Real)(total(sum) * resolution); };
    if (axis == 0) subtract<0>(g, d, sums, value, beyond, potential);
    if (axis == 1) subtract<1>(g, d, sums, value, beyond, potential);
    if (axis == 2) subtract<2>(g, d, sums, value, beyond, potential);
}
