// Paint in fixed point: contributions are rounded to multiples of a power of two and accumulated as integers, so that the
// result does not depend on the order.
//
// Further macros: SHARED (0 or 1: one weight for all particles); BX, BY, BZ (sites of a block), THREADS (a multiple of 32),
// BLOCKS (on a multiprocessor, at least);
// VECTORS (0 or 1: without the kernels of one field, for `force_transpose.cu`);
// TILE (0 or 1: sums in shared memory first), TX, TY, TZ (cells of the tile).

// Largest magnitude of the weights of each field, as bits, which compare like magnitudes; infinity and NaN are largest.
// The number of threads is a multiple of the number of fields.
extern "C" __global__ void __launch_bounds__(256) largest(const Real* weight, u64 count, u32 fields, Bits* bits, u32* invalid) {
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 stride = gridDim.x * (u64)blockDim.x;
    const u32 field = i % fields;
    Bits own = 0;
    for (; i + 7 * stride < count; i += 8 * stride) {
        Real value[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) value[k] = weight[i + k * stride];
#pragma unroll
        for (int k = 0; k < 8; ++k) own = max(own, (Bits)TO_BITS(fabs(value[k])));
    }
    for (; i < count; i += stride) own = max(own, (Bits)TO_BITS(fabs(weight[i])));
    if (own >= INFINITE) raise_flag(invalid);
    if (own > glimpse(&bits[field])) atomicMax(&bits[field], own);
}

__device__ inline double power_of_two(int n) { return __longlong_as_double((i64)(n + 1023) << 52); }

__device__ inline double magnitude(Bits largest) {
    return REAL_BITS == 32 ? (double)__uint_as_float((u32)largest) : __longlong_as_double(largest);
}

// Exponent of the resolution of a field whose largest contribution has `contribution_bits` bits.
__device__ inline int resolution_exponent(double largest, int contribution_bits) {
    return max((int)(__double_as_longlong(largest) >> 52) - 1022, -961) - contribution_bits;
}

#if REAL_BITS == 32
constexpr int WORDS = 1;

// Rounds to the nearest integer, for |x| < 2^51.
__device__ inline i64 quantize(double x) {
    const double rounder = 6755399441055744.0;  // 1.5 * 2^52
    return __double_as_longlong(x + rounder) - __double_as_longlong(rounder);
}

__device__ inline void add(u64* sums, Index cell, i64 value) { atomicAdd(sums + cell, (u64)value); }

__device__ inline double total(const u64* sum) { return (double)(i64)sum[0]; }
#else
constexpr int WORDS = 2;

__device__ inline i64 quantize(double x) { return (i64)x; }

// Adds to a sum of 128 bits.
__device__ inline void add(u64* sums, Index cell, i64 value) {
    u64* sum = sums + 2 * cell;
    u64 old = atomicAdd(sum, (u64)value);
    u64 high = (value < 0 ? ~0ULL : 0ULL) + (old + (u64)value < old);
    if (high) atomicAdd(sum + 1, high);
}

// Converts with one rounding.
__device__ inline double total(const u64* sum) {
    u64 low = sum[0], high = sum[1];
    bool negative = (i64)high < 0;
    if (negative) {
        low = ~low + 1;
        high = ~high + (low == 0);
    }
    int shift = 0;
    if (high) {
        shift = 64 - __clzll(high);
        u64 lost = shift == 64 ? low : low << (64 - shift);
        low = (shift == 64 ? high : high << (64 - shift) | low >> shift) | (lost != 0);
    }
    double magnitude = __ull2double_rn(low) * power_of_two(shift);
    return negative ? -magnitude : magnitude;
}
#endif

// Contributions to the corners (x y z, z fastest) in units of the resolution.
__device__ inline void contributions(const Real offset[3], const Real* weight, u32 fields, double inverse, i64 out[8]) {
    double t[3] = {offset[0], offset[1], offset[2]}, sum[8];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        double pair[3][2], amount = (double)weight[k * fields] * inverse;
        pairs(k, t, pair);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            double part = pair[0][c >> 2] * pair[1][c >> 1 & 1] * pair[2][c & 1] * amount;
            sum[c] = k ? sum[c] + part : part;
        }
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) out[c] = quantize(sum[c]);
}

// Adds contributions to the mesh.
__device__ inline void add_to_mesh(const Geometry& g, u64* sums, const int cell[3], const i64 value[8]) {
    int at[3][2];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        at[axis][0] = wrap(cell[axis], g.cells[axis]);
        at[axis][1] = at[axis][0] + 1 == g.cells[axis] ? 0 : at[axis][0] + 1;
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        Index row = (Index)at[0][c >> 2] * g.cells[1] + at[1][c >> 1 & 1];
        add(sums, row * g.cells[2] + at[2][c & 1], value[c]);
    }
}

constexpr int EACH = BX * BY * BZ / THREADS;  // sites of a thread
static_assert(EACH * THREADS == BX * BY * BZ, "threads divide the sites");
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
            valid[e] = sites.site(g, n, site[e]);
            if (valid[e] && !sites.particle(g, n, disp + 3 * site[e], cell[e], offset[e])) {
                raise_flag(invalid);
                valid[e] = false;
            }
        }
    }
};

#if TILE
// Offset of a corner from the lower one.
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
struct Tile : Box {
    u32 low[CELLS], high[CELLS];

    __device__ void clear() {
        reset();
        for (int i = threadIdx.x; i < CELLS; i += THREADS) low[i] = high[i] = 0;
    }

    __device__ void add(int at, i64 value) {
        u32 part = (u32)value, old = atomicAdd(low + at, part);
        u32 rest = (u32)((u64)value >> 32) + (old + part < old);
        if (rest) atomicAdd(high + at, rest);
    }

    // Adds contributions; returns false if a corner is outside.
    __device__ bool deposit(const int cell[3], const i64 value[8]) {
        int at = place(cell);
        if (at < 0) return false;
#pragma unroll
        for (int c = 0; c < 8; ++c) add(at + corner_offset(c), value[c]);
        return true;
    }

    __device__ u64 sum(int at) const { return (u64)high[at] << 32 | low[at]; }

    __device__ void flush(const Geometry& g, u64* sums) const {
        each(g, [&](Index cell, int at) {
            u64 value = sum(at);
            if (value) atomicAdd(sums + cell, value);
        });
    }
};
#else
// Without a tile, all contributions are added to the mesh.
struct Tile {
    __device__ void clear() {}
    __device__ void centre(const Geometry&, const Sites&, const Own&) {}
    __device__ bool deposit(const int*, const i64*) { return false; }
    __device__ void flush(const Geometry&, u64*) const {}
};
#endif

#if !VECTORS
// Adds one field of the particles of a block of sites to the sums.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
paint(Geometry g, const Real* disp, const Real* weight, u32 fields, u32 field, int contribution_bits, const Bits* largest,
      u64* sums, u32* invalid) {
    __shared__ Sites sites;
    __shared__ Tile tile;
    sites.fill(g);
    tile.clear();
    __syncthreads();
    Own own;
    own.locate(g, sites, disp, invalid);
    tile.centre(g, sites, own);
    double inverse = power_of_two(-resolution_exponent(magnitude(largest[field]), contribution_bits));
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        if (!own.valid[e]) continue;
        i64 value[8];
        const Real* weights = weight + (SHARED ? 0 : own.site[e] * K * fields) + field;
        contributions(own.offset[e], weights, fields, inverse, value);
        if (!tile.deposit(own.cell[e], value)) add_to_mesh(g, sums, own.cell[e], value);
    }
    __syncthreads();
    tile.flush(g, sums);
}

// Converts the sums of one field; NaN if any position or weight is invalid.
extern "C" __global__ void finish(const u64* sums, u64 cells, u32 fields, u32 field, int contribution_bits,
                                  const Bits* largest, const u32* invalid, Real* mesh) {
    double resolution = power_of_two(resolution_exponent(magnitude(largest[field]), contribution_bits));
    bool bad = *invalid;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < cells; i += gridDim.x * (u64)blockDim.x)
        mesh[i * fields + field] = bad ? NOT_A_NUMBER : (Real)(total(sums + WORDS * i) * resolution);
}

// Overwrites the sums by what no sum is if any position or weight is invalid.
extern "C" __global__ void invalidate(const u32* invalid, u64 cells, u64* sums) {
    if (!*invalid) return;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < WORDS * cells; i += gridDim.x * (u64)blockDim.x)
        sums[i] = i % WORDS == WORDS - 1 ? 1ULL << 63 : 0;
}
#endif
