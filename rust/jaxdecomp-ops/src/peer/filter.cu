// A spectrum transformed along its first axis, multiplied by a filter and transformed back, in one pass and in its own memory.
// Where it is divided over GPUs, each takes lines of all slabs: from its own slab and from planes that it received, and back to
// the slabs of all GPUs.
//
// A block takes COLUMNS lines beside each other, whose values it holds in shared memory. Transforms are of mixed radix and in
// place: the one decimates in frequency, which leaves values in the order of their reversed digits, and the one back, in
// time, takes them in that order. So the last factor forward, the filter and the first factor back are one step.
//
// Macros: REAL_BITS (32 or 64); RADICES (factors of the length, of 2, 3, 4, 5, 7 and 8, two or more); COLUMNS; THREADS (a
// multiple of COLUMNS); BLOCKS (on a multiprocessor, at least); SHARDS (number of slabs).

#if REAL_BITS == 32
typedef float Real;
#else
typedef double Real;
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

struct __align__(2 * sizeof(Real)) Complex {
    Real re, im;
};

__device__ inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline Complex operator*(Real a, Complex b) { return {a * b.re, a * b.im}; }

// a b, or with BACK a times the conjugate of b.
template <bool BACK>
__device__ inline Complex times(Complex a, Complex b) {
    if (BACK) b.im = -b.im;
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// -i a, or with BACK i a.
template <bool BACK>
__device__ inline Complex turned(Complex a) {
    return BACK ? Complex{-a.im, a.re} : Complex{a.im, -a.re};
}

__device__ constexpr int RADIX[] = {RADICES};
constexpr int LAST = sizeof(RADIX) / sizeof(int) - 1;

// Product of the factors before one.
__host__ __device__ constexpr int product(int factors) { return factors ? RADIX[factors - 1] * product(factors - 1) : 1; }

constexpr int N = product(LAST + 1);

// exp(-2 pi i n / N).
struct Roots {
    const Complex* __restrict__ values;

    __device__ Complex operator[](int n) const { return values[n]; }
};

// Transform of R values, in order.
template <int R, bool BACK>
__device__ inline void transform(Complex v[R], Roots roots) {
    if constexpr (R == 2) {
        Complex sum = v[0] + v[1];
        v[1] = v[0] - v[1];
        v[0] = sum;
    } else if constexpr (R % 2 == 0) {
        constexpr int H = R / 2;
        Complex even[H], odd[H];
#pragma unroll
        for (int j = 0; j < H; ++j) {
            even[j] = v[2 * j];
            odd[j] = v[2 * j + 1];
        }
        transform<H, BACK>(even, roots);
        transform<H, BACK>(odd, roots);
        if constexpr (R == 8) {
            constexpr Real half = 0.70710678118654752440;  // of the root of 2
            odd[1] = half * (odd[1] + turned<BACK>(odd[1]));
            odd[3] = half * (turned<BACK>(odd[3]) - odd[3]);
        }
        odd[H / 2] = turned<BACK>(odd[H / 2]);
#pragma unroll
        for (int j = 0; j < H; ++j) {
            v[j] = even[j] + odd[j];
            v[j + H] = even[j] - odd[j];
        }
    } else {
        Complex sum[R / 2 + 1], difference[R / 2 + 1], first = v[0];
#pragma unroll
        for (int j = 1; j <= R / 2; ++j) {
            sum[j] = v[j] + v[R - j];
            difference[j] = turned<BACK>(v[j] - v[R - j]);
            v[0] = v[0] + sum[j];
        }
#pragma unroll
        for (int k = 1; k <= R / 2; ++k) {
            Complex even = first, odd = {0, 0};
#pragma unroll
            for (int j = 1; j <= R / 2; ++j) {
                Complex root = roots[N / R * (j * k % R)];
                even = even + root.re * sum[j];
                odd = odd - root.im * difference[j];
            }
            v[k] = even + odd;
            v[R - k] = even - odd;
        }
    }
}

// The step of factor P, without its transform: values v[j] are at offset + j * SPAN of a block of R * SPAN.
template <int P>
struct Step {
    static constexpr int R = RADIX[P], SPAN = N / product(P + 1);

    // First position of butterfly b.
    __device__ static int first(int b) { return b / SPAN * (R * SPAN) + b % SPAN; }

    // Multiplies by the roots between this factor and those after it.
    template <bool BACK>
    __device__ static void twiddle(Complex v[R], int b, Roots roots) {
        int root = b % SPAN * product(P);
#pragma unroll
        for (int j = 1; j < R; ++j) v[j] = times<BACK>(v[j], roots[j * root]);
    }
};

// Memory of the lines of this GPU.
struct Slabs {
    Complex* modes[SHARDS];   // of each slab, so that values of plane x are at x * SHARDS * lines
    const Complex* received;  // planes of other slabs, where those of plane x are at x * lines
    u32 rank;                 // of this GPU's slab
};

// The lines of a block, and those of this thread.
struct Lines {
    Complex* tile;  // N x COLUMNS
    const Slabs& slabs;
    u64 column;  // of this thread
    const Real* filter;
    u32 plane, filter_stride;  // plane: number of lines
    Roots roots;
    bool live;

    __device__ Complex* to(u32 x) const { return slabs.modes[x / (N / SHARDS)] + ((u64)x * SHARDS * plane + column); }

    __device__ const Complex* from(u32 x) const {
        return SHARDS == 1 || x / (N / SHARDS) == slabs.rank ? to(x) : slabs.received + ((u64)x * plane + column);
    }
};

// Calls body(b) for the butterflies of this thread.
template <int R, class Body>
__device__ inline void each(Body body) {
#pragma unroll 1
    for (int b = threadIdx.x / COLUMNS; b < N / R; b += THREADS / COLUMNS) body(b);
}

__device__ inline Complex* place(const Lines& lines, int n) { return lines.tile + n * COLUMNS + threadIdx.x % COLUMNS; }

// Factor P between modes and tile (P = 0) or within the tile.
template <int P, bool BACK>
__device__ inline void pass(const Lines& lines) {
    typedef Step<P> S;
    each<S::R>([&](int b) {
        Complex v[S::R];
        int first = S::first(b);
        if (P == 0 && !BACK) {
#pragma unroll
            for (int j = 0; j < S::R; ++j) v[j] = lines.live ? *lines.from(first + j * S::SPAN) : Complex{0, 0};
        } else {
#pragma unroll
            for (int j = 0; j < S::R; ++j) v[j] = *place(lines, first + j * S::SPAN);
        }
        if (BACK) S::template twiddle<true>(v, b, lines.roots);
        transform<S::R, BACK>(v, lines.roots);
        if (!BACK) S::template twiddle<false>(v, b, lines.roots);
        if (P == 0 && BACK) {
#pragma unroll
            for (int j = 0; j < S::R; ++j)
                if (lines.live) *lines.to(first + j * S::SPAN) = v[j];
        } else {
#pragma unroll
            for (int j = 0; j < S::R; ++j) *place(lines, first + j * S::SPAN) = v[j];
        }
    });
    __syncthreads();
}

// The frequency of the first value of butterfly b of the last factor; that of value j is j * N / R more.
__device__ inline int frequency(int b) {
    int found = 0;
#pragma unroll
    for (int p = LAST - 1; p >= 0; --p) {
        found += b % RADIX[p] * product(p);
        b /= RADIX[p];
    }
    return found;
}

// The last factor, the filter, and the last factor back.
__device__ inline void filter(const Lines& lines) {
    typedef Step<LAST> S;
    each<S::R>([&](int b) {
        Complex v[S::R];
        Real factor[S::R];
        int first = frequency(b);
#pragma unroll
        for (int j = 0; j < S::R; ++j) {
            int k = first + j * (N / S::R);
            factor[j] = lines.live ? lines.filter[(u64)(u32)min(k, N - k) * lines.filter_stride] : 0;
        }
#pragma unroll
        for (int j = 0; j < S::R; ++j) v[j] = *place(lines, b * S::R + j);
        transform<S::R, false>(v, lines.roots);
#pragma unroll
        for (int j = 0; j < S::R; ++j) v[j] = factor[j] * v[j];
        transform<S::R, true>(v, lines.roots);
#pragma unroll
        for (int j = 0; j < S::R; ++j) *place(lines, b * S::R + j) = v[j];
    });
    __syncthreads();
}

// All factors from P on, forward and back.
template <int P>
__device__ inline void passes(const Lines& lines) {
    if constexpr (P == LAST) {
        filter(lines);
    } else {
        pass<P, false>(lines);
        passes<P + 1>(lines);
        pass<P, true>(lines);
    }
}

// slabs: N x ny x nk values of this GPU, in place. values: the filter of frequencies that are not negative, the same for the
// negative ones, N / 2 + 1 by ny / 2 + 1 by nk; of all ny lines where there are several slabs. roots: N.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
filter_along_x(const __grid_constant__ Slabs slabs, const Real* __restrict__ values, const Complex* __restrict__ roots, u32 ny,
               u32 nk) {
    extern __shared__ __align__(16) unsigned char memory[];
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, plane = (u64)ny * nk;
    u32 y = column / nk, z = column % nk;
    bool half = SHARDS == 1;
    Lines lines = {(Complex*)memory, slabs, column};
    lines.filter = values + (u64)(half ? min(y, ny - y) : y) * nk + z;
    lines.plane = plane;
    lines.filter_stride = (half ? ny / 2 + 1 : ny) * nk;
    lines.roots = {roots};
    lines.live = column < plane;
    passes<0>(lines);
}
