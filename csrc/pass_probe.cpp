// Where a token looks: its attention, averaged over layers and heads. For figures that are sampled, and so simple, not fast.
#include <cmath>

#include "anchorstream/half.h"
#include "pass.h"

namespace anchorstream {
namespace {

// Keys of one part as floats, [dim][64]; what has not been written is anything.
void unpack_keys(KvKind kind, const uint8_t *part, int dim, float *keys) {
    const KvLayout at = kv_layout(kind, dim);
    const auto *scales = reinterpret_cast<const uint16_t *>(part + at.key_scales);
    const auto *minimums = reinterpret_cast<const uint16_t *>(part + at.key_minimums);
    for (int d = 0; d < dim; ++d, keys += kBankTokens) {
        const uint8_t *row = part + static_cast<size_t>(d) * kv_row_bytes(kind, kBankTokens);
        for (int k = 0; k < kBankTokens; ++k) switch (kind) {
            case KvKind::f16: keys[k] = half_to_float(reinterpret_cast<const uint16_t *>(row)[k]); break;
            case KvKind::f32: keys[k] = reinterpret_cast<const float *>(row)[k]; break;
            default: {
                const uint8_t both = kind == KvKind::q4 ? row[k / 32 * 16 + k % 16] : row[k];
                const int code = kind == KvKind::q8 ? static_cast<int8_t>(both) : k % 32 < 16 ? both & 15 : both >> 4;
                keys[k] = static_cast<float>(code) * half_to_float(scales[d]) + half_to_float(minimums[d]);
            }
            }
    }
}

} // namespace

// Adds this layer's attention of each probed request's last token, over what it sees: anchors, window, itself.
void Decoder::Pass::probe(int layer) {
    const int dim = shape.head_size;
    std::vector<float> keys(static_cast<size_t>(dim * kBankTokens)), scores;
    for (size_t r = 0; r < requests.size(); ++r) {
        const Request &request = requests[r];
        if (!request.attention) continue;
        const Cache &cache = *request.cache;
        const int last = request.count - 1, token = begin_of[r] + last;
        const int64_t index = request.indices[last], first = request.first_seen[last];
        const auto anchors = static_cast<int64_t>(request.anchors_seen[last]);
        const bool anchor = index < request.num_anchors; // it sees anchors and itself alone
        const auto seen = static_cast<size_t>(anchor ? index + 1 : anchors + index - first + 1);
        for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
            scores.assign(static_cast<size_t>(group) * seen, 0.0f);
            for (int b = 0; b < cache.banks(); ++b) {
                const bool window = b >= cache.anchor_banks();
                const int64_t start = cache.bank_first(b);
                const int64_t from = std::max(start, window ? first : 0);
                const int64_t to = std::min(start + kBankTokens, window || anchor ? index + 1 : anchors);
                if (from >= to) continue;
                const bool sealed = cache.sealed(b) && (!cache.live(b) || index >= start + kBankTokens);
                const uint8_t *part =
                    sealed ? cache.sealed(b) + cache.sealed_part(layer, kv_head) : cache.live(b) + cache.part(layer, kv_head);
                unpack_keys(sealed ? cache.sealed_shape()->kind : cache.shape().kind, part, dim, keys.data());
                for (int g = 0; g < group; ++g) {
                    const float *q = (window ? window_q : anchor_q).get() + query_at(token, kv_head) + static_cast<size_t>(g * dim);
                    float *to_scores = scores.data() + static_cast<size_t>(g) * seen + (window ? anchors - first : 0);
                    for (int d = 0; d < dim; ++d)
                        for (int64_t k = from; k < to; ++k) to_scores[k] += q[d] * keys[static_cast<size_t>(d * kBankTokens + (k - start))];
                }
            }
            for (int g = 0; g < group; ++g) {
                float *row = scores.data() + static_cast<size_t>(g) * seen;
                float most = *std::max_element(row, row + seen), total = 0;
                for (size_t k = 0; k < seen; ++k) total += row[k] = std::exp(row[k] - most);
                const float share = 1.0f / (total * static_cast<float>(shape.heads * shape.layers));
                for (size_t k = 0; k < seen; ++k) request.attention[k] += row[k] * share;
            }
        }
    }
}

} // namespace anchorstream
