// A decoder-only transformer in the manner of Llama: one forward pass over tokens of any number of streams.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "anchorstream/cache.h"
#include "anchorstream/kernels.h"
#include "anchorstream/pack.h"
#include "anchorstream/team.h"

namespace anchorstream {

struct Shape {
    int layers, hidden, heads, kv_heads, head_size, ffn, vocab;
    float norm_epsilon;
    std::vector<double> inverse_frequencies; // one per rotated pair
    double rope_magnitude;
};

struct Layer {
    std::vector<float> attention_norm, ffn_norm, qkv_bias; // the bias may be empty
    Linear qkv, out, gate, up, down;
};

struct Weights {
    Linear embedding, head; // an empty head: the embedding is used
    std::vector<float> final_norm;
    std::vector<Layer> layers;
    const Linear &vocabulary() const { return head.rows() ? head : embedding; }
    size_t bytes_per_token() const; // that a pass over one token reads
    size_t bytes() const;
};

// One stream's share of a pass. All arrays have one entry per token; see Plan in the Python package.
struct Request {
    Cache *cache;
    int count;
    const int32_t *tokens;
    const int64_t *indices, *slots, *first_seen;
    const int32_t *anchors_seen;
    int64_t num_anchors, evict_before;
    const float *bias; // per cached token: anchors, then the window from `bias_first`; or null
    int64_t bias_first;
    float *logits; // [vocab] of the last token or [count][vocab], or null
    bool all_logits;
    const int32_t *targets; // or null; -1: none
    float *nll;             // [count] where there are targets
    float *attention;       // zeros: [what the last token sees] its attention, averaged over layers and heads; or null
};

class Decoder {
  public:
    Decoder(Shape shape, const Kernels &kernels, int threads);

    Arena arena{size_t{16} << 20}; // of the weights
    Weights weights;
    Team &team() { return team_; }
    const Shape &shape() const { return shape_; }
    const Kernels &kernels() const { return kernels_; }

    // Computes all requests and commits their caches; passes of several threads wait for one another. Throws before
    // anything is changed: std::invalid_argument for what does not fit together, std::bad_alloc.
    void forward(std::span<Request> requests);

  private:
    struct Item;
    struct Pass;
    void check(const Request &request) const;

    const Shape shape_;
    const Kernels &kernels_;
    Team team_;
    std::unique_ptr<Pass> pass_; // buffers, kept from pass to pass
    std::mutex busy_;

  public:
    ~Decoder();
};

} // namespace anchorstream
