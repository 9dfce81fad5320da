// Transpose of reading the fourth-order differences of a potential: vectors are painted as three fields, in one pass over
// the particles, and the differences of their sums taken in shared memory. Concatenated after paint.cu, for float, with a
// tile.
//
// Eight times a difference over one cell minus that over two, with weights divided by twelve cells, is such a difference.

// Extents of the potential, which has `shift` cells more than the painted mesh on each side, and 1 / (12 cells).
struct Potential {
    double per_cell[3];
    int cells[3], shift[3];

    // Number along an axis of a cell of the painted mesh; of one that is beyond the potential, any.
    __device__ int cell(int axis, int at) const { return wrap(at + shift[axis], cells[axis]); }
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
    unsigned short site[PARTICLES];

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
            // A margin for the rounding of this sum and of the contributions.
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

    // Adds the differences of the sums along an axis to the potential, whose resolution has this exponent. They reach two
    // cells beyond the box. Each thread follows lines along x.
    template <int AXIS>
    __device__ void flush(const Potential& p, u64* potential, int resolution) const {
        constexpr int EXTENT[3] = {TX, TY, TZ}, STRIDE[3] = {TY * TZ, TZ, 1};
        constexpr int X = TX + 4 * (AXIS == 0), Y = TY + 4 * (AXIS == 1), Z = TZ + 4 * (AXIS == 2);
        const int shift = max(exponent[AXIS] - resolution, -40);
        const Index plane = (Index)p.cells[1] * p.cells[2];
        for (int line = threadIdx.x; line < Y * Z; line += THREADS) {
            const int y = line / Z - 2 * (AXIS == 1), z = line % Z - 2 * (AXIS == 2), base = y * TZ + z;
            int x = p.cell(0, start[0] - 2 * (AXIS == 0));
            u64* row = potential + ((Index)p.cell(1, start[1] + y) * p.cells[2] + p.cell(2, start[2] + z));
            bool inside[5];
#pragma unroll
            for (int k = 0; k < 5; ++k) inside[k] = (u32)((AXIS == 1 ? y : z) + k - 2) < (u32)EXTENT[AXIS];
            int v[5] = {};
#pragma unroll
            for (int i = 0; i < X; ++i) {
                if (AXIS == 0) {
#pragma unroll
                    for (int k = 0; k < 4; ++k) v[k] = v[k + 1];
                    v[4] = i < TX ? sum[i * STRIDE[0] + base] : 0;
                } else {
#pragma unroll
                    for (int k = 0; k < 5; ++k)
                        if (k != 2) v[k] = inside[k] ? sum[i * STRIDE[0] + base + (k - 2) * STRIDE[AXIS]] : 0;
                }
                i64 value = 8 * ((i64)v[1] - v[3]) + ((i64)v[4] - v[0]);
                value = shift >= 0 ? value << shift : (value + (1LL << (-shift - 1))) >> -shift;
                if (value) atomicAdd(row + x * plane, (u64)value);
                x = x + 1 == p.cells[0] ? 0 : x + 1;
            }
        }
    }
};

// Adds the differences of a particle's contributions to the field of an axis to the potential. Two threads share a
// particle, so that they add to neighbouring cells along z at the same time; `odd` is the second of them.
template <int AXIS>
__device__ inline void add_differences(const Potential& p, u64* potential, const int cell[3], const i64 value[8], bool odd) {
    constexpr int ROWS = AXIS == 2 ? 4 : 2, CELLS = AXIS == 2 ? 3 : 6;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        // The lower corner of the row; along z the threads share it, else the second has the one above.
        const int corner = AXIS == 0 ? 2 * row : AXIS == 1 ? 4 * row : 2 * row, above = AXIS == 2 ? 0 : 1;
        const i64 low = odd ? value[corner + above] : value[corner];
        const i64 high = odd ? value[corner + above + (4 >> AXIS)] : value[corner + (4 >> AXIS)];
        const i64 parts[6] = {low, high - 8 * low, -8 * high, 8 * low, 8 * high - low, -high};
        const int x = cell[0] + (corner >> 2), y = cell[1] + (corner >> 1 & 1), z = cell[2] + (AXIS == 2 ? 0 : odd);
#pragma unroll
        for (int k = 0; k < CELLS; ++k) {
            const int along = AXIS == 2 ? 2 * k + odd : k;
            const i64 part = AXIS == 2 ? (odd ? parts[2 * k + 1] : parts[2 * k]) : parts[k];
            Index line = (Index)p.cell(0, x + (AXIS == 0 ? along - 2 : 0)) * p.cells[1] + p.cell(1, y + (AXIS == 1 ? along - 2 : 0));
            atomicAdd(potential + (line * p.cells[2] + p.cell(2, z + (AXIS == 2 ? along - 2 : 0))), (u64)part);
        }
    }
}

// Paints the vectors of the particles of a block of sites as three fields, and adds their differences to the potential.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
paint_vectors(Geometry g, Potential p, const Real* disp, const Real* weight, int contribution_bits, const Bits* largest,
              u64* potential, u32* invalid) {
    __shared__ Sites sites;
    __shared__ VectorTile tile;
    sites.fill(g);
    tile.reset();
    tile.clear();
    if (threadIdx.x == 0) tile.outside = 0;
    __syncthreads();
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
        if (axis == 0) tile.flush<0>(p, potential, resolution);
        if (axis == 1) tile.flush<1>(p, potential, resolution);
        if (axis == 2) tile.flush<2>(p, potential, resolution);
        __syncthreads();
    }
    // Particles outside of the box, gathered: few in a warp would keep its other threads waiting.
    for (u32 i = threadIdx.x; i < 2 * tile.outside; i += THREADS) {
        int cell[3];
        Real t[3];
        u64 site;
        sites.site(g, tile.site[i / 2], site);
        sites.particle(g, tile.site[i / 2], disp + 3 * site, cell, t);
        i64 value[8];
        auto contribute = [&](int axis) {
            i64 half[4];
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                contributions(t, weight + 3 * site + axis, 1, power_of_two(-resolution) * p.per_cell[axis], upper, half);
#pragma unroll
                for (int c = 0; c < 4; ++c) value[2 * c + upper] = half[c];
            }
        };
        contribute(0);
        add_differences<0>(p, potential, cell, value, i & 1);
        contribute(1);
        add_differences<1>(p, potential, cell, value, i & 1);
        contribute(2);
        add_differences<2>(p, potential, cell, value, i & 1);
    }
}

// Converts the sums; NaN if any position or weight is invalid.
extern "C" __global__ void finish_potential(const u64* sums, u64 cells, Potential p, int contribution_bits, const Bits* largest,
                                            const u32* invalid, Real* field) {
    const double resolution = power_of_two(resolution_exponent(largest_contribution(p, largest), contribution_bits));
    const bool bad = *invalid;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < cells; i += gridDim.x * (u64)blockDim.x)
        field[i] = bad ? NOT_A_NUMBER : (Real)((double)(i64)sums[i] * resolution);
}
