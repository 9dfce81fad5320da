// Fourth-order central differences of a field on a mesh, and their transpose. Products and sums are not contracted (--fmad=false).
//
// Macros: REAL_BITS (32 or 64), WIDE_INDEX (0 or 1: offsets of 64 bits).

#if REAL_BITS == 32
typedef float Real;
#else
typedef double Real;
#endif
#if WIDE_INDEX
typedef unsigned long long Index;
#else
typedef unsigned int Index;
#endif

// Extents of the field (outer) and of its gradient (inner): equal along periodic axes, 4 more cells of the field along others.
struct Mesh {
    int outer[3], inner[3], periodic[3];
    double cell[3];
};

__device__ inline int wrap(int cell, int cells) {
    cell += cell < 0 ? cells : 0;
    cell -= cell >= cells ? cells : 0;
    return (unsigned)cell < (unsigned)cells ? cell : (cell % cells + cells) % cells;
}

// Cell of a thread, one row along z for each ceil(cells / threads) blocks; false if it is outside.
__device__ inline bool locate(const int cells[3], int cell[3]) {
    unsigned chunks = (cells[2] + blockDim.x - 1) / blockDim.x, row = blockIdx.x / chunks;
    cell[0] = row / cells[1];
    cell[1] = row % cells[1];
    cell[2] = blockIdx.x % chunks * blockDim.x + threadIdx.x;
    return cell[2] < cells[2];
}

__device__ inline Index at(const int cells[3], int x, int y, int z) {
    return ((Index)x * cells[1] + y) * cells[2] + z;
}

__device__ inline Real difference(Real far_below, Real below, Real above, Real far_above, double cell) {
    return (above - below) * (Real)(2.0 / 3.0 / cell) + (far_above - far_below) * (Real)(-1.0 / 12.0 / cell);
}

// fields[x, y, z, axis] = difference of the field along the axis
extern "C" __global__ void gradient(Mesh m, const Real* __restrict__ field, Real* __restrict__ fields) {
    int c[3];
    if (!locate(m.inner, c)) return;
    Index out = 3 * at(m.inner, c[0], c[1], c[2]);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) c[axis] += m.periodic[axis] ? 0 : 2;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        Real v[5];
#pragma unroll
        for (int i = 0; i < 5; ++i) {
            if (i == 2) continue;
            int e[3] = {c[0], c[1], c[2]};
            e[axis] = m.periodic[axis] ? wrap(e[axis] + i - 2, m.outer[axis]) : e[axis] + i - 2;
            v[i] = field[at(m.outer, e[0], e[1], e[2])];
        }
        fields[out + axis] = difference(v[0], v[1], v[3], v[4], m.cell[axis]);
    }
}

// field[x, y, z] = - sum of the differences of fields[..., axis] along the axes; fields are zero outside.
extern "C" __global__ void divergence(Mesh m, const Real* __restrict__ fields, Real* __restrict__ field) {
    int c[3];
    if (!locate(m.outer, c)) return;
    Index out = at(m.outer, c[0], c[1], c[2]);
    bool inside[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        c[axis] -= m.periodic[axis] ? 0 : 2;
        inside[axis] = (unsigned)c[axis] < (unsigned)m.inner[axis];
    }
    Real sum = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        if (!(axis == 0 || inside[0]) || !(axis == 1 || inside[1]) || !(axis == 2 || inside[2])) continue;
        Real v[5];
#pragma unroll
        for (int i = 0; i < 5; ++i) {
            if (i == 2) continue;
            int e[3] = {c[0], c[1], c[2]};
            e[axis] = m.periodic[axis] ? wrap(e[axis] + i - 2, m.inner[axis]) : e[axis] + i - 2;
            bool there = (unsigned)e[axis] < (unsigned)m.inner[axis];
            v[i] = there ? fields[3 * at(m.inner, e[0], e[1], e[2]) + axis] : 0;
        }
        sum -= difference(v[0], v[1], v[3], v[4], m.cell[axis]);
    }
    field[out] = sum;
}
