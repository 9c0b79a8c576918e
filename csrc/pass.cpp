#include "pass.h"

#include <cmath>
#include <cstring>

namespace anchorstream {

void Decoder::Pass::prepare(std::span<Request> all) {
    requests = all;
    tokens = 0;
    probing = false;
    request_of.clear();
    local_of.clear();
    begin_of.clear();
    wanted.clear();
    for (int r = 0; r < static_cast<int>(all.size()); ++r) {
        const Request &request = all[static_cast<size_t>(r)];
        begin_of.push_back(tokens);
        probing = probing || request.attention;
        for (int i = 0; i < request.count; ++i) {
            const bool logits = request.logits && (request.all_logits || i == request.count - 1);
            if (logits || (request.targets && request.targets[i] >= 0)) wanted.push_back({tokens + i, r, i});
            request_of.push_back(r);
            local_of.push_back(i);
        }
        tokens += request.count;
    }
    for (const Request &request : all) request.cache->reserve(request.count, request.num_anchors);
    plan_attention();
    grow();
}

void Decoder::Pass::grow() {
    const auto n = static_cast<size_t>(tokens);
    const auto dim = static_cast<size_t>(shape.head_size);
    const size_t ffn = round_up(static_cast<size_t>(shape.ffn), kPanelRows);
    x.grow(n * static_cast<size_t>(hidden_stride));
    qkv.grow(n * static_cast<size_t>(qkv_rows));
    gate.grow(n * ffn);
    window_q.grow(n * static_cast<size_t>(attention_columns));
    anchor_q.grow(n * static_cast<size_t>(attention_columns));
    for (auto *table : {&cos_index, &sin_index, &cos_slot, &sin_slot}) table->grow(n * static_cast<size_t>(pairs));
    const size_t widest = std::max({static_cast<size_t>(hidden_stride), static_cast<size_t>(attention_columns), ffn});
    shared.grow(std::max(n, static_cast<size_t>(kLogitRows)), widest);
    up.grow(static_cast<size_t>(team.size()) * n * kPanelRows);
    const size_t rows = n * static_cast<size_t>(shape.heads * parts);
    part_out.grow(rows * dim);
    part_largest.grow(rows);
    part_total.grow(rows);
    const auto at_once = static_cast<size_t>(rows_at_once());
    for (ActivationBuffer &buffer : own) buffer.grow(kAlone, widest);
    for (Buffer<float> &buffer : scratch) buffer.grow(at_once * (4 + dim) + attend_scratch(at_once, dim) + 128);
    if (!wanted.empty()) logits.grow(std::min<size_t>(wanted.size(), kLogitRows) * static_cast<size_t>(weights.vocabulary().rows()));
}

// Activations of `count` tokens: fill(token, row) writes each row, which is quantised if the weights want it.
template <class Fill> Activations Decoder::Pass::activate(int member, int count, int columns, bool quantise, Fill fill) {
    const bool alone = count <= kAlone;
    const Activations act = (alone ? own[static_cast<size_t>(member)] : shared).of(columns);
    auto one = [&](int t) {
        fill(t, act.values + static_cast<size_t>(t) * static_cast<size_t>(columns));
        if (quantise) kernels.quantise(act, t);
    };
    if (alone) {
        for (int t = 0; t < count; ++t) one(t);
        return act;
    }
    constexpr int kGrain = 8;
    for (int piece; (piece = team.claim(member, (count + kGrain - 1) / kGrain)) >= 0;)
        for (int t = piece * kGrain; t < std::min(count, (piece + 1) * kGrain); ++t) one(t);
    team.barrier();
    return act;
}

namespace {
// Panels that a member takes at a time.
int grain_of(int panels, int members) { return std::max(1, panels / (members * 16)); }
int pieces_of(int panels, int members) {
    const int grain = grain_of(panels, members);
    return (panels + grain - 1) / grain;
}
} // namespace

// Where a member will begin in a matrix, to be fetched ahead.
const uint8_t *Decoder::Pass::first_panel(int member, const Linear *linear) const {
    if (!linear) return nullptr;
    return linear->panel(team.begin(member, pieces_of(linear->panels(), team.size())) * grain_of(linear->panels(), team.size())).data;
}

// y (+)= linear * act. `after` is the matrix that comes next.
void Decoder::Pass::multiply(int member, const Linear &linear, const Activations &act, int count, float *y, int stride, bool add,
                             const Linear *after) {
    const int panels = linear.panels(), grain = grain_of(panels, team.size()), pieces = pieces_of(panels, team.size());
    const int own_end = std::min(panels, team.begin(member + 1, pieces) * grain);
    const uint8_t *later = first_panel(member, after);
    for (int piece; (piece = team.claim(member, pieces)) >= 0;)
        for (int p = piece * grain; p < std::min(panels, (piece + 1) * grain); ++p) {
            const Linear::Panel panel = linear.panel(p);
            const uint8_t *ahead = p + 1 == own_end ? later : p + 1 < panels ? linear.panel(p + 1).data : nullptr;
            kernels.gemm[static_cast<int>(panel.kind)](panel.data, act, count, y + p * kPanelRows, stride, add, ahead);
        }
    team.barrier();
}

// gate = silu(gate x) * (up x), a panel of each at a time.
void Decoder::Pass::gate_up(int member, const Layer &layer, const Activations &act, int count) {
    const int panels = layer.gate.panels(), stride = panels * kPanelRows;
    const int grain = grain_of(panels, team.size()), pieces = pieces_of(panels, team.size());
    const int own_end = std::min(panels, team.begin(member + 1, pieces) * grain);
    float *ups = up.get() + static_cast<size_t>(member) * static_cast<size_t>(tokens * kPanelRows);
    const uint8_t *later = first_panel(member, &layer.down);
    for (int piece; (piece = team.claim(member, pieces)) >= 0;)
        for (int p = piece * grain; p < std::min(panels, (piece + 1) * grain); ++p) {
            const Linear::Panel g = layer.gate.panel(p), u = layer.up.panel(p);
            const uint8_t *ahead = p + 1 == own_end ? later : p + 1 < panels ? layer.gate.panel(p + 1).data : nullptr;
            float *gates = gate.get() + p * kPanelRows;
            kernels.gemm[static_cast<int>(g.kind)](g.data, act, count, gates, stride, false, u.data);
            kernels.gemm[static_cast<int>(u.kind)](u.data, act, count, ups, kPanelRows, false, ahead);
            for (int t = 0; t < count; ++t)
                kernels.silu_mul(gates + static_cast<size_t>(t) * static_cast<size_t>(stride), ups + t * kPanelRows, kPanelRows);
        }
    team.barrier();
}

// Embeddings, and the angles of all tokens: float64 from the integer index, once for all layers.
void Decoder::Pass::embed(int member) {
    for (int t; (t = team.claim(member, tokens)) >= 0;) {
        const Request &request = requests[static_cast<size_t>(request_of[static_cast<size_t>(t)])];
        const int local = local_of[static_cast<size_t>(t)];
        weights.embedding.unpack_row(request.tokens[local], x.get() + static_cast<size_t>(t) * static_cast<size_t>(hidden_stride));
        auto angles = [&](int64_t position, float *cos, float *sin) {
            for (int i = 0; i < pairs; ++i) {
                const double angle = static_cast<double>(position) * shape.inverse_frequencies[static_cast<size_t>(i)];
                cos[static_cast<size_t>(t * pairs + i)] = static_cast<float>(std::cos(angle) * shape.rope_magnitude);
                sin[static_cast<size_t>(t * pairs + i)] = static_cast<float>(std::sin(angle) * shape.rope_magnitude);
            }
        };
        angles(request.indices[local], cos_index.get(), sin_index.get());
        angles(request.slots[local], cos_slot.get(), sin_slot.get());
    }
    team.barrier();
}

// Final norm, vocabulary product, and what each caller wants of the logits.
void Decoder::Pass::finish(int member) {
    const Linear &vocabulary = weights.vocabulary();
    const int total = static_cast<int>(wanted.size()), stride = vocabulary.rows();
    const auto vocab = static_cast<size_t>(shape.vocab);
    for (int begin = 0; begin < total; begin += kLogitRows) {
        const int count = std::min(kLogitRows, total - begin);
        const Activations act = activate(member, count, shape.hidden, vocabulary.needs_quantised(), [&](int i, float *row) {
            const size_t token = static_cast<size_t>(wanted[static_cast<size_t>(begin + i)].token);
            kernels.rms_norm(x.get() + token * static_cast<size_t>(hidden_stride), weights.final_norm.data(), shape.norm_epsilon,
                             shape.hidden, row);
        });
        multiply(member, vocabulary, act, count, logits.get(), stride, false, nullptr);
        for (int i; (i = team.claim(member, count)) >= 0;) {
            const Wanted &want = wanted[static_cast<size_t>(begin + i)];
            const Request &request = requests[static_cast<size_t>(want.request)];
            const float *row = logits.get() + static_cast<size_t>(i) * static_cast<size_t>(stride);
            if (request.targets && request.targets[want.local] >= 0)
                request.nll[want.local] = kernels.log_sum_exp(row, shape.vocab) - row[request.targets[want.local]];
            if (request.logits && request.all_logits)
                std::memcpy(request.logits + static_cast<size_t>(want.local) * vocab, row, vocab * sizeof(float));
            else if (request.logits && want.local == request.count - 1) std::memcpy(request.logits, row, vocab * sizeof(float));
        }
        team.barrier();
    }
}

void Decoder::Pass::run(int member) {
    embed(member);
    const auto width = static_cast<size_t>(hidden_stride);
    auto normed = [&](const std::vector<float> &weight) {
        return [&](int t, float *row) {
            kernels.rms_norm(x.get() + static_cast<size_t>(t) * width, weight.data(), shape.norm_epsilon, shape.hidden, row);
        };
    };
    for (int l = 0; l < shape.layers; ++l) {
        const Layer &layer = weights.layers[static_cast<size_t>(l)];
        const Linear *after = l + 1 < shape.layers ? &weights.layers[static_cast<size_t>(l + 1)].qkv : &weights.vocabulary();
        Activations act = activate(member, tokens, shape.hidden, layer.qkv.needs_quantised(), normed(layer.attention_norm));
        multiply(member, layer.qkv, act, tokens, qkv.get(), qkv_rows, false, &layer.out);
        rotate_and_store(member, l);
        attend(member, l);
        if (probing && member == 0) probe(l);
        act = activate(member, tokens, attention_columns, layer.out.needs_quantised(), [&](int t, float *row) { gather(t, row); });
        multiply(member, layer.out, act, tokens, x.get(), hidden_stride, true, &layer.gate);
        act = activate(member, tokens, shape.hidden, layer.gate.needs_quantised() || layer.up.needs_quantised(), normed(layer.ffn_norm));
        gate_up(member, layer, act, tokens);
        const auto gates = static_cast<size_t>(layer.gate.rows());
        act = activate(member, tokens, shape.ffn, layer.down.needs_quantised(), [&](int t, float *row) {
            std::memcpy(row, gate.get() + static_cast<size_t>(t) * gates, static_cast<size_t>(shape.ffn) * sizeof(float));
        });
        multiply(member, layer.down, act, tokens, x.get(), hidden_stride, true, after);
    }
    finish(member);
}

} // namespace anchorstream
