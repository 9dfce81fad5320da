// Reversal of a step, and cotangents through it. Concatenated after kick.cu. Momenta are integers.
//
// Further macros: DRIFT and KICK (0 or 1: reversal of the drifts before the kick of a step, of the kick of the step before it,
// or of one after the other in one pass).

// Deterministic sums over the particles: one value for each block and sum, added up by `total`.
constexpr int SUMS = DRIFT + 3 * KICK;

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
        partial[(u64)threadIdx.x * block_count() + block_number()] = sum;
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

typedef Block<BX, BY, BZ> Sites;

// A particle with its cotangents.
struct Particle {
    Real d[3], v[3], cd[3], cv[3];
};

#if DRIFT
// Coefficients, see `step_vjp.py`.
struct Drift {
    Real weight, scale, before, first_q, last_q, good;
};

// ct_disp += weight * (gradient of the field);  ct_vel = scale * ct_vel - first_q * q * ct_disp;
// disp += q * rint(first_q * vel);  disp += q * rint(last_q * vel).  Sum: new ct_disp . vel.
__device__ inline Real undo_drift(const Geometry& g, const Sites& block, const Drift& c, Real q, const Real* __restrict__ field,
                                  Particle& p) {
    Real t[3], v[3], slope[3] = {0, 0, 0};
    int cell[3];
    if (c.good) {
        if (block.particle(g, threadIdx.x, p.d, cell, t)) {
            Index at[8];
            corners<1>(g, cell, at);
            Real values[8], pair[3][2];
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] = field[at[i]];
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) {
                weights(t, axis, pair);
                slope[axis] = interpolate(values, pair) * g.scale_of(axis);
            }
        } else {
            slope[0] = slope[1] = slope[2] = NOT_A_NUMBER;
        }
    }
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        p.cd[axis] += c.good ? c.weight * slope[axis] : 0;
        p.cv[axis] = c.scale * p.cv[axis] - c.first_q * q * p.cd[axis];
        v[axis] = (Real)count(p.v[axis]) * c.before;
        p.d[axis] += q * RINT(c.first_q * v[axis]);
        p.d[axis] += q * RINT(c.last_q * v[axis]);
    }
    return dot(p.cd, v);
}
#endif

#if KICK
struct Kick {
    Real kick, after, before, last, weight, good;
};

// ct_vel += last * ct_disp;  momentum -= rint(kick * force), in units of `after` before and of `before` afterwards;
// ct_disp += weight * (derivative of force . ct_vel).  Sums: ct_vel . force, ct_vel . new vel, old ct_disp . old vel.
__device__ inline void undo_kick(const Geometry& g, const Sites& block, const Kick& k, const Real* __restrict__ fields,
                                 Particle& p, Real sums[3]) {
    Real t[3], force[3] = {0, 0, 0}, slope[3] = {0, 0, 0};
    int cell[3];
    Whole momentum[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        momentum[axis] = count(p.v[axis]);
        p.v[axis] = (Real)momentum[axis] * k.after;
    }
    sums[2] = dot(p.cd, p.v);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) p.cv[axis] += k.last * p.cd[axis];
    if (k.good) {
        if (block.particle(g, threadIdx.x, p.d, cell, t)) {
            Index at[8];
            corners<3>(g, cell, at);
            Real values[3][8], contracted[8], pair[3][2];
#pragma unroll
            for (int c = 0; c < 8; ++c) {
#pragma unroll
                for (int f = 0; f < 3; ++f) values[f][c] = fields[at[c] + f];
                contracted[c] = values[0][c] * p.cv[0] + values[1][c] * p.cv[1] + values[2][c] * p.cv[2];
            }
            weights(t, 3, pair);
#pragma unroll
            for (int f = 0; f < 3; ++f) force[f] = interpolate(values[f], pair);
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) {
                weights(t, axis, pair);
                slope[axis] = interpolate(contracted, pair) * g.scale_of(axis);
            }
        } else {
            force[0] = force[1] = force[2] = slope[0] = slope[1] = slope[2] = NOT_A_NUMBER;
        }
    }
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        momentum[axis] -= k.good ? rounded(k.kick * force[axis]) : 0;
        p.v[axis] = (Real)momentum[axis] * k.before;
        p.cd[axis] += k.good ? k.weight * slope[axis] : 0;
    }
    sums[0] = dot(p.cv, force);
    sums[1] = dot(p.cv, p.v);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) p.v[axis] = FROM_BITS(momentum[axis] + ONE);
}
#endif

// Reversal by the macros, with the meshes, coefficients and results of its parts only. Results may take the memory of operands.
extern "C" __global__ void __launch_bounds__(BX * BY * BZ, BLOCKS)
undo(Geometry g, double resolution, const Real* disp, const Real* vel, const Real* ct_disp, const Real* ct_vel,
#if DRIFT
     const Real* __restrict__ field,
#endif
#if KICK
     const Real* __restrict__ fields,
#endif
     const Real* __restrict__ coefficients,
#if DRIFT
     Real* new_disp,
#endif
#if KICK
     Real* new_vel,
#endif
     Real* new_ct_disp, Real* new_ct_vel, double* partial) {
    __shared__ Sites block;
    block.fill(g);
    FILL_BARRIER();
    u64 site;
    Real sums[SUMS] = {};
    if (block.site(g, threadIdx.x, site)) {
        Particle p;
        load(disp, site, p.d);
        load(vel, site, p.v);
        load(ct_disp, site, p.cd);
        load(ct_vel, site, p.cv);
#if DRIFT
        sums[0] = undo_drift(g, block, *(const Drift*)coefficients, (Real)resolution, field, p);
        store(new_disp, site, p.d);
#endif
#if KICK
        undo_kick(g, block, *(const Kick*)(coefficients + 6 * DRIFT), fields, p, sums + DRIFT);
        store(new_vel, site, p.v);
#endif
        store(new_ct_disp, site, p.cd);
        store(new_ct_vel, site, p.cv);
    }
    add_up(sums, partial);
}
