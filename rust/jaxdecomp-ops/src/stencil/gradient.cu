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

typedef unsigned int u32;

constexpr int ROWS = 4;    // of a thread of the transpose
constexpr int WARPS = 4;   // of a block of the gradient, one above the other along y
constexpr int PLANES = 8;  // that a warp of it follows

// Extents of the field (outer) and of its gradient (inner): equal along periodic axes, 4 more cells of the field along others.
struct Mesh {
    int outer[3], inner[3], periodic[3];
    double near[3], far[3];  // weights of the differences over one and two cells
    float near32[3], far32[3];
};

// Wraps a cell at most two cells outside.
__device__ inline int wrap(int cell, int cells) {
    cell += cell < 0 ? cells : 0;
    cell -= cell >= cells ? cells : 0;
    return cells > 1 ? cell : 0;
}

// Calls body(cell) for each cell of a thread: ROWS rows along z for each ceil(cells / threads) blocks.
template <class Body>
__device__ inline void for_cells(const int cells[3], Body body) {
    unsigned chunks = (cells[2] + blockDim.x - 1) / blockDim.x, row = blockIdx.x / chunks * ROWS;
    int x = row / cells[1], y = row % cells[1], z = blockIdx.x % chunks * blockDim.x + threadIdx.x;
    if (z >= cells[2]) return;
    for (int r = 0; r < ROWS && x < cells[0]; ++r) {
        int cell[3] = {x, y, z};
        body(cell);
        if (++y == cells[1]) {
            y = 0;
            ++x;
        }
    }
}

__device__ inline Index at(const int cells[3], int x, int y, int z) {
    return ((Index)x * cells[1] + y) * cells[2] + z;
}

// Of values two cells and one cell before, and one cell and two cells behind.
__device__ inline Real difference(const Mesh& m, int axis, Real a, Real b, Real d, Real e) {
#if REAL_BITS == 32
    return (d - b) * m.near32[axis] + (e - a) * m.far32[axis];
#else
    return (d - b) * m.near[axis] + (e - a) * m.far[axis];
#endif
}

// fields[x, y, z, axis] = difference of the field along the axis. A warp follows a row of 32 cells along x, of which it keeps
// five, and its results, three for each cell, are stored in consecutive pieces. With a place the field is that of several.
extern "C" __global__ void gradient(Mesh m, const Real* __restrict__ field, Real* __restrict__ fields, const int* place) {
    if (place) field += (unsigned long long)*place * m.outer[0] * m.outer[1] * m.outer[2];
    __shared__ Real stage[96 * WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 parts[2] = {(u32)(m.inner[1] + WARPS - 1) / WARPS, (u32)(m.inner[2] + 31) / 32};
    int first = blockIdx.x / parts[1] / parts[0] * PLANES, y = blockIdx.x / parts[1] % parts[0] * WARPS + warp;
    int start = blockIdx.x % parts[1] * 32, z = min(start + (int)lane, m.inner[2] - 1);
    if (y >= m.inner[1]) return;
    u32 count = 3 * min(32, m.inner[2] - start);
    Real* own = stage + 96 * warp;
    int shift[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) shift[axis] = m.periodic[axis] ? 0 : 2;
    // Offsets of the neighbours in their plane.
    Index aside[2][5];
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        int v = y + shift[1] + i - 2, w = z + shift[2] + i - 2;
        v = m.periodic[1] ? wrap(v, m.outer[1]) : v;
        w = m.periodic[2] ? wrap(w, m.outer[2]) : w;
        aside[0][i] = (Index)v * m.outer[2] + z + shift[2];
        aside[1][i] = (Index)(y + shift[1]) * m.outer[2] + w;
    }
    const Index plane = (Index)m.outer[1] * m.outer[2];
    auto x_at = [&](int x) { return (Index)(m.periodic[0] ? wrap(x, m.outer[0]) : x + 2) * plane; };
    Real v[5];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i + 1] = field[x_at(first + i - 2) + aside[0][2]];
    int last = min(first + PLANES, m.inner[0]);
    for (int x = first; x < last; ++x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = v[i + 1];
        v[4] = field[x_at(x + 2) + aside[0][2]];
        Index base = x_at(x);
        own[3 * lane] = difference(m, 0, v[0], v[1], v[3], v[4]);
#pragma unroll
        for (int axis = 1; axis < 3; ++axis) {
            Real w[5];
#pragma unroll
            for (int i = 0; i < 5; ++i)
                if (i != 2) w[i] = field[base + aside[axis - 1][i]];
            own[3 * lane + axis] = difference(m, axis, w[0], w[1], w[3], w[4]);
        }
        __syncwarp();
        Index out = 3 * at(m.inner, x, y, start);
#pragma unroll
        for (u32 i = lane; i < 96; i += 32)
            if (i < count) fields[out + i] = own[i];
        __syncwarp();
    }
}

#if REAL_BITS == 32
// `gradient` where rows are periodic and of a multiple of four cells, which a thread takes: that is an eighth of the
// instructions for each cell.
extern "C" __global__ void gradient_of_fours(Mesh m, const float* __restrict__ field, float* __restrict__ fields, const int* place) {
    if (place) field += (unsigned long long)*place * m.outer[0] * m.outer[1] * m.outer[2];
    __shared__ float4 stage[96 * WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 parts[2] = {(u32)(m.inner[1] + WARPS - 1) / WARPS, (u32)(m.inner[2] + 127) / 128};
    int first = blockIdx.x / parts[1] / parts[0] * PLANES, y = blockIdx.x / parts[1] % parts[0] * WARPS + warp;
    int start = blockIdx.x % parts[1] * 128, z = min(start + 4 * (int)lane, m.inner[2] - 4);
    if (y >= m.inner[1]) return;
    u32 count = 3 * min(128, m.inner[2] - start) / 4;
    float4* own = stage + 96 * warp;
    // Offsets in a plane: of the rows beside this one, and of the two cells before and behind those of the thread.
    Index rows[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        int v = y + (m.periodic[1] ? 0 : 2) + i - 2;
        rows[i] = (Index)(m.periodic[1] ? wrap(v, m.outer[1]) : v) * m.outer[2] + z;
    }
    const Index before = rows[2] - z + (z ? z : m.outer[2]) - 2, behind = rows[2] - z + (z + 4 == m.outer[2] ? 0 : z + 4);
    const Index plane = (Index)m.outer[1] * m.outer[2];
    auto x_at = [&](int x) { return (Index)(m.periodic[0] ? wrap(x, m.outer[0]) : x + 2) * plane; };
    auto load = [&](Real to[4], Index at) {
        const float4 four = *(const float4*)(field + at);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    };
    Real v[5][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) load(v[i + 1], x_at(first + i - 2) + rows[2]);
    int last = min(first + PLANES, m.inner[0]);
    for (int x = first; x < last; ++x) {
        const Index base = x_at(x);
        Real w[5][4], line[8], out[12];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int k = 0; k < 4; ++k) v[i][k] = v[i + 1][k];
        load(v[4], x_at(x + 2) + rows[2]);
#pragma unroll
        for (int i = 0; i < 5; ++i)
            if (i != 2) load(w[i], base + rows[i]);
        const float2 low = *(const float2*)(field + base + before), high = *(const float2*)(field + base + behind);
        line[0] = low.x, line[1] = low.y, line[6] = high.x, line[7] = high.y;
#pragma unroll
        for (int k = 0; k < 4; ++k) line[k + 2] = v[2][k];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            out[3 * k] = difference(m, 0, v[0][k], v[1][k], v[3][k], v[4][k]);
            out[3 * k + 1] = difference(m, 1, w[0][k], w[1][k], w[3][k], w[4][k]);
            out[3 * k + 2] = difference(m, 2, line[k], line[k + 1], line[k + 3], line[k + 4]);
        }
#pragma unroll
        for (int i = 0; i < 3; ++i) own[3 * lane + i] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
        __syncwarp();
        float4* to = (float4*)(fields + 3 * at(m.inner, x, y, start));
#pragma unroll
        for (u32 i = lane; i < 96; i += 32)
            if (i < count) to[i] = own[i];
        __syncwarp();
    }
}
#endif

// field[x, y, z] = - sum of the differences of fields[..., axis] along the axes; fields are zero outside.
extern "C" __global__ void divergence(Mesh m, const Real* __restrict__ fields, Real* __restrict__ field) {
    for_cells(m.outer, [=](int c[3]) {
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
            sum -= difference(m, axis, v[0], v[1], v[3], v[4]);
        }
        field[out] = sum;
    });
}
