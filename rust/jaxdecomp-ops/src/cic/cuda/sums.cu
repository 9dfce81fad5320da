// Paint in fixed point: contributions are rounded to multiples of a power of two and accumulated as integers, so that the
// result does not depend on the order.

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
