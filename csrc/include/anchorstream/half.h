// Half and brain floats in plain integer arithmetic: for packing, and for machines without an instruction for them.
#pragma once

#include <bit>
#include <cstdint>

namespace anchorstream {

inline float brain_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
    if (exponent) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float small = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -small : small;
}

// Rounds to nearest, ties to even.
inline uint16_t float_to_half(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) return sign | 0x7e00;
    if (size >= 0x477ff000) return sign | 0x7c00;
    if (size < 0x38800000) { // subnormal: adding 0.5 aligns the mantissa so that the hardware rounds it
        const float shifted = std::bit_cast<float>(size) + 0.5f;
        return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
    }
    const uint32_t odd = (size >> 13) & 1;
    return sign | static_cast<uint16_t>((size + 0xfff + odd - 0x38000000) >> 13);
}

} // namespace anchorstream
