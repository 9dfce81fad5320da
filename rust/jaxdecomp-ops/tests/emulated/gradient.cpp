// The gradient of one of several fields, and its transpose, against naive differences and each other.

using namespace unit;

void gradient_once(unsigned seed) {
    Random random{std::mt19937_64(seed)};
    Mesh m;
    const int lengths[] = {64, 68, 100, 128, 132, 256, 20, 33, 4, 1};
    size_t outer = 1, inner = 1;
    for (int axis = 0; axis < 3; ++axis) {
        m.periodic[axis] = axis == 2 ? seed % 5 != 4 : random.integer(0, 1);
        m.inner[axis] = axis == 2 ? lengths[seed % 10] : random.integer(1, 11);
        m.outer[axis] = m.inner[axis] + (m.periodic[axis] ? 0 : 4);
        m.near[axis] = random.uniform(0.5, 2), m.far[axis] = -m.near[axis] / 8;
        m.near32[axis] = (float)m.near[axis], m.far32[axis] = (float)m.far[axis];
        outer *= m.outer[axis], inner *= m.inner[axis];
    }
    Buffer<int> place(1);
    place[0] = 1;
    Buffer<Real> several(2 * outer), gradients(3 * inner);
    for (size_t i = 0; i < several.count; ++i) several[i] = (Real)random.normal();
    const Real* field = several.data + outer;
    std::vector<double> expected(3 * inner);
    for (size_t i = 0; i < inner; ++i) {
        const int at[3] = {(int)(i / m.inner[2] / m.inner[1]), (int)(i / m.inner[2] % m.inner[1]), (int)(i % m.inner[2])};
        for (int axis = 0; axis < 3; ++axis) {
            auto value = [&](int k) {
                size_t from = 0;
                for (int a = 0; a < 3; ++a) {
                    int n = m.outer[a], cell = at[a] + (m.periodic[a] ? 0 : 2) + (a == axis ? k : 0);
                    from = from * n + (cell % n + n) % n;
                }
                return (double)field[from];
            };
            expected[3 * i + axis] = m.near[axis] * (value(1) - value(-1)) + m.far[axis] * (value(2) - value(-2));
        }
    }
    // Extents of one cell wrap around more than once, which kernels are not asked to do.
    for (int axis = 0; axis < 3; ++axis)
        if (m.periodic[axis] && m.outer[axis] == 1)
            for (size_t i = 0; i < inner; ++i) expected[3 * i + axis] = 0;
    auto parts = [](int n, int of) { return (unsigned)((n + of - 1) / of); };
    const unsigned rows = parts(m.inner[0], PLANES) * parts(m.inner[1], WARPS);
    const double tolerance = REAL_BITS == 32 ? 1e-6 : 1e-14;
    launch({rows * parts(m.inner[2], 32)}, 32 * WARPS, [&] { gradient(m, several.data, gradients.data, place.data); });
    close(gradients, expected, 3 * inner, tolerance, "gradient");
#if REAL_BITS == 32
    if (m.periodic[2] && m.inner[2] % 4 == 0 && m.inner[2] >= 64) {
        Buffer<Real> same(3 * inner);
        launch({rows * parts(m.inner[2], 128)}, 32 * WARPS, [&] { gradient_of_fours(m, field, same.data, nullptr); });
        check(!std::memcmp(same.data, gradients.data, 3 * inner * sizeof(Real)), "the bits of both gradients differ");
    }
#endif
    Buffer<Real> ct(3 * inner), pulled(outer);
    for (size_t i = 0; i < ct.count; ++i) ct[i] = (Real)random.normal();
    const unsigned threads = min(64, parts(m.outer[2], 32) * 32);
    launch({parts(m.outer[0] * m.outer[1], ROWS) * parts(m.outer[2], threads)}, threads, [&] {
        divergence(m, ct.data, pulled.data);
    });
    double there = 0, back = 0, scale = 0;
    for (size_t i = 0; i < 3 * inner; ++i) there += (double)ct[i] * gradients[i], scale += std::fabs((double)ct[i] * gradients[i]);
    for (size_t i = 0; i < outer; ++i) back += (double)pulled[i] * field[i];
    check(std::fabs(there - back) <= 10 * tolerance * scale, "the transpose is not that of the gradient");
}

int main(int count, char**) {
    for (unsigned seed = 0; seed < cases(count, 20); ++seed) gradient_once(seed);
}
