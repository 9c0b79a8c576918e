// AVX2 with FMA and F16C: 8 floats a vector.
#include "anchorstream/kernels.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>

namespace anchorstream {
namespace {

constexpr int kLanes = 8, kTileTokens = 4, kTileRows = 4, kTileVectors = 2, kByteOffset = 0;

using F = __m256;
using I = __m256i;
using Bytes = __m256i;

inline F f_zero() { return _mm256_setzero_ps(); }
inline F f_set(float x) { return _mm256_set1_ps(x); }
inline F f_load(const float *p) { return _mm256_loadu_ps(p); }
inline void f_store(float *p, F x) { _mm256_storeu_ps(p, x); }
inline F f_load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
inline void f_store_half(uint16_t *p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F f_load_brain(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))), 16));
}
inline F f_add(F a, F b) { return _mm256_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F f_div(F a, F b) { return _mm256_div_ps(a, b); }
inline F f_fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F f_max(F a, F b) { return _mm256_max_ps(a, b); }
inline F f_min(F a, F b) { return _mm256_min_ps(a, b); }
inline F f_abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F f_round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F f_pow2(F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
inline F f_keep_ge(F x, F least, F value) { return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_GE_OQ), value); }
inline float f_first(F a) { return _mm256_cvtss_f32(a); }
inline float f_sum(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float f_max_lanes(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

inline I i_zero() { return _mm256_setzero_si256(); }
inline I i_set(int32_t x) { return _mm256_set1_epi32(x); }
inline I i_load(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline I i_load_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))); }
inline I i_load_i8(const int8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))); }
inline void i_store_i8(int8_t *p, I x) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(p), _mm_packs_epi16(words, words));
}
inline F f_low4(I a) { return _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(15))); }
inline F f_high4(I a) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 4)); }
inline I i_add(I a, I b) { return _mm256_add_epi32(a, b); }
template <int S> inline I i_shift_left(I a) { return _mm256_slli_epi32(a, S); }
inline int32_t i_sum(I a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline F i_float(I a) { return _mm256_cvtepi32_ps(a); }
inline I f_int(F a) { return _mm256_cvtps_epi32(a); }

inline Bytes b_load(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Bytes b_low(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes b_high(Bytes b) { return _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(15)); }
inline Bytes four_of(const int8_t *x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}
inline I dot_nibble(I sum, Bytes w, const int8_t *x) { // 15 * 127 * 2 fits in 16 bits
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, four_of(x)), _mm256_set1_epi16(1)));
}
inline I dot_byte(I sum, Bytes w, const int8_t *x) { // |q| * (sign of q) x: 128 * 127 * 2 fits too
    const Bytes q = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    const Bytes pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(four_of(x), q));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "kernels.inl"

} // namespace

const Kernels &avx2_kernels() {
    static constexpr Kernels kernels = table("avx2");
    return kernels;
}

} // namespace anchorstream
