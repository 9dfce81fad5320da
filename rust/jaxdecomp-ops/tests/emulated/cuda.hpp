// CUDA C++ on threads of the host: a thread for each thread of a block, block after block. Under AddressSanitizer every access
// beyond a buffer is an error, under ThreadSanitizer every race of two threads of a block.

#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __CUDA_ARCH__ 900

struct Dim {
    unsigned x = 1, y = 1, z = 1;
};
inline thread_local Dim threadIdx, blockIdx;
inline Dim blockDim, gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class A, class B>
auto min(A a, B b) {
    typedef std::common_type_t<A, B> T;
    return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B>
auto max(A a, B b) {
    typedef std::common_type_t<A, B> T;
    return (T)a > (T)b ? (T)a : (T)b;
}
using std::fabs;

template <class To, class From>
To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}
inline unsigned __float_as_uint(float x) { return bits_of<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return bits_of<float>(x); }
inline float __int_as_float(int x) { return bits_of<float>(x); }
inline long long __double_as_longlong(double x) { return bits_of<long long>(x); }
inline double __longlong_as_double(long long x) { return bits_of<double>(x); }
inline int __float2int_rn(float x) { return (int)std::nearbyintf(x); }
inline long long __double2ll_rn(double x) { return (long long)std::nearbyint(x); }
inline double __ull2double_rn(unsigned long long x) { return (double)x; }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }

// 32 lanes that exchange values.
struct Warp {
    pthread_barrier_t barrier;
    uint64_t slots[32];
};
inline std::vector<Warp> warps;
inline pthread_barrier_t block_barrier;

inline void __syncthreads() { pthread_barrier_wait(&block_barrier); }
inline void __syncwarp() { pthread_barrier_wait(&warps[threadIdx.x / 32].barrier); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
    Warp& warp = warps[threadIdx.x / 32];
    std::memcpy(&warp.slots[threadIdx.x % 32], &value, sizeof(T));
    __syncwarp();
    std::memcpy(&value, &warp.slots[threadIdx.x % 32 ^ lanes], sizeof(T));
    __syncwarp();
    return value;
}
inline int __reduce_add_sync(unsigned mask, int value) {
    for (int lanes = 16; lanes; lanes >>= 1) value += __shfl_xor_sync(mask, value, lanes);
    return value;
}

template <class T, class U>
T atomicAdd(T* at, U value) {
    return __atomic_fetch_add(at, (T)value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// Runs a kernel, one block after the other.
template <class Kernel>
void launch(Dim grid, unsigned threads, Kernel kernel) {
    gridDim = grid;
    blockDim = {threads, 1, 1};
    warps = std::vector<Warp>((threads + 31) / 32);
    pthread_barrier_init(&block_barrier, nullptr, threads);
    for (unsigned w = 0; w < warps.size(); ++w) pthread_barrier_init(&warps[w].barrier, nullptr, min(32u, threads - 32 * w));
    pthread_barrier_t between;
    pthread_barrier_init(&between, nullptr, threads);
    std::vector<std::thread> pool;
    for (unsigned t = 0; t < threads; ++t)
        pool.emplace_back([&, t] {
            threadIdx = {t, 0, 0};
            for (unsigned z = 0; z < grid.z; ++z)
                for (unsigned y = 0; y < grid.y; ++y)
                    for (unsigned x = 0; x < grid.x; ++x) {
                        blockIdx = {x, y, z};
                        kernel();
                        pthread_barrier_wait(&between);
                    }
        });
    for (auto& thread : pool) thread.join();
}

// Memory of exactly so many values, which no kernel has written yet: each byte is 0xff, which makes NaN of a real number.
template <class T>
struct Buffer {
    T* data;
    size_t count;

    explicit Buffer(size_t count) : count(count) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 256, max(count, 1) * sizeof(T))) std::abort();
        data = (T*)memory;
        std::memset(data, 0xff, count * sizeof(T));
    }
    Buffer(const Buffer& other) : Buffer(other.count) { std::memcpy(data, other.data, count * sizeof(T)); }
    ~Buffer() { std::free(data); }
    T& operator[](size_t i) { return data[i]; }
    const T& operator[](size_t i) const { return data[i]; }
    void zero() { std::memset(data, 0, count * sizeof(T)); }
};

// Number of random cases: one tenth, and at least one, where the program has an argument.
inline unsigned cases(int count, unsigned all) { return count > 1 ? (all + 9) / 10 : all; }

// Random numbers of a test.
struct Random {
    std::mt19937_64 engine;

    double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine); }
    double normal() { return std::normal_distribution<double>()(engine); }
    int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }
};

inline void check(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// Fails unless values agree to a share of the largest of them.
template <class Got, class Expected>
void close(const Got& got, const Expected& expected, size_t count, double tolerance, const char* what) {
    double largest = 0, error = 0;
    for (size_t i = 0; i < count; ++i) {
        largest = std::fmax(largest, std::fabs((double)expected[i]));
        double difference = std::fabs((double)got[i] - (double)expected[i]);
        error = difference > error || difference != difference ? (difference != difference ? INFINITY : difference) : error;
    }
    if (error <= tolerance * largest) return;
    std::fprintf(stderr, "%s: wrong by %g of %g\n", what, error, largest);
    std::exit(1);
}
