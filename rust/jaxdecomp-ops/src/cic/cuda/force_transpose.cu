// Transpose of reading the fourth-order differences of a potential: vectors are painted as three fields, in one pass over
// the particles, and the differences of their sums taken as integers. Concatenated after paint.cu, for float, with a tile.
//
// Eight times a difference over one cell minus that over two, with weights divided by twelve cells, is such a difference.

// Extents of the potential, which has `shift` cells more than the painted mesh on each side, and 1 / (12 cells).
struct Potential {
    double per_cell[3];
    int cells[3], shift[3];
};

// Largest contribution of any axis.
__device__ inline double largest_contribution(const Potential& p, const Bits* largest) {
    double most = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) most = fmax(most, magnitude(largest[axis]) * p.per_cell[axis]);
    return most;
}

// Sums of 32 bits of a box of cells, in a unit of the block's own, and its particles outside of the box. Shared memory.
//
// The unit is the power of two for which the sum of the magnitudes of all weights of the block stays below 2^31, so that no
// cell's can exceed it.
struct VectorTile : Box {
    static constexpr int WARPS = THREADS / 32, SUM_BITS = 31;
    int sum[CELLS];
    Real total[3][WARPS];
    int exponent[3];
    u32 outside;
    unsigned short site[BX * BY * BZ];

    __device__ void clear() {
        for (int i = threadIdx.x; i < CELLS; i += THREADS) sum[i] = 0;
    }

    // Finds the exponents of the units for the weights of each thread. Contains barriers.
    __device__ void choose_units(const Real weight[EACH][3]) {
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            Real all = 0;
#pragma unroll
            for (int e = 0; e < EACH; ++e) all += fabs(weight[e][axis]);
#pragma unroll
            for (int lanes = 16; lanes; lanes >>= 1) all += __shfl_xor_sync(~0u, all, lanes);
            if (threadIdx.x % 32 == 0) total[axis][threadIdx.x / 32] = all;
        }
        __syncthreads();
        if (threadIdx.x < 3) {
            Real all = 0;
            for (int warp = 0; warp < WARPS; ++warp) all += total[threadIdx.x][warp];
            // Room for the rounding of this sum and of the contributions.
            exponent[threadIdx.x] = bound(all * (Real)1.0001) - SUM_BITS;
        }
        __syncthreads();
    }

    // Exponent of a power of two above a number.
    __device__ static int bound(Real x) { return (int)(__float_as_uint(x) >> 23) - 126; }

    // A weight in its unit; in two factors, neither of which overflows.
    __device__ Real in_units(Real weight, int axis) const {
        const int half = exponent[axis] / 2, rest = exponent[axis] - half;
        return weight * __uint_as_float((127 - half) << 23) * __uint_as_float((127 - rest) << 23);
    }

    __device__ void deposit(int at, const Real t[3], Real weight) {
        const Real x[2] = {weight * (1 - t[0]), weight * t[0]}, z[2] = {1 - t[2], t[2]};
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            Real xy = x[c >> 2] * (c & 2 ? t[1] : 1 - t[1]);
            atomicAdd(sum + at + corner_offset(c), __float2int_rn(xy * z[c & 1]));
        }
    }

    // Adds the sums to those of a field, whose resolution has this exponent.
    __device__ void flush(const Geometry& g, u64* sums, int axis, int resolution) const {
        const int shift = max(exponent[axis] - resolution, -40);
        each(g, [&](Index cell, int at) {
            i64 value = sum[at];
            value = shift >= 0 ? value << shift : (value + (1LL << (-shift - 1))) >> -shift;
            if (value) atomicAdd(sums + cell, (u64)value);
        });
    }
};

// Adds the vectors of the particles of a block of sites to the sums of three fields, which follow each other.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
paint_vectors(Geometry g, Potential p, const Real* disp, const Real* weight, int contribution_bits, const Bits* largest,
              u64* sums, u32* invalid) {
    __shared__ Sites sites;
    __shared__ VectorTile tile;
    sites.fill(g, blockIdx.x);
    tile.reset();
    tile.clear();
    if (threadIdx.x == 0) tile.outside = 0;
    __syncthreads();
    const u64 cells = (u64)g.cells[0] * g.cells[1] * g.cells[2];
    const int resolution = resolution_exponent(largest_contribution(p, largest), contribution_bits);
    Real offset[EACH][3], vector[EACH][3];
    int at[EACH];
    {
        Own own;
        own.locate(g, sites, disp, invalid);
        tile.centre(g, sites, own);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            at[e] = own.valid[e] ? tile.place(own.cell[e]) : -1;
            if (own.valid[e] && at[e] < 0) tile.site[atomicAdd(&tile.outside, 1u)] = threadIdx.x + e * THREADS;
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) {
                offset[e][axis] = own.offset[e][axis];
                vector[e][axis] = at[e] < 0 ? 0 : weight[3 * own.site[e] + axis] * (Real)p.per_cell[axis];
            }
        }
    }
    tile.choose_units(vector);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        if (axis) {
            tile.clear();
            __syncthreads();
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (at[e] >= 0) tile.deposit(at[e], offset[e], tile.in_units(vector[e][axis], axis));
        __syncthreads();
        tile.flush(g, sums + axis * cells, axis, resolution);
        __syncthreads();
    }
    // Those outside of the box, one for each thread: few of a warp would keep the others waiting.
    for (u32 i = threadIdx.x; i < tile.outside; i += THREADS) {
        int cell[3];
        Real t[3];
        u64 site;
        sites.site(g, tile.site[i], site);
        sites.particle(g, tile.site[i], disp + 3 * site, cell, t);
#pragma unroll 1
        for (int axis = 0; axis < 3; ++axis) {
            const double per_cell = axis == 0 ? p.per_cell[0] : axis == 1 ? p.per_cell[1] : p.per_cell[2];
            i64 value[8];
            contributions(t, weight + 3 * site + axis, 1, power_of_two(-resolution) * per_cell, value);
            add_to_mesh(g, sums + axis * cells, cell, value);
        }
    }
}

constexpr int ROWS = 4, PLANES = 32;  // of cells that a block, and a warp of it, go over

// Adds up the differences of the sums of the three fields along their axes; NaN if any position or weight is invalid.
// A warp follows a row of 32 cells along x.
extern "C" __global__ void differences(const u64* __restrict__ sums, Geometry g, Potential p, int contribution_bits,
                                       const Bits* largest, const u32* invalid, Real* field) {
    const u32 parts[2] = {(u32)(p.cells[1] + ROWS - 1) / ROWS, (u32)(p.cells[2] + 31) / 32};
    const int first = blockIdx.x / parts[1] / parts[0] * PLANES;
    const int y = blockIdx.x / parts[1] % parts[0] * ROWS + threadIdx.x / 32, z = blockIdx.x % parts[1] * 32 + threadIdx.x % 32;
    if (y >= p.cells[1] || z >= p.cells[2]) return;
    const double resolution = power_of_two(resolution_exponent(largest_contribution(p, largest), contribution_bits));
    const bool bad = *invalid;
    const int last = min(first + PLANES, p.cells[0]);
    const u64 cells = (u64)g.cells[0] * g.cells[1] * g.cells[2];
    // Cell of the painted mesh at one of the potential, or -1 beyond it.
    auto cell = [&](int axis, int at) {
        at -= p.shift[axis];
        if (p.shift[axis] == 0) return wrap(at, g.cells[axis]);
        return (u32)at < (u32)g.cells[axis] ? at : -1;
    };
    auto sum = [&](int axis, int x, int y, int z) {
        return x < 0 || y < 0 || z < 0 ? 0 : sums[axis * cells + ((Index)x * g.cells[1] + y) * g.cells[2] + z];
    };
    const int own_y = cell(1, y), own_z = cell(2, z);
    int ys[5], zs[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        ys[i] = cell(1, y + i - 2);
        zs[i] = cell(2, z + i - 2);
    }
    u64 v[5];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i + 1] = sum(0, cell(0, first + i - 2), own_y, own_z);
    for (int x = first; x < last; ++x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = v[i + 1];
        v[4] = sum(0, cell(0, x + 2), own_y, own_z);
        const int own_x = cell(0, x);
        u64 near = v[1] - v[3], far = v[4] - v[0];
        near += sum(1, own_x, ys[1], own_z) - sum(1, own_x, ys[3], own_z);
        far += sum(1, own_x, ys[4], own_z) - sum(1, own_x, ys[0], own_z);
        near += sum(2, own_x, own_y, zs[1]) - sum(2, own_x, own_y, zs[3]);
        far += sum(2, own_x, own_y, zs[4]) - sum(2, own_x, own_y, zs[0]);
        field[((Index)x * p.cells[1] + y) * p.cells[2] + z] = bad ? NOT_A_NUMBER : (Real)((double)(i64)(8 * near + far) * resolution);
    }
}
