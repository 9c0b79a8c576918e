// AVX-512 with VNNI: 16 floats a vector, 64 multiply-adds of bytes an instruction.
#include "anchorstream/kernels.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>

namespace anchorstream {
namespace {

constexpr int kLanes = 16, kTileTokens = 16, kTileRows = 6, kTileVectors = 4, kByteOffset = 128;

using F = __m512;
using I = __m512i;
using Bytes = __m512i;

inline F f_zero() { return _mm512_setzero_ps(); }
inline F f_set(float x) { return _mm512_set1_ps(x); }
inline F f_load(const float *p) { return _mm512_loadu_ps(p); }
inline void f_store(float *p, F x) { _mm512_storeu_ps(p, x); }
inline F f_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
inline void f_store_half(uint16_t *p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F f_load_brain(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))), 16));
}
inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F f_div(F a, F b) { return _mm512_div_ps(a, b); }
inline F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F f_max(F a, F b) { return _mm512_max_ps(a, b); }
inline F f_min(F a, F b) { return _mm512_min_ps(a, b); }
inline F f_abs(F a) { return _mm512_abs_ps(a); }
inline F f_round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F f_pow2(F n) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), n); }
inline F f_keep_ge(F x, F least, F value) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), value); }
inline float f_sum(F a) { return _mm512_reduce_add_ps(a); }
inline float f_max_lanes(F a) { return _mm512_reduce_max_ps(a); }
inline float f_first(F a) { return _mm512_cvtss_f32(a); }

inline I i_zero() { return _mm512_setzero_si512(); }
inline I i_set(int32_t x) { return _mm512_set1_epi32(x); }
inline I i_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
inline I i_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
inline I i_load_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
inline void i_store_i8(int8_t *p, I x) { _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtsepi32_epi8(x)); }
inline F f_low4(I a) { // looks up its low 4 bits: cheaper than a mask and a conversion
    return _mm512_permutexvar_ps(a, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
inline F f_high4(I a) { return f_low4(_mm512_srli_epi32(a, 4)); }
inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
template <int S> inline I i_shift_left(I a) { return _mm512_slli_epi32(a, S); }
inline int32_t i_sum(I a) { return _mm512_reduce_add_epi32(a); }
inline F i_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I f_int(F a) { return _mm512_cvtps_epi32(a); }

inline Bytes b_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
inline Bytes b_low(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes b_high(Bytes b) { return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15)); }
inline I dot_nibble(I sum, Bytes w, const int8_t *x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}
inline I dot_byte(I sum, Bytes w, const int8_t *x) { return dot_nibble(sum, w, x); }

#include "kernels.inl"

} // namespace

const Kernels &avx512_kernels() {
    static constexpr Kernels kernels = table("avx512-vnni");
    return kernels;
}

} // namespace anchorstream
