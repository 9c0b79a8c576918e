// The kernels in terms of a small vector vocabulary (F, I, f_..., i_..., dot_...), which each instruction set defines
// before it includes this file. Included into an anonymous namespace, so that nothing compiled for one instruction
// set can be linked into another; no library containers here for the same reason.
//
// The vocabulary also says how much fits its registers:
//   kLanes      floats in a vector
//   kTileTokens tokens that one pass over a panel of weights serves
//   kTileRows, kTileVectors  the tile of scores or outputs that attention keeps in registers
//   kByteOffset what dot_byte leaves in the stored bytes: 128 where it needs them unsigned, else 0

constexpr int kPanelVectors = kPanelRows / kLanes;

// exp(x) to 2 units in the last place (Cephes' polynomial); 0 below -87.
inline F f_exp(F x) {
    const F clamped = f_min(f_max(x, f_set(-87.3f)), f_set(88.7f));
    const F n = f_round(f_mul(clamped, f_set(1.44269504088896341f)));
    F r = f_fma(n, f_set(-0.693359375f), clamped);
    r = f_fma(n, f_set(2.12194440e-4f), r);
    F p = f_set(1.9875691500e-4f);
    p = f_fma(p, r, f_set(1.3981999507e-3f));
    p = f_fma(p, r, f_set(8.3334519073e-3f));
    p = f_fma(p, r, f_set(4.1665795894e-2f));
    p = f_fma(p, r, f_set(1.6666665459e-1f));
    p = f_fma(p, r, f_set(5.0000001201e-1f));
    p = f_fma(p, f_mul(r, r), f_add(r, f_set(1.0f)));
    return f_keep_ge(x, f_set(-87.3f), f_mul(p, f_pow2(n)));
}

template <class T> struct Element;
template <> struct Element<float> {
    static F load(const float *p) { return f_load(p); }
};
struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};
template <> struct Element<Half> {
    static F load(const Half *p) { return f_load_half(&p->bits); }
};
template <> struct Element<Brain> {
    static F load(const Brain *p) { return f_load_brain(&p->bits); }
};

// ---- matrix products -------------------------------------------------------------------------------------------

// Brings piece `i` of `pieces` of a block of memory into the cache.
inline void fetch(const uint8_t *ahead, size_t bytes, int i, int pieces) {
    const size_t step = bytes / static_cast<size_t>(pieces);
    for (size_t at = step * static_cast<size_t>(i); at < step * static_cast<size_t>(i + 1); at += 64) __builtin_prefetch(ahead + at);
}

template <class T, int N> void gemm_float_tile(const T *panel, const float *x, int columns, float *y, ptrdiff_t stride, bool add) {
    F acc[N][kPanelVectors];
    for (int t = 0; t < N; ++t)
        for (int v = 0; v < kPanelVectors; ++v) acc[t][v] = f_zero();
    for (int k = 0; k < columns; ++k) {
        for (int v = 0; v < kPanelVectors; ++v) {
            const F w = Element<T>::load(panel + k * kPanelRows + v * kLanes);
            for (int t = 0; t < N; ++t) acc[t][v] = f_fma(f_set(x[static_cast<ptrdiff_t>(t) * columns + k]), w, acc[t][v]);
        }
    }
    for (int t = 0; t < N; ++t)
        for (int v = 0; v < kPanelVectors; ++v) {
            float *out = y + t * stride + v * kLanes;
            f_store(out, add ? f_add(f_load(out), acc[t][v]) : acc[t][v]);
        }
}

template <class T>
void gemm_float(const uint8_t *panel, const Activations &act, int n, float *y, ptrdiff_t stride, bool add, const uint8_t *) {
    const T *w = reinterpret_cast<const T *>(panel);
    const float *x = act.values;
    auto run = [&]<int N>() {
        gemm_float_tile<T, N>(w, x, act.columns, y, stride, add);
        x += static_cast<ptrdiff_t>(N) * act.columns;
        y += N * stride;
        n -= N;
    };
    while (n >= kTileTokens) run.template operator()<kTileTokens>();
    if constexpr (kTileTokens > 8)
        if (n >= 8) run.template operator()<8>();
    if constexpr (kTileTokens > 4)
        if (n >= 4) run.template operator()<4>();
    if (n >= 2) run.template operator()<2>();
    if (n >= 1) run.template operator()<1>();
}

// The scales of block b for vector v of a panel.
struct Scales {
    F scale, minimum;
};

template <Kind K> constexpr bool has_minimum() {
    return K == Kind::nibble_half_min || K == Kind::nibble_k || K == Kind::byte_half_min || K == Kind::byte_k;
}
template <Kind K> constexpr bool is_nibble() { return K == Kind::nibble_half || K == Kind::nibble_half_min || K == Kind::nibble_k; }
template <Kind K> constexpr bool is_k() { return K == Kind::nibble_k || K == Kind::byte_k || K == Kind::byte_k16; }

// What must be taken from each stored value, as a shift: the sum of x is multiplied by 2^shift. -1: nothing.
template <Kind K> constexpr int offset_shift() {
    if (is_nibble<K>()) return has_minimum<K>() ? -1 : 3;
    return kByteOffset ? 7 : -1;
}

template <Kind K> inline Scales load_scales(const uint8_t *panel, const PanelLayout &at, int b, int v) {
    const int lane = b * kPanelRows + v * kLanes;
    Scales s{f_zero(), f_zero()};
    if constexpr (!is_k<K>()) {
        s.scale = f_load_half(reinterpret_cast<const uint16_t *>(panel + at.scales) + lane);
        if constexpr (has_minimum<K>()) s.minimum = f_load_half(reinterpret_cast<const uint16_t *>(panel + at.minimums) + lane);
    } else {
        const int super = b / (kSuperBlock / kBlock) * kPanelRows + v * kLanes;
        const F d = f_load_half(reinterpret_cast<const uint16_t *>(panel + at.super_scales) + super);
        s.scale = f_mul(d, i_float(i_load_u8(panel + at.scales + lane)));
        const F dmin = f_load_half(reinterpret_cast<const uint16_t *>(panel + at.super_minimums) + super);
        s.minimum = f_mul(f_sub(f_zero(), dmin), i_float(i_load_u8(panel + at.minimums + lane)));
    }
    return s;
}

inline F load_scale16(const uint8_t *panel, const PanelLayout &at, int b, int part, int v) {
    const int super = b / (kSuperBlock / kBlock) * kPanelRows + v * kLanes;
    const F d = f_load_half(reinterpret_cast<const uint16_t *>(panel + at.super_scales) + super);
    const int8_t *s = reinterpret_cast<const int8_t *>(panel + at.scales);
    return f_mul(d, i_float(i_load_i8(s + (2 * b + part) * kPanelRows + v * kLanes)));
}

template <Kind K, int N>
inline void gemm_quantised_tile(const uint8_t *panel, const PanelLayout &at, const Activations &act, int first, float *y, ptrdiff_t stride,
                                bool add, const uint8_t *ahead) {
    constexpr int shift = offset_shift<K>();
    F acc[N][kPanelVectors];
    for (int t = 0; t < N; ++t)
        for (int v = 0; v < kPanelVectors; ++v) acc[t][v] = f_zero();
    for (int b = 0; b < act.blocks; ++b) {
        if (ahead) fetch(ahead, at.end, b, act.blocks);
        for (int v = 0; v < kPanelVectors; ++v) {
            Bytes w[8];
            if constexpr (is_nibble<K>()) {
                for (int g = 0; g < 4; ++g) {
                    const Bytes both = b_load(panel + b * 256 + g * 64 + v * kLanes * 4);
                    w[g] = b_low(both);
                    w[g + 4] = b_high(both);
                }
            } else {
                for (int g = 0; g < 8; ++g) w[g] = b_load(panel + b * 512 + g * 64 + v * kLanes * 4);
            }
            auto dot = [](I sum, Bytes bytes, const int8_t *x) {
                if constexpr (is_nibble<K>()) return dot_nibble(sum, bytes, x);
                return dot_byte(sum, bytes, x);
            };
            if constexpr (K == Kind::byte_k16) {
                const F low = load_scale16(panel, at, b, 0, v), high = load_scale16(panel, at, b, 1, v);
                for (int t = 0; t < N; ++t) {
                    const ptrdiff_t at_block = static_cast<ptrdiff_t>(first + t) * act.blocks + b;
                    const int8_t *x = act.q + static_cast<ptrdiff_t>(first + t) * act.columns + b * kBlock;
                    I one = i_zero(), two = i_zero();
                    if constexpr (shift >= 0) {
                        one = i_shift_left<shift>(i_set(act.minus_sum16[2 * at_block]));
                        two = i_shift_left<shift>(i_set(act.minus_sum16[2 * at_block + 1]));
                    }
                    for (int g = 0; g < 4; ++g) {
                        one = dot(one, w[g], x + 4 * g);
                        two = dot(two, w[g + 4], x + 16 + 4 * g);
                    }
                    const F sum = f_fma(i_float(two), high, f_mul(i_float(one), low));
                    acc[t][v] = f_fma(sum, f_set(act.scale[at_block]), acc[t][v]);
                }
            } else {
                const Scales s = load_scales<K>(panel, at, b, v);
                for (int t = 0; t < N; ++t) {
                    const ptrdiff_t at_block = static_cast<ptrdiff_t>(first + t) * act.blocks + b;
                    const int8_t *x = act.q + static_cast<ptrdiff_t>(first + t) * act.columns + b * kBlock;
                    I sum = i_zero();
                    if constexpr (shift >= 0) sum = i_shift_left<shift>(i_set(act.minus_sum[at_block]));
                    I more = i_zero(); // two chains wait for each other less than one
                    for (int g = 0; g < 4; ++g) {
                        sum = dot(sum, w[g], x + 4 * g);
                        more = dot(more, w[g + 4], x + 16 + 4 * g);
                    }
                    sum = i_add(sum, more);
                    acc[t][v] = f_fma(f_mul(i_float(sum), f_set(act.scale[at_block])), s.scale, acc[t][v]);
                    if constexpr (has_minimum<K>()) acc[t][v] = f_fma(f_set(act.sum[at_block]), s.minimum, acc[t][v]);
                }
            }
        }
    }
    for (int t = 0; t < N; ++t)
        for (int v = 0; v < kPanelVectors; ++v) {
            float *out = y + (first + t) * stride + v * kLanes;
            f_store(out, add ? f_add(f_load(out), acc[t][v]) : acc[t][v]);
        }
}

template <Kind K>
void gemm_quantised(const uint8_t *panel, const Activations &act, int n, float *y, ptrdiff_t stride, bool add, const uint8_t *ahead) {
    const PanelLayout at = panel_layout(K, act.columns);
    int t = 0;
    auto run = [&]<int N>() {
        gemm_quantised_tile<K, N>(panel, at, act, t, y, stride, add, t ? nullptr : ahead);
        t += N;
    };
    while (t + kTileTokens <= n) run.template operator()<kTileTokens>();
    if constexpr (kTileTokens > 8)
        if (t + 8 <= n) run.template operator()<8>();
    if constexpr (kTileTokens > 4)
        if (t + 4 <= n) run.template operator()<4>();
    if (t + 2 <= n) run.template operator()<2>();
    if (t + 1 <= n) run.template operator()<1>();
}

// ---- attention -------------------------------------------------------------------------------------------------

// Rows of numbers in memory, given out as vectors of floats: numbers i .. i + kLanes - 1 of row k.
template <class T> struct Plain {
    const T *base;
    ptrdiff_t stride;
    F load(ptrdiff_t k, ptrdiff_t i) const { return Element<T>::load(base + k * stride + i); }
    Plain row(ptrdiff_t k) const { return {base + k * stride, stride}; }
    template <int Count> void fetch(ptrdiff_t k, ptrdiff_t i) const {
        const auto *from = reinterpret_cast<const uint8_t *>(base + k * stride + i);
        for (size_t at = 0; at < Count * sizeof(T); at += 64) __builtin_prefetch(from + at);
    }
};
struct Bytes8 {
    const uint8_t *base;
    ptrdiff_t stride;
    F load(ptrdiff_t k, ptrdiff_t i) const { return i_float(i_load_i8(reinterpret_cast<const int8_t *>(base + k * stride + i))); }
    Bytes8 row(ptrdiff_t k) const { return {base + k * stride, stride}; }
    template <int Count> void fetch(ptrdiff_t k, ptrdiff_t i) const { __builtin_prefetch(base + k * stride + i); }
};
struct Nibbles4 {
    const uint8_t *base;
    ptrdiff_t stride;
    F load(ptrdiff_t k, ptrdiff_t i) const {
        const I both = i_load_u8(base + k * stride + i / 32 * 16 + i % 16);
        return i % 32 < 16 ? f_low4(both) : f_high4(both);
    }
    Nibbles4 row(ptrdiff_t k) const { return {base + k * stride, stride}; }
    template <int Count> void fetch(ptrdiff_t k, ptrdiff_t i) const { __builtin_prefetch(base + k * stride + i / 2); }
};

// c[r][V vectors] (+)= sum over k of a[r][k] * b[k][V vectors]: scores (lanes are keys, k a dimension) and outputs
// (lanes are dimensions, k a key) alike.
template <class B, int R, int V>
inline void multiply_tile(const float *a, ptrdiff_t a_stride, const B &b, ptrdiff_t i, int depth, float *c, ptrdiff_t c_stride, bool add,
                          const B &ahead) {
    F acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = add ? f_load(c + r * c_stride + v * kLanes) : f_zero();
    for (int k = 0; k < depth; ++k) {
        if (ahead.base) ahead.template fetch<V * kLanes>(k, i);
        F row[V];
        for (int v = 0; v < V; ++v) row[v] = b.load(k, i + v * kLanes);
        for (int r = 0; r < R; ++r) {
            const F x = f_set(a[r * a_stride + k]);
            for (int v = 0; v < V; ++v) acc[r][v] = f_fma(x, row[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) f_store(c + r * c_stride + v * kLanes, acc[r][v]);
}

template <class B, int V>
inline void multiply_rows(const float *a, ptrdiff_t a_stride, const B &b, ptrdiff_t i, int depth, float *c, ptrdiff_t c_stride, int rows,
                          bool add, const B &ahead) {
    int r = 0;
    auto run = [&]<int R>() {
        multiply_tile<B, R, V>(a + r * a_stride, a_stride, b, i, depth, c + r * c_stride, c_stride, add, r ? B{nullptr, 0} : ahead);
        r += R;
    };
    while (r + kTileRows <= rows) run.template operator()<kTileRows>();
    if constexpr (kTileRows > 4)
        if (r + 4 <= rows) run.template operator()<4>();
    if (r + 3 <= rows) run.template operator()<3>();
    if (r + 2 <= rows) run.template operator()<2>();
    if (r + 1 <= rows) run.template operator()<1>();
}

// The same over the numbers from .. to - 1 of each row.
template <class B>
inline void multiply(const float *a, ptrdiff_t a_stride, const B &b, int from, int to, int depth, float *c, ptrdiff_t c_stride, int rows,
                     bool add, const B &ahead) {
    int i = from;
    auto run = [&]<int V>() {
        multiply_rows<B, V>(a, a_stride, b, i, depth, c + i, c_stride, rows, add, ahead);
        i += V * kLanes;
    };
    while (i + kTileVectors * kLanes <= to) run.template operator()<kTileVectors>();
    if constexpr (kTileVectors > 2)
        if (i + 2 * kLanes <= to) run.template operator()<2>();
    while (i < to) run.template operator()<1>();
}

// Softmax weights of one row of scores, in place; scales what was gathered before.
inline void soften(const Attend &a, int row, float *scores, int from, int to) {
    F most = f_set(a.largest[row]);
    for (int k = from; k < to; k += kLanes) most = f_max(most, f_load(scores + k));
    const float largest = f_max_lanes(most);
    if (largest == -INFINITY) { // this row sees nothing yet
        for (int k = from; k < to; k += kLanes) f_store(scores + k, f_zero());
        return;
    }
    F sum = f_zero();
    for (int k = from; k < to; k += kLanes) {
        const F p = f_exp(f_sub(f_load(scores + k), f_set(largest)));
        sum = f_add(sum, p);
        f_store(scores + k, p);
    }
    float total = a.total[row];
    if (a.largest[row] != largest) {
        const F shrink = f_exp(f_set(a.largest[row] - largest));
        total = f_first(f_mul(f_set(total), shrink));
        float *out = a.out + static_cast<ptrdiff_t>(row) * a.dim;
        for (int d = 0; d < a.dim; d += kLanes) f_store(out + d, f_mul(f_load(out + d), shrink));
        a.largest[row] = largest;
    }
    a.total[row] = total + f_sum(sum);
}

void merge(const Attended &from, Attended &into, int dim) {
    if (*from.largest == -INFINITY) return; // it saw nothing
    const float largest = *from.largest > *into.largest ? *from.largest : *into.largest;
    const F old = f_exp(f_set(*into.largest - largest)), fresh = f_exp(f_set(*from.largest - largest));
    *into.largest = largest;
    *into.total = f_first(f_fma(f_set(*from.total), fresh, f_mul(f_set(*into.total), old)));
    for (int d = 0; d < dim; d += kLanes) f_store(into.out + d, f_fma(f_load(from.out + d), fresh, f_mul(f_load(into.out + d), old)));
}

// The keys that any row sees.
inline void seen(const Attend &a, int &first, int &last) {
    first = kBankTokens;
    last = 0;
    for (int r = 0; r < a.rows; ++r) {
        if (a.low[r] >= a.high[r]) continue;
        if (a.low[r] < first) first = a.low[r];
        if (a.high[r] > last) last = a.high[r];
    }
}

// Scores to softmax weights, row by row; what a row does not see gets none.
inline void weigh(const Attend &a, float *scores, int from, int to) {
    for (int r = 0; r < a.rows; ++r) {
        float *row = scores + r * kBankTokens;
        if (a.bias)
            for (int i = from; i < to; i += kLanes) f_store(row + i, f_add(f_load(row + i), f_load(a.bias + i)));
        const int low = a.low[r] < to ? a.low[r] : to, high = a.high[r] > low ? a.high[r] : low;
        for (int i = from; i < low; ++i) row[i] = -INFINITY;
        for (int i = high; i < to; ++i) row[i] = -INFINITY;
        soften(a, r, row, from, to);
    }
}

template <class K, class V>
inline void attend_with(const Attend &a, const K &keys, const V &values, const K &keys_ahead, const V &values_ahead) {
    int first, last;
    seen(a, first, last);
    if (first >= last) return;
    const int from = first / kLanes * kLanes, to = (last + kLanes - 1) / kLanes * kLanes;
    float *scores = a.scratch;
    multiply(a.q, a.dim, keys, from, to, a.dim, scores, kBankTokens, a.rows, false, keys_ahead);
    weigh(a, scores, from, to);
    multiply(scores + first, kBankTokens, values.row(first), 0, a.dim, last - first, a.out, a.dim, a.rows, true,
             values_ahead.base ? values_ahead.row(first) : values_ahead);
}

template <class T> void attend_plain(const Attend &a) {
    const ptrdiff_t cells = static_cast<ptrdiff_t>(kBankTokens) * a.dim;
    const T *keys = reinterpret_cast<const T *>(a.part), *values = keys + cells;
    if constexpr (sizeof(T) < 4) {
        if (a.rows > 2 * kTileRows) { // enough rows to be worth widening the bank once
            float *k = a.scratch + static_cast<ptrdiff_t>(a.rows) * kBankTokens, *v = k + cells;
            for (ptrdiff_t i = 0; i < cells; i += kLanes) f_store(k + i, Element<T>::load(keys + i));
            for (ptrdiff_t i = 0; i < cells; i += kLanes) f_store(v + i, Element<T>::load(values + i));
            attend_with(a, Plain<float>{k, kBankTokens}, Plain<float>{v, a.dim}, Plain<float>{nullptr, 0}, Plain<float>{nullptr, 0});
            return;
        }
    }
    const T *ahead = reinterpret_cast<const T *>(a.ahead);
    attend_with(a, Plain<T>{keys, kBankTokens}, Plain<T>{values, a.dim}, Plain<T>{ahead, kBankTokens},
                Plain<T>{ahead ? ahead + cells : nullptr, a.dim});
}

// A quantised bank. Scales of keys go into the queries, scales of values into the weights, and what the minimums add is
// one number a row: codes are all that the products read, whether a row comes alone or with many, to the same bit.
template <class C, KvKind Kind> void attend_codes(const Attend &a) {
    const KvLayout at = kv_layout(Kind, a.dim);
    const ptrdiff_t key_stride = static_cast<ptrdiff_t>(kv_row_bytes(Kind, kBankTokens));
    const ptrdiff_t value_stride = static_cast<ptrdiff_t>(kv_row_bytes(Kind, a.dim));
    const C keys{a.part, key_stride}, values{a.part + at.values, value_stride};
    auto halves = [&a](size_t offset, int i) { return f_load_half(reinterpret_cast<const uint16_t *>(a.part + offset) + i); };
    int first, last;
    seen(a, first, last);
    if (first >= last) return;
    const int from = first / kLanes * kLanes, to = (last + kLanes - 1) / kLanes * kLanes;
    float *scores = a.scratch, *rest = scores + static_cast<ptrdiff_t>(a.rows) * kBankTokens;
    if (a.ahead) { // the products fetch the codes, this the scales
        for (size_t i = at.key_scales; i < at.values; i += 64) __builtin_prefetch(a.ahead + i);
        for (size_t i = at.value_scales; i < at.end; i += 64) __builtin_prefetch(a.ahead + i);
    }
    float *q = rest; // scaled queries; what the minimums add to a row is where its scores begin
    for (int r = 0; r < a.rows; ++r) {
        F sum = f_zero();
        for (int d = 0; d < a.dim; d += kLanes) {
            const F x = f_load(a.q + r * a.dim + d);
            f_store(q + r * a.dim + d, f_mul(x, halves(at.key_scales, d)));
            sum = f_fma(x, halves(at.key_minimums, d), sum);
        }
        const F least = f_set(f_sum(sum));
        for (int i = from; i < to; i += kLanes) f_store(scores + r * kBankTokens + i, least);
    }
    const bool widen = a.rows > 2 * kTileRows; // enough rows to be worth turning codes into floats once
    float *wide = q + static_cast<ptrdiff_t>(a.rows) * a.dim;
    if (widen) {
        for (int d = 0; d < a.dim; ++d)
            for (int i = from; i < to; i += kLanes) f_store(wide + d * kBankTokens + i, keys.load(d, i));
        multiply(q, a.dim, Plain<float>{wide, kBankTokens}, from, to, a.dim, scores, kBankTokens, a.rows, true, Plain<float>{nullptr, 0});
    } else {
        multiply(q, a.dim, keys, from, to, a.dim, scores, kBankTokens, a.rows, true, C{a.ahead, key_stride});
    }
    weigh(a, scores, from, to);
    for (int r = 0; r < a.rows; ++r) {
        float *row = scores + r * kBankTokens, *out = a.out + static_cast<ptrdiff_t>(r) * a.dim;
        F sum = f_zero();
        for (int i = from; i < to; i += kLanes) {
            const F weight = f_load(row + i);
            sum = f_fma(weight, halves(at.value_minimums, i), sum);
            f_store(row + i, f_mul(weight, halves(at.value_scales, i)));
        }
        const F every = f_set(f_sum(sum));
        for (int d = 0; d < a.dim; d += kLanes) f_store(out + d, f_add(f_load(out + d), every));
    }
    if (widen) {
        for (int t = first; t < last; ++t)
            for (int i = 0; i < a.dim; i += kLanes) f_store(wide + t * a.dim + i, values.load(t, i));
        multiply(scores + first, kBankTokens, Plain<float>{wide, a.dim}.row(first), 0, a.dim, last - first, a.out, a.dim, a.rows, true,
                 Plain<float>{nullptr, 0});
    } else {
        multiply(scores + first, kBankTokens, values.row(first), 0, a.dim, last - first, a.out, a.dim, a.rows, true,
                 C{a.ahead ? a.ahead + at.values + static_cast<ptrdiff_t>(first) * value_stride : nullptr, value_stride});
    }
}

// One row of n f16 numbers to codes, with its scale and minimum.
inline void seal_row(KvKind kind, int n, const uint16_t *from, uint8_t *codes, uint8_t *scale_at, uint8_t *minimum_at) {
    F most = f_set(-INFINITY), minus_least = most;
    for (int i = 0; i < n; i += kLanes) {
        const F x = f_load_half(from + i);
        most = f_max(most, x);
        minus_least = f_max(minus_least, f_sub(f_zero(), x));
    }
    const int levels = kind == KvKind::q8 ? 255 : 15, lowest = kind == KvKind::q8 ? -128 : 0;
    const float least = -f_max_lanes(minus_least), range = f_max_lanes(most) - least;
    // scale and minimum are rounded before they are used, so that codes fit what will be read
    float wide[kLanes] = {range / static_cast<float>(levels)};
    uint16_t narrow[kLanes];
    f_store_half(narrow, f_load(wide));
    std::memcpy(scale_at, narrow, 2);
    const float scale = f_first(f_load_half(narrow));
    wide[0] = least - static_cast<float>(lowest) * scale;
    f_store_half(narrow, f_load(wide));
    std::memcpy(minimum_at, narrow, 2);
    const F minimum = f_set(f_first(f_load_half(narrow))), inverse = f_set(scale > 0 ? 1.0f / scale : 0.0f);
    const F low = f_set(static_cast<float>(lowest)), high = f_set(static_cast<float>(lowest + levels));
    int8_t row[256];
    for (int i = 0; i < n; i += kLanes) {
        const F code = f_mul(f_sub(f_load_half(from + i), minimum), inverse);
        i_store_i8(row + i, f_int(f_min(f_max(code, low), high)));
    }
    if (kind == KvKind::q8) {
        std::memcpy(codes, row, static_cast<size_t>(n));
        return;
    }
    for (int i = 0; i < n; i += 32)
        for (int j = 0; j < 16; ++j) codes[i / 2 + j] = static_cast<uint8_t>(row[i + j] | (i + 16 < n ? row[i + 16 + j] << 4 : 0));
}

inline void seal(KvKind kind, int dim, const uint8_t *from, uint8_t *to) {
    const KvLayout at = kv_layout(kind, dim);
    const auto *keys = reinterpret_cast<const uint16_t *>(from), *values = keys + kBankTokens * dim;
    for (int d = 0; d < dim; ++d)
        seal_row(kind, kBankTokens, keys + d * kBankTokens, to + static_cast<size_t>(d) * kv_row_bytes(kind, kBankTokens),
                 to + at.key_scales + 2 * d, to + at.key_minimums + 2 * d);
    for (int t = 0; t < kBankTokens; ++t)
        seal_row(kind, dim, values + t * dim, to + at.values + static_cast<size_t>(t) * kv_row_bytes(kind, dim),
                 to + at.value_scales + 2 * t, to + at.value_minimums + 2 * t);
}

// ---- rows ------------------------------------------------------------------------------------------------------

void rms_norm(const float *x, const float *weight, float epsilon, int n, float *out) {
    F squares = f_zero();
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) squares = f_fma(f_load(x + i), f_load(x + i), squares);
    float sum = f_sum(squares);
    for (; i < n; ++i) sum += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + epsilon);
    for (i = 0; i + kLanes <= n; i += kLanes) f_store(out + i, f_mul(f_mul(f_load(x + i), f_set(factor)), f_load(weight + i)));
    for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void quantise(const Activations &act, int t) {
    const float *x = act.values + static_cast<ptrdiff_t>(t) * act.columns;
    int8_t *q = act.q + static_cast<ptrdiff_t>(t) * act.columns;
    for (int b = 0; b < act.blocks; ++b, x += kBlock, q += kBlock) {
        F most = f_zero();
        for (int i = 0; i < kBlock; i += kLanes) most = f_max(most, f_abs(f_load(x + i)));
        const float scale = f_max_lanes(most) / 127.0f;
        const F inverse = f_set(scale > 0 ? 1.0f / scale : 0.0f);
        int halves[2];
        for (int half = 0; half < 2; ++half) {
            I sum = i_zero();
            for (int i = half * 16; i < half * 16 + 16; i += kLanes) {
                const I rounded = f_int(f_mul(f_load(x + i), inverse));
                i_store_i8(q + i, rounded);
                sum = i_add(sum, rounded);
            }
            halves[half] = i_sum(sum);
        }
        const ptrdiff_t at = static_cast<ptrdiff_t>(t) * act.blocks + b;
        act.scale[at] = scale;
        act.sum[at] = scale * static_cast<float>(halves[0] + halves[1]);
        act.minus_sum[at] = -(halves[0] + halves[1]);
        act.minus_sum16[2 * at] = -halves[0];
        act.minus_sum16[2 * at + 1] = -halves[1];
    }
}

// x / (1 + exp(-x)) * up; n is a multiple of 16.
void silu_mul(float *gate, const float *up, int n) {
    for (int i = 0; i < n; i += kLanes) {
        const F x = f_load(gate + i);
        const F denominator = f_add(f_set(1.0f), f_exp(f_sub(f_zero(), x)));
        f_store(gate + i, f_mul(f_div(x, denominator), f_load(up + i)));
    }
}

void rotate(const float *x, const float *cos, const float *sin, int half, int dim, float factor, float *out) {
    int i = 0;
    const F scale = f_set(factor);
    for (; i + kLanes <= half; i += kLanes) {
        const F a = f_mul(f_load(x + i), scale), b = f_mul(f_load(x + half + i), scale);
        const F c = f_load(cos + i), s = f_load(sin + i);
        f_store(out + i, f_sub(f_mul(a, c), f_mul(b, s)));
        f_store(out + half + i, f_fma(a, s, f_mul(b, c)));
    }
    for (; i < half; ++i) {
        const float a = x[i] * factor, b = x[half + i] * factor;
        out[i] = a * cos[i] - b * sin[i];
        out[half + i] = a * sin[i] + b * cos[i];
    }
    for (i = 2 * half; i < dim; ++i) out[i] = x[i] * factor;
}

void to_f16(const float *x, int n, uint16_t *out) { // n is a multiple of 16
    for (int i = 0; i < n; i += kLanes) f_store_half(out + i, f_load(x + i));
}

float log_sum_exp(const float *x, int n) {
    const int whole = n / kLanes * kLanes;
    F most = f_set(-INFINITY);
    for (int i = 0; i < whole; i += kLanes) most = f_max(most, f_load(x + i));
    float largest = f_max_lanes(most);
    for (int i = whole; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    F sum = f_zero();
    for (int i = 0; i < whole; i += kLanes) sum = f_add(sum, f_exp(f_sub(f_load(x + i), f_set(largest))));
    float total = f_sum(sum);
    for (int i = whole; i < n; ++i) total += __builtin_expf(x[i] - largest);
    return largest + __builtin_logf(total);
}

uint64_t read(const uint8_t *data, size_t n) { // four independent sums, so that loads are all that is waited for
    I a = i_zero(), b = i_zero(), c = i_zero(), d = i_zero();
    for (size_t i = 0; i < n; i += 16 * kLanes) {
        a = i_add(a, i_load(data + i));
        b = i_add(b, i_load(data + i + 4 * kLanes));
        c = i_add(c, i_load(data + i + 8 * kLanes));
        d = i_add(d, i_load(data + i + 12 * kLanes));
    }
    const I total = i_add(i_add(a, b), i_add(c, d));
    uint32_t lanes[kLanes];
    std::memcpy(lanes, &total, sizeof lanes);
    uint64_t sum = 0;
    for (uint32_t lane : lanes) sum += lane;
    return sum;
}

constexpr Kernels table(const char *name) {
    return Kernels{name,
                   {gemm_float<float>, gemm_float<Half>, gemm_float<Brain>, gemm_quantised<Kind::nibble_half>,
                    gemm_quantised<Kind::nibble_half_min>, gemm_quantised<Kind::nibble_k>, gemm_quantised<Kind::byte_half>,
                    gemm_quantised<Kind::byte_half_min>, gemm_quantised<Kind::byte_k>, gemm_quantised<Kind::byte_k16>},
                   {attend_plain<Half>, attend_plain<float>, attend_codes<Bytes8, KvKind::q8>, attend_codes<Nibbles4, KvKind::q4>},
                   merge,
                   seal,
                   rms_norm,
                   quantise,
                   silu_mul,
                   rotate,
                   to_f16,
                   log_sum_exp,
                   read};
}
