// The keys and values of streams, in banks of 64 tokens. Bytes only: which tokens stay is decided elsewhere.
//
// A bank holds, for each layer and kv head, keys [head_size][64] and values [64][head_size], in f16 or f32: keys lie
// across so that scores of many keys are computed in one vector. A full bank never changes, so forks share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "anchorstream/layout.h"
#include "anchorstream/memory.h"

namespace anchorstream {

struct BankShape {
    int layers, kv_heads, head_size, element_bytes; // 2: f16, 4: f32
    size_t part_bytes() const { return static_cast<size_t>(kBankTokens) * static_cast<size_t>(head_size * element_bytes); }
    size_t bytes() const { return 2 * static_cast<size_t>(layers * kv_heads) * part_bytes(); }
};

// Keeps freed banks for the next stream. Thread-safe.
class BankPool : public std::enable_shared_from_this<BankPool> {
  public:
    explicit BankPool(BankShape shape) : shape_(shape), arena_(std::min<size_t>(8 * shape.bytes(), size_t{16} << 20)) {}
    const BankShape &shape() const { return shape_; }
    std::shared_ptr<uint8_t> take(); // contents are finite numbers but otherwise anything; throws std::bad_alloc

  private:
    const BankShape shape_;
    std::mutex mutex_;
    Arena arena_;
    std::vector<uint8_t *> free_;
    size_t taken_ = 0;
};

using Bank = std::shared_ptr<uint8_t>;

class Cache {
  public:
    explicit Cache(std::shared_ptr<BankPool> pool) : pool_(std::move(pool)) {}

    const BankShape &shape() const { return pool_->shape(); }
    int64_t length() const { return length_; }       // index of the next token
    int64_t num_anchors() const { return anchors_; } // tokens of index below this lie in anchor banks
    int64_t window_first() const { return first_; }  // index of the first token of the first window bank
    int anchor_banks() const { return static_cast<int>(anchor_banks_.size()); }
    int window_banks() const { return static_cast<int>(window_banks_.size()); }
    size_t bytes() const { return shape().bytes() * (anchor_banks_.size() + window_banks_.size()); }

    // Makes room for tokens length .. length + count - 1. On std::bad_alloc the cache is as it was.
    void reserve(int64_t count, int64_t num_anchors);
    // The tokens are in; window banks that hold only tokens of index below `evict_before` go back to the pool.
    void commit(int64_t count, int64_t evict_before);
    void clear();
    // The window is emptied and the next token has `index`; the anchors stay. Throws std::invalid_argument if `index`
    // is not past the anchors or would go back.
    void skip_to(int64_t index);
    // What was taken out of another cache of the same shape: bounds, and every bank's bytes, anchors first. Throws
    // std::invalid_argument where they do not fit together; then the cache is as it was.
    void restore(int64_t length, int64_t num_anchors, int64_t window_first, const std::vector<const uint8_t *> &banks);
    // A copy that goes on by itself: full banks are shared, unfinished ones copied.
    std::unique_ptr<Cache> fork() const;

    // Bank `b`, anchors first, and the index of its first token.
    uint8_t *bank(int b) const;
    int64_t bank_first(int b) const;
    // Where keys of a layer and head begin in a bank; values follow at part_bytes().
    size_t part(int layer, int kv_head) const { return 2 * static_cast<size_t>(layer * shape().kv_heads + kv_head) * shape().part_bytes(); }
    // Bank and place of token `index`, which must be reserved and not evicted.
    uint8_t *find(int64_t index, int *place) const;

  private:
    std::shared_ptr<BankPool> pool_;
    std::vector<Bank> anchor_banks_;
    std::deque<Bank> window_banks_;
    int64_t length_ = 0, anchors_ = 0, first_ = 0;
};

} // namespace anchorstream
