// AArch64 with the dot-product instructions (ARMv8.2): 4 floats a vector.
#include "anchorstream/kernels.h"

#include <arm_neon.h>
#include <cmath>
#include <cstring>

namespace anchorstream {
namespace {

constexpr int kLanes = 4, kTileTokens = 4, kTileRows = 4, kTileVectors = 4, kByteOffset = 0;

using F = float32x4_t;
using I = int32x4_t;
using Bytes = int8x16_t;

inline F f_zero() { return vdupq_n_f32(0); }
inline F f_set(float x) { return vdupq_n_f32(x); }
inline F f_load(const float *p) { return vld1q_f32(p); }
inline void f_store(float *p, F x) { vst1q_f32(p, x); }
inline F f_load_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline void f_store_half(uint16_t *p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline F f_load_brain(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline F f_add(F a, F b) { return vaddq_f32(a, b); }
inline F f_sub(F a, F b) { return vsubq_f32(a, b); }
inline F f_mul(F a, F b) { return vmulq_f32(a, b); }
inline F f_div(F a, F b) { return vdivq_f32(a, b); }
inline F f_fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F f_max(F a, F b) { return vmaxq_f32(a, b); }
inline F f_min(F a, F b) { return vminq_f32(a, b); }
inline F f_abs(F a) { return vabsq_f32(a); }
inline F f_round(F a) { return vrndnq_f32(a); }
inline F f_pow2(F n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)); }
inline F f_keep_ge(F x, F least, F value) { return vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, least), vreinterpretq_u32_f32(value))); }
inline float f_sum(F a) { return vaddvq_f32(a); }
inline float f_max_lanes(F a) { return vmaxvq_f32(a); }
inline float f_first(F a) { return vgetq_lane_f32(a, 0); }

inline I i_zero() { return vdupq_n_s32(0); }
inline I i_set(int32_t x) { return vdupq_n_s32(x); }
inline I i_load(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
inline I i_load_u8(const uint8_t *p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
}
inline I i_load_i8(const int8_t *p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
}
inline void i_store_i8(int8_t *p, I x) {
    const int16x4_t words = vqmovn_s32(x);
    const int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
    std::memcpy(p, &four, 4);
}
inline F f_low4(I a) { return vcvtq_f32_s32(vandq_s32(a, vdupq_n_s32(15))); }
inline F f_high4(I a) { return vcvtq_f32_s32(vshrq_n_s32(a, 4)); }
inline I i_add(I a, I b) { return vaddq_s32(a, b); }
template <int S> inline I i_shift_left(I a) { return vshlq_n_s32(a, S); }
inline int32_t i_sum(I a) { return vaddvq_s32(a); }
inline F i_float(I a) { return vcvtq_f32_s32(a); }
inline I f_int(F a) { return vcvtnq_s32_f32(a); }

inline Bytes b_load(const uint8_t *p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
inline Bytes b_low(Bytes b) { return vandq_s8(b, vdupq_n_s8(15)); }
inline Bytes b_high(Bytes b) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(b), 4)); }
inline I dot_nibble(I sum, Bytes w, const int8_t *x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return vdotq_s32(sum, w, vreinterpretq_s8_s32(vdupq_n_s32(four)));
}
inline I dot_byte(I sum, Bytes w, const int8_t *x) { return dot_nibble(sum, veorq_s8(w, vdupq_n_s8(-128)), x); }

#include "kernels.inl"

} // namespace

const Kernels &neon_kernels() {
    static constexpr Kernels kernels = table("neon-dotprod");
    return kernels;
}

} // namespace anchorstream
