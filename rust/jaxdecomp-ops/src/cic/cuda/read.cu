// Read: interpolation of fields at the particles.
//
// Further macros: FIELDS; REDUCTION (0: none, 1: weighted sums over masks, 2: over fields); BX, BY, BZ (sites of a block, one
// thread each).

// Interpolates between corner values (x y z, z fastest).
__device__ inline Real interpolate(const Real v[8], const Real pair[3][2]) {
    Real plane[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
        Real low = v[4 * x] * pair[2][0] + v[4 * x + 1] * pair[2][1];
        Real high = v[4 * x + 2] * pair[2][0] + v[4 * x + 3] * pair[2][1];
        plane[x] = low * pair[1][0] + high * pair[1][1];
    }
    return plane[0] * pair[0][0] + plane[1] * pair[0][1];
}

// Offsets of the corners in a mesh of so many fields.
template <int COUNT = FIELDS>
__device__ inline void corners(const Geometry& g, const int cell[3], Index at[8]) {
    int pair[3][2];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        pair[axis][0] = wrap(cell[axis], g.cells[axis]);
        pair[axis][1] = pair[axis][0] + 1 == g.cells[axis] ? 0 : pair[axis][0] + 1;
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        Index row = (Index)pair[0][c >> 2] * g.cells[1] + pair[1][c >> 1 & 1];
        at[c] = (row * g.cells[2] + pair[2][c & 1]) * COUNT;
    }
}

// Number of results of a particle.
constexpr int RESULTS = REDUCTION == 0 ? K * FIELDS : REDUCTION == 1 ? FIELDS : K;

// Reads at one particle with a valid position.
__device__ inline void read_at(const Real t[3], const Index at[8], const Real* fields, const Real* weight, Real* out) {
#if REDUCTION == 2
    Real v[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        v[c] = fields[at[c]] * weight[0];
#pragma unroll
        for (int f = 1; f < FIELDS; ++f) v[c] += fields[at[c] + f] * weight[f];
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
        Real pair[3][2];
        pairs(k, t, pair);
        out[k] = interpolate(v, pair);
    }
#else
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        Real v[8], sum = 0;
#pragma unroll
        for (int c = 0; c < 8; ++c) v[c] = fields[at[c] + f];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            Real pair[3][2];
            pairs(k, t, pair);
            Real value = interpolate(v, pair);
            if (REDUCTION == 0) out[k * FIELDS + f] = value;
            else sum += value * weight[k];
        }
        if (REDUCTION == 1) out[f] = sum;
    }
#endif
}

extern "C" __global__ void __launch_bounds__(BX * BY * BZ)
read(Geometry g, const Real* __restrict__ disp, const Real* __restrict__ fields, const Real* __restrict__ weight,
     Real* __restrict__ out) {
    __shared__ Block<BX, BY, BZ> block;
    block.fill(g);
    FILL_BARRIER();
    u64 site;
    if (!block.site(g, threadIdx.x, site)) return;
    int cell[3];
    Real t[3], result[RESULTS];
    if (block.particle(g, threadIdx.x, disp + 3 * site, cell, t)) {
        Index at[8];
        corners(g, cell, at);
        read_at(t, at, fields, weight + site * (REDUCTION == 1 ? K : REDUCTION == 2 ? FIELDS : 0), result);
    } else {
#pragma unroll
        for (int r = 0; r < RESULTS; ++r) result[r] = NOT_A_NUMBER;
    }
#pragma unroll
    for (int r = 0; r < RESULTS; ++r) out[site * RESULTS + r] = result[r];
}
