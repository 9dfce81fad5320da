// Kick and drifts in one pass over the particles, with the force read from the mesh. Concatenated after read.cu.
//
// Further macro: BLOCKS (on a multiprocessor, at least). Not compiled with DRIFT, the macro of step_vjp.cu, is the kernel.

#if REAL_BITS == 32
#define RINT rintf
#else
#define RINT rint
#endif

// Coefficients of a step, see `kick_drift.py`.
struct Step {
    Real kick, inverse, after, last, first, good;
};

// Integers in the bits of an array, see `momenta.py`: the bits of 1 plus the integer.
#if REAL_BITS == 32
typedef int Whole;
#define FROM_BITS __int_as_float
#define ROUND __float2int_rn
#define ONE 0x3F800000
#define LARGEST_KICK 1073741824.f
#else
typedef long long Whole;
#define FROM_BITS __longlong_as_double
#define ROUND __double2ll_rn
#define ONE 0x3FF0000000000000LL
#define LARGEST_KICK 4611686018427387904.
#endif

__device__ inline Whole count(Real packed) { return (Whole)TO_BITS(packed) - ONE; }

// The nearest integer; 0 if it is beyond the range or x is NaN.
__device__ inline Whole rounded(Real x) { return fabs(x) < LARGEST_KICK ? ROUND(x) : 0; }

__device__ inline Bits largest_of_warp(Bits value) {
#pragma unroll
    for (int lanes = 16; lanes; lanes >>= 1) value = max(value, __shfl_xor_sync(~0u, value, lanes));
    return value;
}

#if FIELDS == 3 && !defined(DRIFT)
// momentum += rint(kick * force);  vel = momentum * after;  disp += q * rint(last * vel);
// disp += q * rint(first * vel). Without a kick where the step is not good. The results may take the memory of the operands.
// Momenta are integers; displacements are NaN where the kick is beyond their range or NaN.
extern "C" __global__ void __launch_bounds__(BX * BY * BZ, BLOCKS)
kick_drift(Geometry g, double resolution, const Real* disp, const Real* vel, const Real* __restrict__ fields,
           const Step* __restrict__ steps, Real* new_disp, Real* new_vel, Bits* most) {
    __shared__ Block<BX, BY, BZ> block;
    block.fill(g);
    FILL_BARRIER();
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
            Real kick = step.good ? step.kick * force[axis] : 0;
            Whole momentum = count(v[axis]) + rounded(kick);
            v[axis] = fabs(kick) < LARGEST_KICK ? (Real)momentum * step.after : NOT_A_NUMBER;
            d[axis] += q * RINT(step.last * v[axis]);
            d[axis] += q * RINT(step.first * v[axis]);
            own = max(own, (Bits)TO_BITS(fabs(d[axis])));
            new_disp[3 * site + axis] = d[axis];
            new_vel[3 * site + axis] = FROM_BITS(momentum + ONE);
        }
    }
    own = largest_of_warp(own);
    if (threadIdx.x % 32 == 0 && own > glimpse(most)) atomicMax(most, own);
}
#endif
