// One forward pass: its buffers and its stages. Private to the decoder.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "anchorstream/decoder.h"

namespace anchorstream {

constexpr int kAlone = 2;           // up to so many tokens each member prepares activations for itself: cheaper than waiting
constexpr int kRowBlock = 48;       // query rows (tokens x heads of a group) that attention takes through the banks together
constexpr int kItemsPerMember = 64; // of attention: with fewer, the groups of banks of each are shared out
constexpr int kGroupBanks = 2;      // banks whose keys share a running softmax; see plan_attention
constexpr int kLogitRows = 32;      // tokens whose logits are held at once while scoring

// A buffer that only grows, on 64-byte lines.
template <class T> class Buffer {
  public:
    T *grow(size_t count) {
        if (count > count_) {
            block_ = allocate(count * sizeof(T));
            count_ = count;
        }
        return get();
    }
    T *get() { return reinterpret_cast<T *>(block_.get()); }

  private:
    Block block_;
    size_t count_ = 0;
};

class ActivationBuffer {
  public:
    void grow(size_t tokens, size_t columns) {
        values_.grow(tokens * columns);
        q_.grow(tokens * columns);
        const size_t blocks = tokens * (columns / kBlock + 1);
        scale_.grow(blocks);
        sum_.grow(blocks);
        minus_sum_.grow(blocks);
        minus_sum16_.grow(2 * blocks);
    }
    Activations of(int columns) {
        return {values_.get(), q_.get(), scale_.get(), sum_.get(), minus_sum_.get(), minus_sum16_.get(), columns, columns / kBlock};
    }

  private:
    Buffer<float> values_, scale_, sum_;
    Buffer<int8_t> q_;
    Buffer<int32_t> minus_sum_, minus_sum16_;
};

// Attention of some tokens' heads that share a kv head, over some banks.
struct Decoder::Item {
    int request, kv_head;
    int begin, end;             // tokens within the request
    int group_begin, group_end; // of banks
};

// Everything one pass needs, so that the stages share it by reference.
struct Decoder::Pass {
    Decoder &decoder;
    const Shape &shape;
    const Kernels &kernels;
    Team &team;
    Weights &weights;
    const int group, pairs, qkv_rows, hidden_stride, attention_columns;

    std::span<Request> requests;
    int tokens = 0;
    bool probing = false;                  // whether any request wants to know where it looks
    std::vector<int> begin_of;             // of each request: its first token in the pass
    std::vector<int> request_of, local_of; // of each token of the pass: its request, its place there
    std::vector<Item> items;
    struct Filled {
        int request, bank;
    };
    std::vector<Filled> filled; // banks that this pass fills and that are to be sealed
    struct Group {
        int begin, end; // banks
    };
    std::vector<std::vector<Group>> groups; // of each request
    int parts = 1;                          // running softmaxes of every row, one a group, joined at the end; 1: an item joins its groups
    struct Wanted {
        int token, request, local;
    };
    std::vector<Wanted> wanted; // tokens whose logits are needed

    Buffer<float> x, qkv, gate, up, window_q, anchor_q, cos_index, sin_index, cos_slot, sin_slot, logits;
    Buffer<float> part_out, part_largest, part_total;
    ActivationBuffer shared;
    std::vector<ActivationBuffer> own;  // per member, for few tokens
    std::vector<Buffer<float>> scratch; // per member, for attention

    explicit Pass(Decoder &d)
        : decoder(d), shape(d.shape_), kernels(d.kernels_), team(d.team_), weights(d.weights), group(shape.heads / shape.kv_heads),
          pairs(static_cast<int>(shape.inverse_frequencies.size())), qkv_rows((shape.heads + 2 * shape.kv_heads) * shape.head_size),
          hidden_stride(static_cast<int>(round_up(static_cast<size_t>(shape.hidden), kPanelRows))),
          attention_columns(shape.heads * shape.head_size), own(static_cast<size_t>(team.size())),
          scratch(static_cast<size_t>(team.size())) {}

    int rows_at_once() const { return std::max(group, kRowBlock / group * group); }

    void prepare(std::span<Request> all);
    void plan_attention();
    void grow();
    void run(int member);

    // stages
    void embed(int member);
    template <class Fill> Activations activate(int member, int count, int columns, bool quantise, Fill fill);
    void multiply(int member, const Linear &linear, const Activations &act, int count, float *y, int stride, bool add, const Linear *after);
    const uint8_t *first_panel(int member, const Linear *linear) const;
    void gate_up(int member, const Layer &layer, const Activations &act, int count);
    void rotate_and_store(int member, int layer);
    void attend(int member, int layer);
    void attend_item(const Item &item, float *space, int layer, const uint8_t *after);
    void attend_group(const Item &item, const Group &banks, const Attended &rows, float *space, int layer, const uint8_t *after);
    void attend_bank(const Item &item, int bank, bool sealed, const Attended &rows, float *space, int layer, const uint8_t *after);
    void seal_banks(int member, int layer);
    Attended part_rows(size_t first);
    const uint8_t *first_part(const Item &item, int layer) const;
    const uint8_t *part_of(const Item &item, int bank, int layer) const;
    void probe(int layer);
    void gather(int token, float *out);
    void finish(int member);

    // Where the rotated queries of a token's heads begin: kv heads first, then tokens, then the heads of the group.
    size_t query_at(int token, int kv_head) const {
        return (static_cast<size_t>(kv_head) * static_cast<size_t>(tokens) + static_cast<size_t>(token)) *
               static_cast<size_t>(group * shape.head_size);
    }
    // Where a part of a token's heads begins in the part buffers, in rows: ordered like the queries.
    size_t part_at(int token, int kv_head, int part) const {
        return static_cast<size_t>(((part * shape.kv_heads + kv_head) * tokens + token) * group);
    }
};

} // namespace anchorstream
