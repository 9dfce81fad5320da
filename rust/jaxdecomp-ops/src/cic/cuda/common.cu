// Lattice, masks and weights of cloud-in-cell kernels. The arithmetic equals that of the CPU's ops bit by bit: products and
// sums are not contracted (--fmad=false).
//
// Macros: REAL_BITS (32 or 64), WIDE_INDEX (0 or 1: mesh offsets of 64 bits), MASKS (0 or 1 for each mask and axis),
// UNIT_SPACING (0 or 1: a site is at each cell).

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if REAL_BITS == 32
typedef float Real;
typedef u32 Bits;
#define TO_BITS __float_as_uint
#define INFINITE 0x7f800000u
#else
typedef double Real;
typedef u64 Bits;
#define TO_BITS __double_as_longlong
#define INFINITE 0x7ff0000000000000ull
#endif

#if WIDE_INDEX
typedef u64 Index;
#else
typedef u32 Index;
#endif

__device__ constexpr bool MASK[] = {MASKS};
constexpr int K = sizeof(MASK) / 3;

#define NOT_A_NUMBER ((Real)__uint_as_float(0x7fc00000))

// Extents and displacements [cells] stay below this.
constexpr Real LIMIT = 1 << 30;

// Sets a flag that other threads may set at the same time.
__device__ inline void raise_flag(u32* flag) { *flag = 1; }

// A value that other threads may raise at the same time; it may be old.
__device__ inline Bits glimpse(const Bits* value) { return *value; }

// Geometry of lattice and mesh, as on the host.
struct Geometry {
    i64 num[3], den[3], origin[3];
    int sites[3], cells[3], periodic[3];
    double scale[3];
    float scale32[3];

    __device__ Real scale_of(int axis) const {
#if REAL_BITS == 32
        return scale32[axis];
#else
        return scale[axis];
#endif
    }
};

// Position along one axis: lower cell, not wrapped, and offset from it.
struct Position {
    int cell;
    Real offset;
    bool valid;
};

__device__ inline Position locate(const Geometry& g, int axis, Real disp, int base, Real frac) {
    Real position = disp * g.scale_of(axis) + frac;
    bool finite = fabs(position) < LIMIT;
    position = finite ? position : 0;
    int lower = (int)position;
    lower -= (Real)lower > position;
    int cell = base + lower;
    bool inside = g.periodic[axis] || (cell >= 0 && cell < g.cells[axis] - 1);
    return {cell, position - (Real)lower, finite && inside};
}

// Wraps a cell into the mesh.
__device__ inline int wrap(int cell, int cells) {
    cell += cell < 0 ? cells : 0;
    cell -= cell >= cells ? cells : 0;
    if ((u32)cell >= (u32)cells) {
        cell %= cells;
        cell += cell < 0 ? cells : 0;
    }
    return cell;
}

// Number of a block in its grid, whose last axis is the first of `gridDim`.
__device__ inline u32 block_number() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }

__device__ inline u32 block_count() { return gridDim.x * gridDim.y * gridDim.z; }

// Block of X * Y * Z lattice sites, with the cells and offsets of its sites along each axis. Shared memory.
template <int X, int Y, int Z>
struct Block {
#if !UNIT_SPACING
    int base[X + Y + Z];
    Real frac[X + Y + Z];
#endif

    // First site along an axis.
    __device__ static int first(int axis) { return axis == 0 ? blockIdx.z * X : axis == 1 ? blockIdx.y * Y : blockIdx.x * Z; }

    // Fills the tables. To be followed by a barrier, see `FILL_BARRIER`.
    __device__ void fill(const Geometry& g) {
#if !UNIT_SPACING
        for (int i = threadIdx.x; i < X + Y + Z; i += blockDim.x) {
            int axis = i < X ? 0 : i < X + Y ? 1 : 2;
            i64 site = first(axis) + i - (axis == 0 ? 0 : axis == 1 ? X : X + Y);
            i64 product = site * g.num[axis];
            base[i] = (int)(g.origin[axis] + product / g.den[axis]);
            frac[i] = (Real)((double)(product % g.den[axis]) / (double)g.den[axis]);
        }
#endif
    }

    // Cell of the site with a number along an axis of the block.
    __device__ int cell(const Geometry& g, int axis, int number) const {
#if UNIT_SPACING
        return (int)g.origin[axis] + first(axis) + number;
#else
        return base[(axis == 0 ? 0 : axis == 1 ? X : X + Y) + number];
#endif
    }

    __device__ Real offset(int axis, int number) const {
#if UNIT_SPACING
        return 0;
#else
        return frac[(axis == 0 ? 0 : axis == 1 ? X : X + Y) + number];
#endif
    }

    // Number of a site of the block in the lattice; false if it is outside the lattice.
    __device__ bool site(const Geometry& g, int n, u64& number) const {
        int x = first(0) + n / (Y * Z), y = first(1) + n / Z % Y, z = first(2) + n % Z;
        number = ((u64)x * g.sites[1] + y) * g.sites[2] + z;
        return x < g.sites[0] && y < g.sites[1] && z < g.sites[2];
    }

    // Locates the particle of a site; returns whether its position is valid.
    __device__ bool particle(const Geometry& g, int n, const Real* disp, int cells[3], Real offsets[3]) const {
        int at[3] = {n / (Y * Z), n / Z % Y, n % Z};
        bool valid = true;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            Position p = locate(g, axis, disp[axis], cell(g, axis, at[axis]), offset(axis, at[axis]));
            cells[axis] = p.cell;
            offsets[axis] = p.offset;
            valid &= p.valid;
        }
        return valid;
    }
};

#if UNIT_SPACING
#define FILL_BARRIER()
#else
#define FILL_BARRIER() __syncthreads()
#endif

// Weights of mask k on the lower and upper cell along each axis.
template <typename T>
__device__ inline void pairs(int k, const T t[3], T pair[3][2]) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        pair[axis][0] = MASK[3 * k + axis] ? (T)-1 : (T)1 - t[axis];
        pair[axis][1] = MASK[3 * k + axis] ? (T)1 : t[axis];
    }
}
