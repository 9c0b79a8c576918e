// Plain C++: runs anywhere, and is what every other instruction set is tested against.
#include "anchorstream/half.h"
#include "anchorstream/kernels.h"

#include <cmath>
#include <cstring>

namespace anchorstream {
namespace {

constexpr int kLanes = 4, kTileTokens = 4, kTileRows = 4, kTileVectors = 2, kByteOffset = 0;

struct F {
    float v[kLanes];
};
struct I {
    int32_t v[kLanes];
};
struct Bytes {
    uint8_t v[4 * kLanes];
};

template <class Out, class Function> inline Out lanes(Function function) {
    Out out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = function(i);
    return out;
}

inline F f_set(float x) {
    return lanes<F>([&](int) { return x; });
}
inline F f_zero() { return f_set(0); }
inline F f_load(const float *p) {
    return lanes<F>([&](int i) { return p[i]; });
}
inline void f_store(float *p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F f_load_half(const uint16_t *p) {
    return lanes<F>([&](int i) { return half_to_float(p[i]); });
}
inline void f_store_half(uint16_t *p, F x) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(x.v[i]);
}
inline F f_load_brain(const uint16_t *p) {
    return lanes<F>([&](int i) { return brain_to_float(p[i]); });
}
inline F f_add(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F f_sub(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F f_mul(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F f_div(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F f_fma(F a, F b, F c) {
    return lanes<F>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F f_max(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_min(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F f_abs(F a) {
    return lanes<F>([&](int i) { return std::fabs(a.v[i]); });
}
inline F f_round(F a) {
    return lanes<F>([&](int i) { return std::nearbyint(a.v[i]); });
}
inline F f_pow2(F n) {
    return lanes<F>([&](int i) { return std::ldexp(1.0f, static_cast<int>(n.v[i])); });
}
inline F f_keep_ge(F x, F least, F value) {
    return lanes<F>([&](int i) { return x.v[i] >= least.v[i] ? value.v[i] : 0.0f; });
}
inline float f_sum(F a) {
    float sum = 0;
    for (float x : a.v) sum += x;
    return sum;
}
inline float f_max_lanes(F a) {
    float most = a.v[0];
    for (float x : a.v) most = x > most ? x : most;
    return most;
}
inline float f_first(F a) { return a.v[0]; }

inline I i_set(int32_t x) {
    return lanes<I>([&](int) { return x; });
}
inline I i_zero() { return i_set(0); }
inline I i_load(const uint8_t *p) {
    I out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
inline I i_load_u8(const uint8_t *p) {
    return lanes<I>([&](int i) { return p[i]; });
}
inline I i_load_i8(const int8_t *p) {
    return lanes<I>([&](int i) { return p[i]; });
}
inline void i_store_i8(int8_t *p, I x) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(x.v[i]);
}
inline F f_low4(I a) {
    return lanes<F>([&](int i) { return static_cast<float>(a.v[i] & 15); });
}
inline F f_high4(I a) {
    return lanes<F>([&](int i) { return static_cast<float>(a.v[i] >> 4); });
}
inline I i_add(I a, I b) {
    return lanes<I>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])); });
}
template <int S> inline I i_shift_left(I a) {
    return lanes<I>([&](int i) { return a.v[i] * (1 << S); });
}
inline int32_t i_sum(I a) {
    uint32_t sum = 0;
    for (int32_t x : a.v) sum += static_cast<uint32_t>(x);
    return static_cast<int32_t>(sum);
}
inline F i_float(I a) {
    return lanes<F>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I f_int(F a) {
    return lanes<I>([&](int i) { return static_cast<int32_t>(std::nearbyint(a.v[i])); });
}

inline Bytes b_load(const uint8_t *p) {
    Bytes out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
inline Bytes b_low(Bytes b) {
    for (uint8_t &x : b.v) x &= 15;
    return b;
}
inline Bytes b_high(Bytes b) {
    for (uint8_t &x : b.v) x >>= 4;
    return b;
}
inline I dot_nibble(I sum, Bytes w, const int8_t *x) {
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < 4; ++j) sum.v[i] += w.v[4 * i + j] * x[j];
    return sum;
}
inline I dot_byte(I sum, Bytes w, const int8_t *x) {
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < 4; ++j) sum.v[i] += (w.v[4 * i + j] - 128) * x[j];
    return sum;
}

#include "kernels.inl"

} // namespace

const Kernels &portable_kernels() {
    static constexpr Kernels kernels = table("portable");
    return kernels;
}

} // namespace anchorstream
