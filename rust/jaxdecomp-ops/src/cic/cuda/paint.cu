// Paint: contributions of particles to the cells around them, in fixed point. Concatenated after sums.cu.
//
// Further macros: SHARED (0 or 1: one weight for all particles); BX, BY, BZ (sites of a block), THREADS (a multiple of 32),
// BLOCKS (on a multiprocessor, at least);
// VECTORS (0 or 1: without the kernels of one field, for `force_transpose.cu`);
// TILE (0 or 1: sums in shared memory first), TX, TY, TZ (cells of the tile).

// Contributions to the four corners (x y, y fastest) that are lower or upper along z, in units of the resolution.
__device__ inline void contributions(const Real offset[3], const Real* weight, u32 fields, double inverse, int upper,
                                     i64 out[4]) {
    double t[3] = {offset[0], offset[1], offset[2]}, sum[4];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        double pair[3][2], amount = (double)weight[k * fields] * inverse;
        pairs(k, t, pair);
        const double along = upper ? pair[2][1] : pair[2][0];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            double part = pair[0][c >> 1] * pair[1][c & 1] * along * amount;
            sum[c] = k ? sum[c] + part : part;
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) out[c] = quantize(sum[c]);
}

// Adds such contributions to the mesh.
__device__ inline void add_to_mesh(const Geometry& g, u64* sums, const int cell[3], int upper, const i64 value[4]) {
    const int z = wrap(cell[2] + upper, g.cells[2]);
    int at[2][2];
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
        at[axis][0] = wrap(cell[axis], g.cells[axis]);
        at[axis][1] = at[axis][0] + 1 == g.cells[axis] ? 0 : at[axis][0] + 1;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        Index row = (Index)at[0][c >> 1] * g.cells[1] + at[1][c & 1];
        add(sums, row * g.cells[2] + z, value[c]);
    }
}

constexpr int PARTICLES = BX * BY * BZ;                  // of a block
constexpr int EACH = (PARTICLES + THREADS - 1) / THREADS;  // of a thread
typedef Block<BX, BY, BZ> Sites;

// The particles of a thread.
struct Own {
    int cell[EACH][3];
    Real offset[EACH][3];
    u64 site[EACH];
    bool valid[EACH];

    __device__ void locate(const Geometry& g, const Sites& sites, const Real* disp, u32* invalid) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            int n = threadIdx.x + e * THREADS;
            valid[e] = n < PARTICLES && sites.site(g, n, site[e]);
            if (valid[e] && !sites.particle(g, n, disp + 3 * site[e], cell[e], offset[e])) {
                raise_flag(invalid);
                valid[e] = false;
            }
        }
    }
};

#if TILE
// Offset of a corner (x y z, z fastest) from the lower one.
__device__ constexpr int corner_offset(int c) { return (c >> 2) * TY * TZ + (c >> 1 & 1) * TZ + (c & 1); }

// Box of cells around the particles of a block. Shared memory.
struct Box {
    static constexpr int CELLS = TX * TY * TZ;
    int start[3], cell_sum[3];

    // To be followed by a barrier.
    __device__ void reset() {
        if (threadIdx.x < 3) cell_sum[threadIdx.x] = 0;
    }

    // Centres the box on the mean cell of the particles. Contains barriers.
    __device__ void centre(const Geometry& g, const Sites& sites, const Own& own) {
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            int sum = 0, first = sites.cell(g, axis, 0);
#pragma unroll
            for (int e = 0; e < EACH; ++e) sum += own.valid[e] ? own.cell[e][axis] - first : 0;
#if __CUDA_ARCH__ >= 800
            sum = __reduce_add_sync(~0u, sum);
            if (threadIdx.x % 32) sum = 0;
#endif
            if (sum) atomicAdd(cell_sum + axis, sum);
        }
        __syncthreads();
        if (threadIdx.x < 3) {
            const int axis = threadIdx.x, extent = axis == 0 ? TX : axis == 1 ? TY : TZ;
            int count = min(BX, g.sites[0] - sites.first(0)) * min(BY, g.sites[1] - sites.first(1)) *
                        min(BZ, g.sites[2] - sites.first(2));
            start[axis] = sites.cell(g, axis, 0) + (int)rintf((float)cell_sum[axis] / count) - (extent - 2) / 2;
        }
        __syncthreads();
    }

    // Number of the lower corner of a cell in the box, or -1 if a corner is outside.
    __device__ int place(const int cell[3]) const {
        int x = cell[0] - start[0], y = cell[1] - start[1], z = cell[2] - start[2];
        return (u32)x >= TX - 1 || (u32)y >= TY - 1 || (u32)z >= TZ - 1 ? -1 : (x * TY + y) * TZ + z;
    }

    // Calls add(cell of the mesh, number in the box) for all cells. Each thread follows lines along x, whose rows in the
    // mesh are found once.
    template <typename F>
    __device__ void each(const Geometry& g, F add) const {
        const Index plane = (Index)g.cells[1] * g.cells[2];
        for (int line = threadIdx.x; line < TY * TZ; line += THREADS) {
            int y = wrap(start[1] + line / TZ, g.cells[1]), z = wrap(start[2] + line % TZ, g.cells[2]);
            int x = wrap(start[0], g.cells[0]);
            const Index row = (Index)y * g.cells[2] + z;
#pragma unroll
            for (int i = 0; i < TX; ++i) {
                add(row + x * plane, i * TY * TZ + line);
                x = x + 1 == g.cells[0] ? 0 : x + 1;
            }
        }
    }
};

// Sums of a box of cells in shared memory. 64-bit atomics are loops there; two of 32 bits with a carry are not.
//
// After the flush the memory takes the numbers of the particles outside of the box: six blocks of 8 x 8 x 16 sites fill the
// shared memory of a multiprocessor to 1 %.
struct Tile : Box {
    u32 low[CELLS], high[CELLS], outside;
    static_assert(PARTICLES <= 2 * CELLS, "the numbers fit");

    __device__ void clear() {
        reset();
        if (threadIdx.x == 0) outside = 0;
        for (int i = threadIdx.x; i < CELLS; i += THREADS) low[i] = high[i] = 0;
    }

    __device__ void add(int at, i64 value) {
        u32 part = (u32)value, old = atomicAdd(low + at, part);
        u32 rest = (u32)((u64)value >> 32) + (old + part < old);
        if (rest) atomicAdd(high + at, rest);
    }

    // Adds contributions to the corners that are lower or upper along z.
    __device__ void deposit(int at, int upper, const i64 value[4]) {
#pragma unroll
        for (int c = 0; c < 4; ++c) add(at + corner_offset(2 * c + upper), value[c]);
    }

    __device__ u64 sum(int at) const { return (u64)high[at] << 32 | low[at]; }

    __device__ void flush(const Geometry& g, u64* sums) const {
        each(g, [&](Index cell, int at) {
            u64 value = sum(at);
            if (value) atomicAdd(sums + cell, value);
        });
    }

    // Lists the particles of a thread that are outside of the box, one bit for each, and returns the list of the block.
    // Contains barriers.
    __device__ const unsigned short* list(u32 bits) {
        unsigned short* numbers = (unsigned short*)low;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (bits >> e & 1) numbers[atomicAdd(&outside, 1u)] = threadIdx.x + e * THREADS;
        __syncthreads();
        return numbers;
    }
};
#endif

#if !VECTORS
// Adds one field of the particles of a block of sites to the sums.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
paint(Geometry g, const Real* disp, const Real* weight, u32 fields, u32 field, int contribution_bits, const Bits* largest,
      u64* sums, u32* invalid) {
    const double inverse = power_of_two(-resolution_exponent(magnitude(largest[field]), contribution_bits));
    auto weights = [=](u64 site) { return weight + (SHARED ? 0 : site * K * fields) + field; };
    __shared__ Sites sites;
    sites.fill(g);
#if TILE
    __shared__ Tile tile;
    tile.clear();
    __syncthreads();
    u32 outside = 0;
    {
        Own own;
        own.locate(g, sites, disp, invalid);
        tile.centre(g, sites, own);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if (!own.valid[e]) continue;
            const int at = tile.place(own.cell[e]);
            if (at < 0) {
                outside |= 1u << e;
                continue;
            }
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                i64 value[4];
                contributions(own.offset[e], weights(own.site[e]), fields, inverse, upper, value);
                tile.deposit(at, upper, value);
            }
        }
    }
    __syncthreads();
    tile.flush(g, sums);
    const unsigned short* numbers = tile.list(outside);
    const u32 count = tile.outside;
#else
    FILL_BARRIER();
    const u32 count = PARTICLES;
#endif
    // Two threads share a particle: they add to both cells of a row along z at the same time, mostly of one sector.
    for (u32 i = threadIdx.x; i < 2 * count; i += THREADS) {
#if TILE
        const int n = numbers[i / 2];
#else
        const int n = i / 2;
#endif
        u64 site;
        if (!sites.site(g, n, site)) continue;
        int cell[3];
        Real offset[3];
        if (!sites.particle(g, n, disp + 3 * site, cell, offset)) {
            raise_flag(invalid);
            continue;
        }
        i64 value[4];
        contributions(offset, weights(site), fields, inverse, i & 1, value);
        add_to_mesh(g, sums, cell, i & 1, value);
    }
}

// Converts the sums of one field; NaN if any position or weight is invalid.
extern "C" __global__ void finish(const u64* sums, u64 cells, u32 fields, u32 field, int contribution_bits,
                                  const Bits* largest, const u32* invalid, Real* mesh) {
    double resolution = power_of_two(resolution_exponent(magnitude(largest[field]), contribution_bits));
    bool bad = *invalid;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < cells; i += gridDim.x * (u64)blockDim.x)
        mesh[i * fields + field] = bad ? NOT_A_NUMBER : (Real)(total(sums + WORDS * i) * resolution);
}

// Overwrites the sums by the invalid sum if any position or weight is invalid.
extern "C" __global__ void invalidate(const u32* invalid, u64 cells, u64* sums) {
    if (!*invalid) return;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < WORDS * cells; i += gridDim.x * (u64)blockDim.x)
        sums[i] = i % WORDS == WORDS - 1 ? 1ULL << 63 : 0;
}
#endif
