// Transpose of reading the fourth-order differences of a potential: vectors are painted as three fields, in one pass over
// the particles, and the differences of their sums taken as integers. Concatenated after paint.cu, for float, with a tile.
//
// Eight times a difference over one cell minus that over two, with weights divided by twelve cells, is such a difference.

// Extents of the potential, which has `shift` cells more than the painted mesh on each side, and 1 / (12 cells).
struct Potential {
    double per_cell[3];
    int cells[3], shift[3];
};

// Largest contribution of any axis.
__device__ inline double largest_contribution(const Potential& p, const Bits* largest) {
    double most = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) most = fmax(most, magnitude(largest[axis]) * p.per_cell[axis]);
    return most;
}

// Adds the vectors of the particles of a block of sites to the sums of three fields, which follow each other.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
paint_vectors(Geometry g, Potential p, const Real* disp, const Real* weight, int contribution_bits, const Bits* largest,
              u64* sums, u32* invalid) {
    __shared__ Sites sites;
    __shared__ Tile tile;
    sites.fill(g, blockIdx.x);
    tile.clear();
    __syncthreads();
    const u64 cells = (u64)g.cells[0] * g.cells[1] * g.cells[2];
    const double inverse = power_of_two(-resolution_exponent(largest_contribution(p, largest), contribution_bits));
    // Indices known at run time would put the factors into local memory.
    const double factor[3] = {inverse * p.per_cell[0], inverse * p.per_cell[1], inverse * p.per_cell[2]};
    auto scale = [&](int axis) { return axis == 0 ? factor[0] : axis == 1 ? factor[1] : factor[2]; };
    Real offset[EACH][3];
    const Real* own_weight[EACH];
    int at[EACH];
    {
        Own own;
        own.locate(g, sites, disp, invalid);
        tile.centre(g, sites, own);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            own_weight[e] = weight + 3 * own.site[e];
            at[e] = own.valid[e] ? tile.place(own.cell[e]) : -1;
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) offset[e][axis] = own.offset[e][axis];
            if (!own.valid[e] || at[e] >= 0) continue;
#pragma unroll 1
            for (int axis = 0; axis < 3; ++axis) {
                i64 value[8];
                contributions(offset[e], own_weight[e] + axis, 1, scale(axis), value);
                add_to_mesh(g, sums + axis * cells, own.cell[e], value);
            }
        }
    }
#pragma unroll 1
    for (int axis = 0; axis < 3; ++axis) {
        if (axis) {
            tile.clear();
            __syncthreads();
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if (at[e] < 0) continue;
            i64 value[8];
            contributions(offset[e], own_weight[e] + axis, 1, scale(axis), value);
#pragma unroll
            for (int c = 0; c < 8; ++c) tile.add(at[e] + corner_offset(c), value[c]);
        }
        __syncthreads();
        tile.flush(g, sums + axis * cells);
        __syncthreads();
    }
}

constexpr int ROWS = 4, PLANES = 32;  // of cells that a block, and a warp of it, go over

// Adds up the differences of the sums of the three fields along their axes; NaN if any position or weight is invalid.
// A warp follows a row of 32 cells along x.
extern "C" __global__ void differences(const u64* __restrict__ sums, Geometry g, Potential p, int contribution_bits,
                                       const Bits* largest, const u32* invalid, Real* field) {
    const u32 parts[2] = {(u32)(p.cells[1] + ROWS - 1) / ROWS, (u32)(p.cells[2] + 31) / 32};
    const int first = blockIdx.x / parts[1] / parts[0] * PLANES;
    const int y = blockIdx.x / parts[1] % parts[0] * ROWS + threadIdx.x / 32, z = blockIdx.x % parts[1] * 32 + threadIdx.x % 32;
    if (y >= p.cells[1] || z >= p.cells[2]) return;
    const double resolution = power_of_two(resolution_exponent(largest_contribution(p, largest), contribution_bits));
    const bool bad = *invalid;
    const int last = min(first + PLANES, p.cells[0]);
    const u64 cells = (u64)g.cells[0] * g.cells[1] * g.cells[2];
    // Cell of the painted mesh at one of the potential, or -1 beyond it.
    auto cell = [&](int axis, int at) {
        at -= p.shift[axis];
        if (p.shift[axis] == 0) return wrap(at, g.cells[axis]);
        return (u32)at < (u32)g.cells[axis] ? at : -1;
    };
    auto sum = [&](int axis, int x, int y, int z) {
        return x < 0 || y < 0 || z < 0 ? 0 : sums[axis * cells + ((Index)x * g.cells[1] + y) * g.cells[2] + z];
    };
    const int own_y = cell(1, y), own_z = cell(2, z);
    int ys[5], zs[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        ys[i] = cell(1, y + i - 2);
        zs[i] = cell(2, z + i - 2);
    }
    u64 v[5];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i + 1] = sum(0, cell(0, first + i - 2), own_y, own_z);
    for (int x = first; x < last; ++x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = v[i + 1];
        v[4] = sum(0, cell(0, x + 2), own_y, own_z);
        const int own_x = cell(0, x);
        u64 near = v[1] - v[3], far = v[4] - v[0];
        near += sum(1, own_x, ys[1], own_z) - sum(1, own_x, ys[3], own_z);
        far += sum(1, own_x, ys[4], own_z) - sum(1, own_x, ys[0], own_z);
        near += sum(2, own_x, own_y, zs[1]) - sum(2, own_x, own_y, zs[3]);
        far += sum(2, own_x, own_y, zs[4]) - sum(2, own_x, own_y, zs[0]);
        field[((Index)x * p.cells[1] + y) * p.cells[2] + z] = bad ? NOT_A_NUMBER : (Real)((double)(i64)(8 * near + far) * resolution);
    }
}
