// Kick and drifts in one pass over the particles, with the force read from the mesh. Concatenated after read.cu.

#if REAL_BITS == 32
#define RINT rintf
#else
#define RINT rint
#endif

// Coefficients of a step, see `kick_drift.py`.
struct Step {
    Real kick, inverse, after, last, first, good;
};

__device__ inline Bits largest_of_warp(Bits value) {
#pragma unroll
    for (int lanes = 16; lanes; lanes >>= 1) value = max(value, __shfl_xor_sync(~0u, value, lanes));
    return value;
}

#if FIELDS == 3
// momentum = rint(vel * inverse) + rint(kick * force);  vel = momentum * after;  disp += q * rint(last * vel);
// disp += q * rint(first * vel). Without a kick where the step is not good. The results may take the memory of the operands.
extern "C" __global__ void __launch_bounds__(BX * BY * BZ)
kick_drift(Geometry g, double resolution, const Real* disp, const Real* vel, const Real* __restrict__ fields,
           const Step* __restrict__ steps, Real* new_disp, Real* new_vel, Bits* most) {
    __shared__ Block<BX, BY, BZ> block;
    block.fill(g, blockIdx.x);
    __syncthreads();
    u64 site;
    Bits own = 0;
    if (block.site(g, threadIdx.x, site)) {
        Real d[3], v[3], t[3], force[3];
        int cell[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            d[axis] = disp[3 * site + axis];
            v[axis] = vel[3 * site + axis];
            force[axis] = NOT_A_NUMBER;
        }
        if (block.particle(g, threadIdx.x, d, cell, t)) {
            Index at[8];
            corners(g, cell, at);
            read_at(t, at, fields, nullptr, force);
        }
        const Step step = *steps;
        const Real q = (Real)resolution;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            Real kick = step.good ? RINT(step.kick * force[axis]) : 0;
            v[axis] = (RINT(v[axis] * step.inverse) + kick) * step.after;
            d[axis] += q * RINT(step.last * v[axis]);
            d[axis] += q * RINT(step.first * v[axis]);
            own = max(own, (Bits)TO_BITS(fabs(d[axis])));
            new_disp[3 * site + axis] = d[axis];
            new_vel[3 * site + axis] = v[axis];
        }
    }
    own = largest_of_warp(own);
    if (threadIdx.x % 32 == 0 && own > *most) atomicMax(most, own);
}
#endif
