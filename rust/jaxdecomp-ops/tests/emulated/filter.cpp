// A spectrum filtered along x by each of SHARDS GPUs in turn, against sums in double precision.

using namespace unit;

// The shared memory of a block.
namespace unit {
alignas(16) unsigned char memory[N * COLUMNS * sizeof(Complex)];
}

void filter_once(unsigned seed) {
    Random random{std::mt19937_64(seed)};
    const u32 ny = (u32)random.integer(1, 7), nk = (u32)random.integer(1, 9), plane = ny * nk, lines = SHARDS * plane;
    const u32 rows = SHARDS == 1 ? ny / 2 + 1 : ny;
    Buffer<Complex> modes((size_t)N * lines), roots(N);
    Buffer<Real> filter((size_t)(N / 2 + 1) * rows * nk);
    for (size_t i = 0; i < modes.count; ++i) modes[i] = {(Real)random.normal(), (Real)random.normal()};
    for (size_t i = 0; i < filter.count; ++i) filter[i] = (Real)random.normal();
    for (int i = 0; i < N; ++i) roots[i] = {(Real)std::cos(2 * M_PI * i / N), (Real)-std::sin(2 * M_PI * i / N)};
    // The filter of a line is a convolution with its transform, which is real and even.
    std::vector<double> expected(2 * modes.count), got(2 * modes.count), kernel(N);
    std::vector<double> cosine(N);
    for (int i = 0; i < N; ++i) cosine[i] = std::cos(2 * M_PI * i / N);
    for (u32 line = 0; line < lines; ++line) {
        const u32 y = line % plane / nk, z = line % nk, row = SHARDS == 1 ? min(y, ny - y) : y;
        for (int x = 0; x < N; ++x) {
            kernel[x] = 0;
            for (int k = 0; k < N; ++k) kernel[x] += filter[((size_t)min(k, N - k) * rows + row) * nk + z] * cosine[(long)k * x % N];
        }
        for (int x = 0; x < N; ++x)
            for (int from = 0; from < N; ++from) {
                const Complex& mode = modes[(size_t)from * lines + line];
                const double share = kernel[(x - from + N) % N];
                expected[2 * ((size_t)x * lines + line)] += share * mode.re;
                expected[2 * ((size_t)x * lines + line) + 1] += share * mode.im;
            }
    }
    for (u32 rank = 0; rank < SHARDS; ++rank) {
        // All slabs are parts of one spectrum. Planes of other GPUs are where they were received, and nowhere else.
        Buffer<Complex> received((size_t)N * plane);
        Slabs slabs;
        for (u32 of = 0; of < SHARDS; ++of) slabs.modes[of] = modes.data + rank * plane;
        slabs.received = received.data;
        slabs.rank = rank;
        for (u32 x = 0; x < N; ++x)
            for (u32 line = 0; line < plane && x / (N / SHARDS) != rank; ++line)
                std::swap(received[(size_t)x * plane + line], modes[(size_t)x * lines + rank * plane + line]);
        launch({(plane + COLUMNS - 1) / COLUMNS}, THREADS, [&] { filter_along_x(slabs, filter.data, roots.data, ny, nk); });
    }
    for (size_t i = 0; i < modes.count; ++i) got[2 * i] = modes[i].re, got[2 * i + 1] = modes[i].im;
    close(got, expected, got.size(), REAL_BITS == 32 ? 3e-6 : 1e-13, "filter");
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 2); ++seed) filter_once(seed);
}
