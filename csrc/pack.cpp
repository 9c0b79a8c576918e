#include "anchorstream/pack.h"

#include <cstring>
#include <stdexcept>

#include "anchorstream/half.h"

namespace anchorstream {
namespace {

struct TypeInfo {
    const char *name;
    int block;    // weights
    size_t bytes; // of a block
    Kind kind;
};
constexpr TypeInfo kTypes[] = {
    {"F32", 1, 4, Kind::f32},
    {"F16", 1, 2, Kind::f16},
    {"BF16", 1, 2, Kind::bf16},
    {"Q4_0", 32, 18, Kind::nibble_half},
    {"Q4_1", 32, 20, Kind::nibble_half_min},
    {"Q5_0", 32, 22, Kind::byte_half},
    {"Q5_1", 32, 24, Kind::byte_half_min},
    {"Q8_0", 32, 34, Kind::byte_half},
    {"Q4_K", 256, 144, Kind::nibble_k},
    {"Q5_K", 256, 176, Kind::byte_k},
    {"Q6_K", 256, 210, Kind::byte_k16},
};
const TypeInfo &info(Type type) { return kTypes[static_cast<int>(type)]; }

uint16_t load16(const uint8_t *p) {
    uint16_t x;
    std::memcpy(&x, p, 2);
    return x;
}
uint32_t load32(const uint8_t *p) {
    uint32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// 32 consecutive weights of a row, as the format stores them. A weight is scale * q + minimum, q = stored - offset.
struct Decoded {
    uint8_t q[kBlock];               // nibbles: 0..15; bytes: q + 128
    uint16_t scale = 0, minimum = 0; // f16, simple types
    uint16_t d = 0, dmin = 0;        // f16, k types
    uint8_t s = 0, m = 0;            // 6 bits, q4_k and q5_k
    int8_t s16[2] = {0, 0};          // q6_k
};

void k_scales(const uint8_t *packed, int j, Decoded &out) { // eight pairs of 6 bits in 12 bytes
    if (j < 4) {
        out.s = packed[j] & 63;
        out.m = packed[j + 4] & 63;
    } else {
        out.s = static_cast<uint8_t>((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4));
        out.m = static_cast<uint8_t>((packed[j + 4] >> 4) | (packed[j] >> 6 << 4));
    }
}

template <Type T> inline void decode(const uint8_t *row, int b, Decoded &out) {
    constexpr const TypeInfo &type = kTypes[static_cast<int>(T)];
    const uint8_t *p = row + static_cast<size_t>(b) / (type.block / kBlock) * type.bytes;
    const int part = b % (type.block / kBlock);
    if constexpr (T == Type::q4_0 || T == Type::q4_1) {
        out.scale = load16(p);
        if constexpr (T == Type::q4_1) out.minimum = load16(p + 2);
        const uint8_t *qs = p + (T == Type::q4_1 ? 4 : 2);
        for (int i = 0; i < 16; ++i) {
            out.q[i] = qs[i] & 15;
            out.q[i + 16] = qs[i] >> 4;
        }
    } else if constexpr (T == Type::q5_0 || T == Type::q5_1) {
        constexpr int skip = T == Type::q5_1 ? 4 : 2, offset = T == Type::q5_1 ? 0 : 16;
        out.scale = load16(p);
        if constexpr (T == Type::q5_1) out.minimum = load16(p + 2);
        const uint32_t high = load32(p + skip);
        const uint8_t *qs = p + skip + 4;
        for (int i = 0; i < 16; ++i) {
            out.q[i] = static_cast<uint8_t>(((qs[i] & 15) | ((high >> i & 1) << 4)) - offset + 128);
            out.q[i + 16] = static_cast<uint8_t>(((qs[i] >> 4) | ((high >> (i + 16) & 1) << 4)) - offset + 128);
        }
    } else if constexpr (T == Type::q8_0) {
        out.scale = load16(p);
        for (int i = 0; i < kBlock; ++i) out.q[i] = p[2 + i] ^ 0x80;
    } else if constexpr (T == Type::q4_k || T == Type::q5_k) {
        out.d = load16(p);
        out.dmin = load16(p + 2);
        k_scales(p + 4, part, out);
        const uint8_t *high = p + 16;
        const uint8_t *qs = p + (T == Type::q5_k ? 48 : 16) + part / 2 * 32;
        for (int i = 0; i < kBlock; ++i) {
            const int nibble = part % 2 ? qs[i] >> 4 : qs[i] & 15;
            out.q[i] = static_cast<uint8_t>(T == Type::q5_k ? (nibble | ((high[i] >> part & 1) << 4)) + 128 : nibble);
        }
    } else if constexpr (T == Type::q6_k) {
        const int half = part / 4, quarter = part % 4;
        const uint8_t *low = p + half * 64 + quarter % 2 * 32, *high = p + 128 + half * 32;
        for (int i = 0; i < kBlock; ++i) {
            const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
            out.q[i] = static_cast<uint8_t>((nibble | ((high[i] >> (2 * quarter) & 3) << 4)) - 32 + 128);
        }
        out.s16[0] = static_cast<int8_t>(p[192 + 2 * part]);
        out.s16[1] = static_cast<int8_t>(p[193 + 2 * part]);
        out.d = load16(p + 208);
    }
}

constexpr bool nibbles(Kind kind) { return kind == Kind::nibble_half || kind == Kind::nibble_half_min || kind == Kind::nibble_k; }

// One block as floats.
void to_floats(Kind kind, const Decoded &block, float *out) {
    const bool k16 = kind == Kind::byte_k16, k = kind == Kind::nibble_k || kind == Kind::byte_k;
    const bool with_minimum = kind == Kind::nibble_half_min || kind == Kind::byte_half_min;
    const int offset = kind == Kind::nibble_half ? 8 : nibbles(kind) ? 0 : 128;
    for (int i = 0; i < kBlock; ++i) {
        const float q = static_cast<float>(block.q[i] - offset);
        if (k16) out[i] = half_to_float(block.d) * static_cast<float>(block.s16[i / 16]) * q;
        else if (k) out[i] = half_to_float(block.d) * block.s * q - half_to_float(block.dmin) * block.m;
        else out[i] = half_to_float(block.scale) * q + (with_minimum ? half_to_float(block.minimum) : 0.0f);
    }
}

template <Type T> void dequantise_blocks(const uint8_t *row, int columns, float *out) {
    Decoded block;
    for (int b = 0; b < columns / kBlock; ++b) {
        decode<T>(row, b, block);
        to_floats(info(T).kind, block, out + b * kBlock);
    }
}

template <Type T> void pack_panel(const uint8_t *const *rows, int columns, uint8_t *out) {
    constexpr Kind kind = kTypes[static_cast<int>(T)].kind;
    constexpr int per_super = kSuperBlock / kBlock;
    const PanelLayout at = panel_layout(kind, columns);
    auto put16 = [out](size_t base, int index, uint16_t x) { std::memcpy(out + base + 2 * static_cast<size_t>(index), &x, 2); };
    Decoded block;
    for (int b = 0; b < columns / kBlock; ++b)
        for (int r = 0; r < kPanelRows; ++r) {
            if (!rows[r]) continue; // padding stays zero: scale 0
            decode<T>(rows[r], b, block);
            if constexpr (nibbles(kind)) {
                uint8_t both[16];
                for (int i = 0; i < 16; ++i) both[i] = static_cast<uint8_t>(block.q[i] | block.q[i + 16] << 4);
                for (int g = 0; g < 4; ++g) std::memcpy(out + b * 256 + g * 64 + r * 4, both + 4 * g, 4);
            } else {
                for (int g = 0; g < 8; ++g) std::memcpy(out + b * 512 + g * 64 + r * 4, block.q + 4 * g, 4);
            }
            const int lane = b * kPanelRows + r, super = b / per_super * kPanelRows + r;
            if constexpr (kind == Kind::nibble_k || kind == Kind::byte_k) {
                out[at.scales + lane] = block.s;
                out[at.minimums + lane] = block.m;
                put16(at.super_scales, super, block.d);
                put16(at.super_minimums, super, block.dmin);
            } else if constexpr (kind == Kind::byte_k16) {
                out[at.scales + (2 * b) * kPanelRows + r] = static_cast<uint8_t>(block.s16[0]);
                out[at.scales + (2 * b + 1) * kPanelRows + r] = static_cast<uint8_t>(block.s16[1]);
                put16(at.super_scales, super, block.d);
            } else {
                put16(at.scales, lane, block.scale);
                if constexpr (kind == Kind::nibble_half_min || kind == Kind::byte_half_min) put16(at.minimums, lane, block.minimum);
            }
        }
}

template <class Function> void with_type(Type type, Function function) {
    switch (type) {
    case Type::q4_0: return function.template operator()<Type::q4_0>();
    case Type::q4_1: return function.template operator()<Type::q4_1>();
    case Type::q5_0: return function.template operator()<Type::q5_0>();
    case Type::q5_1: return function.template operator()<Type::q5_1>();
    case Type::q8_0: return function.template operator()<Type::q8_0>();
    case Type::q4_k: return function.template operator()<Type::q4_k>();
    case Type::q5_k: return function.template operator()<Type::q5_k>();
    case Type::q6_k: return function.template operator()<Type::q6_k>();
    default: return;
    }
}

// A panel of floats: `size` bytes an element, copied, or 4 bytes from any type.
void pack_floats(Type type, Kind kind, const uint8_t *const *rows, int columns, uint8_t *out, std::vector<float> &buffer) {
    for (int r = 0; r < kPanelRows; ++r) {
        if (!rows[r]) continue;
        if (kind == Kind::f32) {
            dequantise_row(type, rows[r], columns, buffer.data());
            auto *to = reinterpret_cast<float *>(out) + r;
            for (int k = 0; k < columns; ++k) to[static_cast<size_t>(k) * kPanelRows] = buffer[static_cast<size_t>(k)];
        } else {
            auto *to = reinterpret_cast<uint16_t *>(out) + r;
            for (int k = 0; k < columns; ++k) to[static_cast<size_t>(k) * kPanelRows] = load16(rows[r] + 2 * static_cast<size_t>(k));
        }
    }
}

} // namespace

Type parse_type(const std::string &name) {
    for (int i = 0; i < static_cast<int>(std::size(kTypes)); ++i)
        if (name == kTypes[i].name) return static_cast<Type>(i);
    throw std::invalid_argument("no kernel for weights of type " + name);
}

size_t row_bytes(Type type, int columns) {
    if (columns <= 0 || columns % info(type).block)
        throw std::invalid_argument("a row of " + std::to_string(columns) + " weights is not whole blocks of " + info(type).name);
    return static_cast<size_t>(columns) / static_cast<size_t>(info(type).block) * info(type).bytes;
}

void dequantise_row(Type type, const uint8_t *row, int columns, float *out) {
    switch (type) {
    case Type::f32: std::memcpy(out, row, 4 * static_cast<size_t>(columns)); return;
    case Type::f16:
        for (int k = 0; k < columns; ++k) out[k] = half_to_float(load16(row + 2 * k));
        return;
    case Type::bf16:
        for (int k = 0; k < columns; ++k) out[k] = brain_to_float(load16(row + 2 * k));
        return;
    default: with_type(type, [&]<Type T>() { dequantise_blocks<T>(row, columns, out); });
    }
}

Kind packed_kind(Type type, bool as_f32) {
    const Kind kind = info(type).kind;
    return as_f32 && !is_float(kind) ? Kind::f32 : kind;
}

void Linear::append(Type type, const uint8_t *data, int rows, int columns, const int64_t *order, bool as_f32, Team &team, Arena &arena) {
    const size_t stride = row_bytes(type, columns);
    if (columns_ && columns != columns_) throw std::invalid_argument("segments of one matrix differ in columns");
    const Kind kind = packed_kind(type, as_f32);
    const size_t panel_bytes = panel_layout(kind, columns).end;
    const int panels = (rows + kPanelRows - 1) / kPanelRows;
    uint8_t *packed = arena.take(panel_bytes * static_cast<size_t>(panels));
    std::vector<std::vector<float>> buffers(static_cast<size_t>(team.size()));
    if (is_float(kind))
        for (auto &buffer : buffers) buffer.resize(static_cast<size_t>(columns));
    constexpr int kGrain = 4; // panels
    team.run([&](int member) {
        for (int piece; (piece = team.claim(member, (panels + kGrain - 1) / kGrain)) >= 0;)
            for (int p = piece * kGrain; p < panels && p < (piece + 1) * kGrain; ++p) {
                const uint8_t *from[kPanelRows];
                for (int r = 0; r < kPanelRows; ++r) {
                    const int row = p * kPanelRows + r;
                    from[r] = row < rows ? data + stride * static_cast<size_t>(order ? order[row] : row) : nullptr;
                }
                uint8_t *out = packed + panel_bytes * static_cast<size_t>(p);
                if (is_float(kind)) pack_floats(type, kind, from, columns, out, buffers[static_cast<size_t>(member)]);
                else with_type(type, [&]<Type T>() { pack_panel<T>(from, columns, out); });
            }
    });
    segments_.push_back({kind, rows, rows_ / kPanelRows, panel_bytes, packed});
    columns_ = columns;
    rows_ += panels * kPanelRows;
    quantised_ = quantised_ || !is_float(kind);
}

size_t Linear::bytes() const {
    size_t sum = 0;
    for (const Segment &segment : segments_) sum += segment.panel_bytes * static_cast<size_t>((segment.rows + kPanelRows - 1) / kPanelRows);
    return sum;
}

Linear::Panel Linear::panel(int index) const {
    size_t s = segments_.size() - 1;
    while (s > 0 && segments_[s].first_panel > index) --s;
    const Segment &segment = segments_[s];
    return {segment.kind, segment.data + segment.panel_bytes * static_cast<size_t>(index - segment.first_panel)};
}

void Linear::unpack_row(int row, float *out) const {
    const Panel panel = this->panel(row / kPanelRows);
    const int r = row % kPanelRows;
    const uint8_t *p = panel.data;
    auto load = [p](size_t base, int index) { return load16(p + base + 2 * static_cast<size_t>(index)); };
    if (is_float(panel.kind)) {
        for (int k = 0; k < columns_; ++k) {
            const size_t at = static_cast<size_t>(k) * kPanelRows + static_cast<size_t>(r);
            if (panel.kind == Kind::f32) std::memcpy(out + k, p + 4 * at, 4);
            else out[k] = panel.kind == Kind::f16 ? half_to_float(load16(p + 2 * at)) : brain_to_float(load16(p + 2 * at));
        }
        return;
    }
    const PanelLayout at = panel_layout(panel.kind, columns_);
    Decoded block;
    for (int b = 0; b < columns_ / kBlock; ++b) {
        for (int i = 0; i < kBlock; ++i) {
            if (nibbles(panel.kind)) {
                const uint8_t both = p[b * 256 + i % 16 / 4 * 64 + r * 4 + i % 4];
                block.q[i] = i < 16 ? both & 15 : both >> 4;
            } else {
                block.q[i] = p[b * 512 + i / 4 * 64 + r * 4 + i % 4];
            }
        }
        const int lane = b * kPanelRows + r, super = b / (kSuperBlock / kBlock) * kPanelRows + r;
        switch (panel.kind) {
        case Kind::nibble_k:
        case Kind::byte_k:
            block.s = p[at.scales + static_cast<size_t>(lane)];
            block.m = p[at.minimums + static_cast<size_t>(lane)];
            block.d = load(at.super_scales, super);
            block.dmin = load(at.super_minimums, super);
            break;
        case Kind::byte_k16:
            for (int half = 0; half < 2; ++half)
                block.s16[half] = static_cast<int8_t>(p[at.scales + static_cast<size_t>((2 * b + half) * kPanelRows + r)]);
            block.d = load(at.super_scales, super);
            break;
        default:
            block.scale = load(at.scales, lane);
            if (panel.kind == Kind::nibble_half_min || panel.kind == Kind::byte_half_min) block.minimum = load(at.minimums, lane);
        }
        to_floats(panel.kind, block, out + b * kBlock);
    }
}

} // namespace anchorstream
