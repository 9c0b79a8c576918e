// The attention of a pass: the kernel is told by the plan what each token sees, bank by bank.
#include <cmath>
#include <cstring>

#include "pass.h"

namespace anchorstream {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A row's attention is a running softmax over each group of banks, and these are joined in order. Groups are fixed by the
// indices of their tokens. So a row's result is the same to the bit, whoever computes which group, and whether a token
// comes alone, in a long prompt or beside other streams.
void Decoder::Pass::plan_attention() {
    items.clear();
    filled.clear();
    groups.resize(requests.size());
    const int at_once = std::max(1, kRowBlock / group);
    int whole = 0, most = 0; // items, were none cut; groups
    for (const Request &request : requests) whole += shape.kv_heads * ((request.count + at_once - 1) / at_once);
    // With few items the groups of each are shared out, so that all members have work to the end.
    const bool share = team.size() > 1 && whole < kItemsPerMember * team.size();
    for (int r = 0; r < static_cast<int>(requests.size()); ++r) {
        const Request &request = requests[static_cast<size_t>(r)];
        const Cache &cache = *request.cache;
        std::vector<Group> &own_groups = groups[static_cast<size_t>(r)];
        own_groups.clear();
        for (int b = 0; b < cache.banks(); ++b) {
            const bool window = b >= cache.anchor_banks();
            const int64_t number = (cache.bank_first(b) - (window ? request.num_anchors : 0)) / kBankTokens;
            if (b == 0 || b == cache.anchor_banks() || number % kGroupBanks == 0) own_groups.push_back({b, b});
            own_groups.back().end = b + 1;
            if (cache.live(b) && cache.sealed(b)) filled.push_back({r, b});
        }
        const int count = static_cast<int>(own_groups.size()), step = share ? 1 : count;
        most = std::max(most, count);
        for (int begin = 0; begin < request.count; begin += at_once)
            for (int g = 0; g < count; g += step) // in the order in which banks lie in memory
                for (int h = 0; h < shape.kv_heads; ++h)
                    items.push_back({r, h, begin, std::min(request.count, begin + at_once), g, g + step});
    }
    parts = share ? most : 1;
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
        const Item &mine = items[static_cast<size_t>(team.begin(member, static_cast<int>(items.size())))];
        const uint8_t *part = first_part(mine, layer);
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

const uint8_t *Decoder::Pass::first_part(const Item &item, int layer) const {
    return part_of(item, groups[static_cast<size_t>(item.request)][static_cast<size_t>(item.group_begin)].begin, layer);
}

// The running softmaxes of rows `first` and later.
Attended Decoder::Pass::part_rows(size_t first) {
    return {part_largest.get() + first, part_total.get() + first, part_out.get() + first * static_cast<size_t>(shape.head_size)};
}

void Decoder::Pass::attend(int member, int layer) {
    float *space = scratch[static_cast<size_t>(member)].get();
    const int pieces = static_cast<int>(items.size()), own_end = team.begin(member + 1, pieces);
    for (int i; (i = team.claim(member, pieces)) >= 0;) {
        const Item *next = i + 1 < own_end ? &items[static_cast<size_t>(i + 1)] : nullptr;
        attend_item(items[static_cast<size_t>(i)], space, layer, next ? first_part(*next, layer) : nullptr);
    }
    team.barrier();
}

namespace {
void clear(const Attended &rows, int count, int dim) {
    std::fill_n(rows.out, count * dim, 0.0f);
    std::fill_n(rows.largest, count, kNothing);
    std::fill_n(rows.total, count, 0.0f);
}
Attended row_of(const Attended &rows, int row, int dim) { return {rows.largest + row, rows.total + row, rows.out + row * dim}; }
} // namespace

// `after` is what this member will read next, to be fetched ahead.
void Decoder::Pass::attend_item(const Item &item, float *space, int layer, const uint8_t *after) {
    const std::vector<Group> &of_request = groups[static_cast<size_t>(item.request)];
    const int first_token = begin_of[static_cast<size_t>(item.request)] + item.begin, dim = shape.head_size;
    const int rows = (item.end - item.begin) * group;
    if (parts > 1) {
        const Attended own = part_rows(part_at(first_token, item.kv_head, item.group_begin));
        clear(own, rows, dim);
        attend_group(item, of_request[static_cast<size_t>(item.group_begin)], own, space, layer, after);
        return;
    }
    const Attended all = part_rows(part_at(first_token, item.kv_head, 0)),
                   one{space, space + rows, space + round_up(2 * static_cast<size_t>(rows), 16)};
    space = one.out + rows * dim;
    clear(all, rows, dim);
    for (int g = item.group_begin; g < item.group_end; ++g) {
        clear(one, rows, dim);
        attend_group(item, of_request[static_cast<size_t>(g)], one, space, layer, after);
        for (int row = 0; row < rows; ++row) {
            Attended into = row_of(all, row, dim);
            kernels.merge(row_of(one, row, dim), into, dim);
        }
    }
}

void Decoder::Pass::attend_group(const Item &item, const Group &banks, const Attended &rows, float *space, int layer,
                                 const uint8_t *after) {
    const Cache &cache = *requests[static_cast<size_t>(item.request)].cache;
    for (int b = banks.begin; b < banks.end; ++b) {
        const uint8_t *next = b + 1 < banks.end ? part_of(item, b + 1, layer) : after;
        if (cache.live(b)) attend_bank(item, b, false, rows, space, layer, next);
        if (cache.sealed(b)) attend_bank(item, b, true, rows, space, layer, next);
    }
}

// Adds one bank, as it was written or as it was sealed. A bank that this pass fills is both: its own tokens see it as
// written and later ones as sealed, as if they had come one by one.
void Decoder::Pass::attend_bank(const Item &item, int b, bool sealed, const Attended &into, float *space, int layer, const uint8_t *next) {
    const Request &request = requests[static_cast<size_t>(item.request)];
    const Cache &cache = *request.cache;
    const int first_token = begin_of[static_cast<size_t>(item.request)] + item.begin;
    const int count = item.end - item.begin, rows = count * group, dim = shape.head_size;
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
                      into.largest,
                      into.total,
                      into.out,
                      rest,
                      rows,
                      dim};
    kernels.attend[static_cast<int>(sealed ? cache.sealed_shape()->kind : cache.shape().kind)](call);
}

// One token's attention output: its groups joined as one softmax.
void Decoder::Pass::gather(int token, float *out) {
    const int dim = shape.head_size;
    const int count = parts > 1 ? static_cast<int>(groups[static_cast<size_t>(request_of[static_cast<size_t>(token)])].size()) : 1;
    for (int head = 0; head < shape.heads; ++head, out += dim) {
        float largest = kNothing, total = 0;
        Attended all{&largest, &total, out};
        clear(all, 1, dim);
        for (int p = 0; p < count; ++p)
            kernels.merge(part_rows(part_at(token, head / group, p) + static_cast<size_t>(head % group)), all, dim);
        const float inverse = 1.0f / total; // every token sees at least itself
        for (int d = 0; d < dim; ++d) out[d] *= inverse;
    }
}

} // namespace anchorstream
