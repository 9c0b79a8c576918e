// The attention of a pass: the kernel is told by the plan what each token sees, bank by bank.
#include <cmath>
#include <cstring>

#include "pass.h"

namespace anchorstream {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

void Decoder::Pass::plan_attention() {
    items.clear();
    runs.clear();
    filled.clear();
    const int at_once = std::max(1, kRowBlock / group);
    int whole = 0; // items, were none cut
    for (const Request &request : requests) whole += shape.kv_heads * ((request.count + at_once - 1) / at_once);
    // With few items the banks of each are shared out, so that all members have work to the end.
    const bool share = team.size() > 1 && whole < kItemsPerMember * team.size();
    for (int r = 0; r < static_cast<int>(requests.size()); ++r) {
        const Request &request = requests[static_cast<size_t>(r)];
        const int banks = request.cache->banks(), step = share ? 1 : banks;
        for (int b = 0; b < banks; ++b)
            if (request.cache->live(b) && request.cache->sealed(b)) filled.push_back({r, b});
        for (int begin = 0; begin < request.count; begin += at_once)
            for (int b = 0; b < banks; b += step) // in the order in which banks lie in memory
                for (int h = 0; h < shape.kv_heads; ++h)
                    items.push_back({r, h, begin, std::min(request.count, begin + at_once), b, b + step});
    }
    const auto count = static_cast<int>(items.size());
    parts = share ? std::min(count, kPartsPerMember * team.size()) : 1;
    const int pieces = share ? parts : count;
    for (int i = 0; i <= pieces; ++i) runs.push_back(static_cast<int>(static_cast<int64_t>(count) * i / pieces));
}

// Rotates queries twice (at the index for the window, at the slot for the anchors) and keys once, and writes keys and
// values into their banks.
void Decoder::Pass::rotate_and_store(int member, int layer) {
    const int dim = shape.head_size;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const std::vector<float> &bias = weights.layers[static_cast<size_t>(layer)].qkv_bias;
    constexpr int kGrain = 8;
    const int grain = tokens > 2 * kGrain ? kGrain : 1;
    const int blocks = (tokens + grain - 1) / grain;
    auto one = [&](int t, int kv_head) {
        const Request &request = requests[static_cast<size_t>(request_of[static_cast<size_t>(t)])];
        const int local = local_of[static_cast<size_t>(t)];
        float *row = qkv.get() + static_cast<size_t>(t) * static_cast<size_t>(qkv_rows);
        const size_t angle = static_cast<size_t>(t) * static_cast<size_t>(pairs);
        const float *ci = cos_index.get() + angle, *si = sin_index.get() + angle;
        const float *cs = cos_slot.get() + angle, *ss = sin_slot.get() + angle;
        auto biased = [&](int at) {
            if (!bias.empty())
                for (int d = 0; d < dim; ++d) row[at + d] += bias[static_cast<size_t>(at + d)];
            return row + at;
        };
        for (int g = 0; g < group; ++g) {
            const float *q = biased((kv_head * group + g) * dim);
            const size_t to = query_at(t, kv_head) + static_cast<size_t>(g * dim);
            kernels.rotate(q, ci, si, pairs, dim, scale, window_q.get() + to);
            kernels.rotate(q, cs, ss, pairs, dim, scale, anchor_q.get() + to);
        }
        const float *k = biased((shape.heads + kv_head) * dim);
        const float *v = biased((shape.heads + shape.kv_heads + kv_head) * dim);
        const bool anchor = request.indices[local] < request.num_anchors;
        float rotated[256];
        kernels.rotate(k, anchor ? cs : ci, anchor ? ss : si, pairs, dim, 1.0f, rotated);
        int place = 0;
        uint8_t *keys = request.cache->find(request.indices[local], &place) + request.cache->part(layer, kv_head);
        uint8_t *values = keys + kv_layout(request.cache->shape().kind, dim).values;
        if (request.cache->shape().kind == KvKind::f16) {
            uint16_t halves[256];
            kernels.to_f16(rotated, dim, halves);
            auto *column = reinterpret_cast<uint16_t *>(keys) + place;
            for (int d = 0; d < dim; ++d) column[d * kBankTokens] = halves[d];
            kernels.to_f16(v, dim, reinterpret_cast<uint16_t *>(values) + place * dim);
        } else {
            auto *column = reinterpret_cast<float *>(keys) + place;
            for (int d = 0; d < dim; ++d) column[d * kBankTokens] = rotated[d];
            std::memcpy(reinterpret_cast<float *>(values) + place * dim, v, static_cast<size_t>(dim) * sizeof(float));
        }
    };
    for (int piece; (piece = team.claim(member, blocks * shape.kv_heads)) >= 0;)
        for (int t = piece / shape.kv_heads * grain; t < std::min(tokens, (piece / shape.kv_heads + 1) * grain); ++t)
            one(t, piece % shape.kv_heads);
    if (parts > 1) { // what this member will attend to first
        const Item &mine = items[static_cast<size_t>(runs[static_cast<size_t>(team.begin(member, parts))])];
        const uint8_t *part = part_of(mine, mine.bank_begin, layer);
        const size_t bytes = requests[static_cast<size_t>(mine.request)].cache->shape().part_bytes() / 2;
        for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(part + line);
    }
    team.barrier();
    if (!filled.empty()) seal_banks(member, layer);
}

// Quantises what this layer has written to the banks that are now full.
void Decoder::Pass::seal_banks(int member, int layer) {
    for (int piece; (piece = team.claim(member, static_cast<int>(filled.size()) * shape.kv_heads)) >= 0;) {
        const Filled &bank = filled[static_cast<size_t>(piece / shape.kv_heads)];
        const Cache &cache = *requests[static_cast<size_t>(bank.request)].cache;
        const int head = piece % shape.kv_heads;
        kernels.seal(cache.sealed_shape()->kind, shape.head_size, cache.live(bank.bank) + cache.part(layer, head),
                     cache.sealed(bank.bank) + cache.sealed_part(layer, head));
    }
    team.barrier();
}

// Where a bank's part begins that later tokens see.
const uint8_t *Decoder::Pass::part_of(const Item &item, int bank, int layer) const {
    const Cache &cache = *requests[static_cast<size_t>(item.request)].cache;
    const uint8_t *sealed = cache.sealed(bank);
    return sealed ? sealed + cache.sealed_part(layer, item.kv_head) : cache.live(bank) + cache.part(layer, item.kv_head);
}

// Running softmaxes over nothing.
void Decoder::Pass::clear_rows(size_t first, int count) {
    const auto dim = static_cast<size_t>(shape.head_size);
    std::fill_n(part_out.get() + first * dim, static_cast<size_t>(count) * dim, 0.0f);
    std::fill_n(part_largest.get() + first, count, kNothing);
    std::fill_n(part_total.get() + first, count, 0.0f);
}

void Decoder::Pass::attend(int member, int layer) {
    float *space = scratch[static_cast<size_t>(member)].get();
    const int pieces = static_cast<int>(runs.size()) - 1, own_end = runs[static_cast<size_t>(team.begin(member + 1, pieces))];
    for (int run; (run = team.claim(member, pieces)) >= 0;) {
        const int part = parts > 1 ? run : 0;
        if (parts > 1) clear_rows(part_at(0, 0, part), tokens * shape.heads);
        for (int i = runs[static_cast<size_t>(run)]; i < runs[static_cast<size_t>(run) + 1]; ++i) {
            const Item &item = items[static_cast<size_t>(i)];
            const Item *next = i + 1 < own_end ? &items[static_cast<size_t>(i + 1)] : nullptr;
            attend_item(item, part, space, layer, next ? part_of(*next, next->bank_begin, layer) : nullptr);
        }
    }
    team.barrier();
}

// Adds an item's banks to a part. `after` is what this member will read next, to be fetched ahead.
void Decoder::Pass::attend_item(const Item &item, int part, float *space, int layer, const uint8_t *after) {
    const Cache &cache = *requests[static_cast<size_t>(item.request)].cache;
    if (parts == 1) {
        const int first_token = begin_of[static_cast<size_t>(item.request)] + item.begin;
        clear_rows(part_at(first_token, item.kv_head, part), (item.end - item.begin) * group);
    }
    for (int b = item.bank_begin; b < item.bank_end; ++b) {
        const uint8_t *next = b + 1 < item.bank_end ? part_of(item, b + 1, layer) : after;
        if (cache.live(b)) attend_bank(item, b, false, part, space, layer, next);
        if (cache.sealed(b)) attend_bank(item, b, true, part, space, layer, next);
    }
}

// Adds one bank, as it was written or as it was sealed. A bank that this pass fills is both: its own tokens see it as
// written and later ones as sealed, as if they had come one by one.
void Decoder::Pass::attend_bank(const Item &item, int b, bool sealed, int part, float *space, int layer, const uint8_t *next) {
    const Request &request = requests[static_cast<size_t>(item.request)];
    const Cache &cache = *request.cache;
    const int first_token = begin_of[static_cast<size_t>(item.request)] + item.begin;
    const int count = item.end - item.begin, rows = count * group, dim = shape.head_size;
    const size_t at = part_at(first_token, item.kv_head, part);
    auto *low = reinterpret_cast<int *>(space), *high = low + rows;
    float *rest = space + 2 * rows;
    rest += (64 - reinterpret_cast<uintptr_t>(rest) % 64) % 64 / sizeof(float);
    alignas(64) float bias[kBankTokens];

    const bool anchors = b < cache.anchor_banks(), both = cache.live(b) && cache.sealed(b);
    const int64_t start = cache.bank_first(b);
    bool any = false;
    for (int t = 0; t < count; ++t) {
        const int i = item.begin + t;
        const int64_t index = request.indices[i];
        int64_t from = anchors ? 0 : request.first_seen[i], to = index + 1;
        if (anchors && index >= request.num_anchors) to = request.anchors_seen[i]; // an anchor sees itself here
        if (both && sealed != (index >= start + kBankTokens)) to = from;
        const int l = static_cast<int>(std::clamp<int64_t>(from - start, 0, kBankTokens));
        const int h = static_cast<int>(std::clamp<int64_t>(to - start, 0, kBankTokens));
        any = any || l < h;
        std::fill(low + t * group, low + (t + 1) * group, l);
        std::fill(high + t * group, high + (t + 1) * group, h);
    }
    if (!any) return;
    if (request.bias) {
        const int64_t stored_anchors = std::min(cache.length() + request.count, request.num_anchors);
        const int64_t base = anchors ? start : stored_anchors + start - request.bias_first;
        const int64_t end = anchors ? stored_anchors : stored_anchors + cache.length() + request.count - request.bias_first;
        for (int k = 0; k < kBankTokens; ++k) {
            const int64_t place = base + k;
            bias[k] = place >= (anchors ? 0 : stored_anchors) && place < end ? request.bias[place] : 0.0f;
        }
    }
    const size_t offset = sealed ? cache.sealed_part(layer, item.kv_head) : cache.part(layer, item.kv_head);
    const Attend call{(anchors ? anchor_q : window_q).get() + query_at(first_token, item.kv_head),
                      (sealed ? cache.sealed(b) : cache.live(b)) + offset,
                      next,
                      low,
                      high,
                      request.bias ? bias : nullptr,
                      part_largest.get() + at,
                      part_total.get() + at,
                      part_out.get() + at * static_cast<size_t>(dim),
                      rest,
                      rows,
                      dim};
    kernels.attend[static_cast<int>(sealed ? cache.sealed_shape()->kind : cache.shape().kind)](call);
}

// One token's attention output: its parts joined as one softmax.
void Decoder::Pass::gather(int token, float *out) {
    const int dim = shape.head_size;
    for (int head = 0; head < shape.heads; ++head, out += dim) {
        auto row = [&](int part) { return part_at(token, head / group, part) + static_cast<size_t>(head % group); };
        float most = kNothing, total = 0;
        for (int p = 0; p < parts; ++p) most = std::max(most, part_largest.get()[row(p)]);
        std::fill(out, out + dim, 0.0f);
        for (int p = 0; p < parts; ++p) {
            const size_t at = row(p);
            if (part_largest.get()[at] == kNothing) continue;
            const float weight = std::exp(part_largest.get()[at] - most);
            total += weight * part_total.get()[at];
            const float *from = part_out.get() + at * static_cast<size_t>(dim);
            for (int d = 0; d < dim; ++d) out[d] += weight * from[d];
        }
        const float inverse = 1.0f / total; // every token sees at least itself
        for (int d = 0; d < dim; ++d) out[d] *= inverse;
    }
}

} // namespace anchorstream
