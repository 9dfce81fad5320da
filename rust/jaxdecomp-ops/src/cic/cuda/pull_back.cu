// A step undone and cotangents pulled back through it. Concatenated after kick.cu; FIELDS is 3 for the kick, 1 for the drift.
// Momenta are held as whole numbers.

// Deterministic sums over the particles: one value for each block and sum, added up by `total`.
constexpr int SUMS = FIELDS == 3 ? 3 : 1;

__device__ inline void add_up(const Real own[SUMS], double* partial) {
    __shared__ double part[SUMS][32];
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
        Real sum = own[s];
#pragma unroll
        for (int lanes = 16; lanes; lanes >>= 1) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (threadIdx.x % 32 == 0) part[s][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < SUMS) {
        double sum = 0;
        for (int warp = 0; warp < BX * BY * BZ / 32; ++warp) sum += part[threadIdx.x][warp];
        partial[(u64)threadIdx.x * gridDim.x + blockIdx.x] = sum;
    }
}

// One block for each sum; sixteen values of a thread are on their way at a time.
extern "C" __global__ void total(const double* partial, u64 count, Real* sums) {
    __shared__ double part[1024];
    double own[16] = {};
    for (u64 i = threadIdx.x; i < count; i += 16384)
#pragma unroll
        for (int k = 0; k < 16; ++k) own[k] += i + 1024 * k < count ? partial[blockIdx.x * count + i + 1024 * k] : 0;
#pragma unroll
    for (int half = 8; half; half /= 2)
#pragma unroll
        for (int k = 0; k < half; ++k) own[k] += own[k + half];
    part[threadIdx.x] = own[0];
    for (int half = 512; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = (Real)part[0];
}

__device__ inline Real dot(const Real a[3], const Real b[3]) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

__device__ inline void load(const Real* from, u64 site, Real to[3]) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) to[axis] = from[3 * site + axis];
}

__device__ inline void store(Real* to, u64 site, const Real from[3]) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) to[3 * site + axis] = from[axis];
}

// Weights of the corners, differentiated along one axis, or none (3).
__device__ inline void weights(const Real t[3], int differentiated, Real pair[3][2]) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        pair[axis][0] = axis == differentiated ? (Real)-1 : (Real)1 - t[axis];
        pair[axis][1] = axis == differentiated ? (Real)1 : t[axis];
    }
}

#if FIELDS == 3
// Coefficients, see `pull_back.py`.
struct Kick {
    Real kick, after, before, last, weight, good;
};

// ct_vel += last * ct_disp;  momentum -= rint(kick * force), in units of `after` before and of `before` afterwards;
// ct_disp += weight * (derivative of force . ct_vel).  Sums: ct_vel . force, ct_vel . new vel, old ct_disp . old vel.
extern "C" __global__ void __launch_bounds__(BX * BY * BZ)
undo_kick(Geometry g, const Real* __restrict__ disp, const Real* vel, const Real* ct_disp, const Real* ct_vel,
          const Real* __restrict__ fields, const Kick* __restrict__ kicks, Real* new_vel, Real* new_ct_disp, Real* new_ct_vel,
          double* partial) {
    __shared__ Block<BX, BY, BZ> block;
    block.fill(g, blockIdx.x);
    __syncthreads();
    u64 site;
    Real sums[SUMS] = {0, 0, 0};
    if (block.site(g, threadIdx.x, site)) {
        Real d[3], v[3], cd[3], cv[3], t[3], force[3] = {0, 0, 0}, slope[3] = {0, 0, 0};
        int cell[3];
        const Kick k = *kicks;
        Whole momentum[3];
        load(disp, site, d);
        load(vel, site, v);
        load(ct_disp, site, cd);
        load(ct_vel, site, cv);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            momentum[axis] = count(v[axis]);
            v[axis] = (Real)momentum[axis] * k.after;
        }
        sums[2] = dot(cd, v);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) cv[axis] += k.last * cd[axis];
        if (k.good) {
            if (block.particle(g, threadIdx.x, d, cell, t)) {
                Index at[8];
                corners(g, cell, at);
                Real values[3][8], contracted[8], pair[3][2];
#pragma unroll
                for (int c = 0; c < 8; ++c) {
#pragma unroll
                    for (int f = 0; f < 3; ++f) values[f][c] = fields[at[c] + f];
                    contracted[c] = values[0][c] * cv[0] + values[1][c] * cv[1] + values[2][c] * cv[2];
                }
                weights(t, 3, pair);
#pragma unroll
                for (int f = 0; f < 3; ++f) force[f] = interpolate(values[f], pair);
#pragma unroll
                for (int axis = 0; axis < 3; ++axis) {
                    weights(t, axis, pair);
                    slope[axis] = interpolate(contracted, pair) * (Real)g.scale[axis];
                }
            } else {
                force[0] = force[1] = force[2] = slope[0] = slope[1] = slope[2] = NOT_A_NUMBER;
            }
        }
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            momentum[axis] -= k.good ? rounded(k.kick * force[axis]) : 0;
            v[axis] = (Real)momentum[axis] * k.before;
            cd[axis] += k.good ? k.weight * slope[axis] : 0;
        }
        sums[0] = dot(cv, force);
        sums[1] = dot(cv, v);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) v[axis] = FROM_BITS(momentum[axis] + ONE);
        store(new_vel, site, v);
        store(new_ct_disp, site, cd);
        store(new_ct_vel, site, cv);
    }
    add_up(sums, partial);
}
#else
struct Drift {
    Real weight, scale, before, first_q, last_q, good;
};

// ct_disp += weight * (gradient of the field);  ct_vel = scale * ct_vel - first_q * q * ct_disp;
// disp += q * rint(first_q * vel);  disp += q * rint(last_q * vel).  Sum: new ct_disp . vel.
extern "C" __global__ void __launch_bounds__(BX * BY * BZ)
undo_drift(Geometry g, double resolution, const Real* disp, const Real* __restrict__ vel, const Real* ct_disp,
           const Real* ct_vel, const Real* __restrict__ field, const Drift* __restrict__ drifts, Real* new_disp,
           Real* new_ct_disp, Real* new_ct_vel, double* partial) {
    __shared__ Block<BX, BY, BZ> block;
    block.fill(g, blockIdx.x);
    __syncthreads();
    u64 site;
    Real sums[SUMS] = {0};
    if (block.site(g, threadIdx.x, site)) {
        Real d[3], v[3], cd[3], cv[3], t[3], slope[3] = {0, 0, 0};
        int cell[3];
        const Drift c = *drifts;
        const Real q = (Real)resolution;
        load(disp, site, d);
        load(vel, site, v);
        load(ct_disp, site, cd);
        load(ct_vel, site, cv);
        if (c.good) {
            if (block.particle(g, threadIdx.x, d, cell, t)) {
                Index at[8];
                corners(g, cell, at);
                Real values[8], pair[3][2];
#pragma unroll
                for (int i = 0; i < 8; ++i) values[i] = field[at[i]];
#pragma unroll
                for (int axis = 0; axis < 3; ++axis) {
                    weights(t, axis, pair);
                    slope[axis] = interpolate(values, pair) * (Real)g.scale[axis];
                }
            } else {
                slope[0] = slope[1] = slope[2] = NOT_A_NUMBER;
            }
        }
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            cd[axis] += c.good ? c.weight * slope[axis] : 0;
            cv[axis] = c.scale * cv[axis] - c.first_q * q * cd[axis];
            v[axis] = (Real)count(v[axis]) * c.before;
            d[axis] += q * RINT(c.first_q * v[axis]);
            d[axis] += q * RINT(c.last_q * v[axis]);
        }
        sums[0] = dot(cd, v);
        store(new_disp, site, d);
        store(new_ct_disp, site, cd);
        store(new_ct_vel, site, cv);
    }
    add_up(sums, partial);
}
#endif
