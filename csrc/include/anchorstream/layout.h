// How weights lie in memory once packed: panels of 16 rows, interleaved so that one vector load brings the same
// columns of 16 rows. Every instruction set reads the same layout.
//
// A panel holds, one after the other, each padded to 64 bytes:
//   floats   [columns][16]                                             f32, f16 or bf16
//   nibbles  [blocks of 32 columns][4 groups][16 rows][4]              low nibble: column 4g+j, high: 16+4g+j
//   bytes    [blocks of 32 columns][8 groups][16 rows][4]              stored as q + 128, column 4g+j
// and, for the last two, the scales. A weight is  scale * q + minimum.
//   half     [blocks][16] f16 scale; minimum = -8 scale for nibbles, 0 for bytes
//   half_min [blocks][16] f16 scale, [blocks][16] f16 minimum
//   k        [blocks][16] u8 scale, [blocks][16] u8 minimum, [blocks/8][16] f16 d, [blocks/8][16] f16 dmin:
//            scale = d * s, minimum = -dmin * m
//   k16      [2 blocks][16] i8 scale per 16 columns, [blocks/8][16] f16 d
#pragma once

#include <cstddef>
#include <cstdint>

namespace anchorstream {

constexpr int kPanelRows = 16;
constexpr int kBlock = 32;       // columns that share a scale, in weights and in activations
constexpr int kSuperBlock = 256; // columns that share d and dmin in the k scales
constexpr int kBankTokens = 64;

enum class Kind : int { f32, f16, bf16, nibble_half, nibble_half_min, nibble_k, byte_half, byte_half_min, byte_k, byte_k16, count };

inline bool is_float(Kind kind) { return kind <= Kind::bf16; }

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Offsets in bytes of the parts of one panel of `columns` columns; `end` is the panel's size.
struct PanelLayout {
    size_t scales = 0, minimums = 0, super_scales = 0, super_minimums = 0, end = 0;
};

constexpr PanelLayout panel_layout(Kind kind, int columns) {
    PanelLayout at;
    const size_t blocks = static_cast<size_t>(columns) / kBlock, supers = static_cast<size_t>(columns) / kSuperBlock;
    size_t place = 0;
    auto take = [&place](size_t bytes) {
        const size_t here = place;
        place += round_up(bytes, 64);
        return here;
    };
    switch (kind) {
    case Kind::f32: take(static_cast<size_t>(columns) * kPanelRows * 4); break;
    case Kind::f16:
    case Kind::bf16: take(static_cast<size_t>(columns) * kPanelRows * 2); break;
    case Kind::nibble_half:
    case Kind::nibble_half_min:
    case Kind::nibble_k: take(blocks * 256); break;
    default: take(blocks * 512); break;
    }
    switch (kind) {
    case Kind::nibble_half:
    case Kind::byte_half: at.scales = take(blocks * 32); break;
    case Kind::nibble_half_min:
    case Kind::byte_half_min:
        at.scales = take(blocks * 32);
        at.minimums = take(blocks * 32);
        break;
    case Kind::nibble_k:
    case Kind::byte_k:
        at.scales = take(blocks * 16);
        at.minimums = take(blocks * 16);
        at.super_scales = take(supers * 32);
        at.super_minimums = take(supers * 32);
        break;
    case Kind::byte_k16:
        at.scales = take(blocks * 32);
        at.super_scales = take(supers * 32);
        break;
    default: break;
    }
    at.end = place;
    return at;
}

// How a bank keeps the keys and values of one layer and kv head. Keys lie across, [dim][64 tokens], so that the scores
// of many keys are one vector; values along, [64 tokens][dim].
//   f16, f32  keys, values
//   q8, q4    codes of the keys, scale and minimum per channel (f16 [dim] each), codes of the values, scale and minimum
//             per token (f16 [64] each): channels of keys differ widely, tokens of values do (KIVI, arXiv 2402.02750).
//             A number is  scale * code + minimum;  q8 codes are signed bytes, q4 codes nibbles: of each 32 in a row the
//             first 16 are the low halves of 16 bytes, the rest their high halves.
enum class KvKind : int { f16, f32, q8, q4, count };

inline bool is_quantised(KvKind kind) { return kind >= KvKind::q8; }

// Bytes of a row of n numbers.
constexpr size_t kv_row_bytes(KvKind kind, int n) {
    switch (kind) {
    case KvKind::f16: return static_cast<size_t>(n) * 2;
    case KvKind::f32: return static_cast<size_t>(n) * 4;
    case KvKind::q8: return static_cast<size_t>(n);
    default: return (static_cast<size_t>(n) + 31) / 32 * 16;
    }
}

// Offsets in bytes within the part of one layer and kv head; `end` is its size.
struct KvLayout {
    size_t key_scales = 0, key_minimums = 0, values = 0, value_scales = 0, value_minimums = 0, end = 0;
};

constexpr KvLayout kv_layout(KvKind kind, int dim) {
    KvLayout at;
    const auto n = static_cast<size_t>(dim);
    size_t place = n * kv_row_bytes(kind, kBankTokens);
    if (kind >= KvKind::q8) {
        at.key_scales = place;
        at.key_minimums = place + 2 * n;
        place += 4 * n;
    }
    at.values = place = round_up(place, 64);
    place += kBankTokens * kv_row_bytes(kind, dim);
    if (kind >= KvKind::q8) {
        at.value_scales = place;
        at.value_minimums = place + 2 * kBankTokens;
        place += 4 * kBankTokens;
    }
    at.end = round_up(place, 64);
    return at;
}

} // namespace anchorstream
