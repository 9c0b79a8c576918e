// The keys and values of streams, in banks of 64 tokens. Bytes only: which tokens stay is decided elsewhere.
//
// A bank holds a part (kv_layout) for each layer and kv head. A full bank never changes, so forks share it; a full bank
// of the window may be sealed: kept quantised from then on. Anchors and the newest bank never are.
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
    int layers, kv_heads, head_size;
    KvKind kind;
    size_t part_bytes() const { return kv_layout(kind, head_size).end; }
    size_t bytes() const { return static_cast<size_t>(layers * kv_heads) * part_bytes(); }
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
    // Tokens are written to banks of `live` (f16 or f32); full window banks become banks of `sealed`, if there is one.
    explicit Cache(std::shared_ptr<BankPool> live, std::shared_ptr<BankPool> sealed = nullptr)
        : live_pool_(std::move(live)), sealed_pool_(std::move(sealed)) {}

    const BankShape &shape() const { return live_pool_->shape(); }
    const BankShape *sealed_shape() const { return sealed_pool_ ? &sealed_pool_->shape() : nullptr; }
    int64_t length() const { return length_; }       // index of the next token
    int64_t num_anchors() const { return anchors_; } // tokens of index below this lie in anchor banks
    int64_t window_first() const { return first_; }  // index of the first token of the first window bank
    int anchor_banks() const { return static_cast<int>(anchor_banks_.size()); }
    int window_banks() const { return static_cast<int>(window_banks_.size()); }
    int banks() const { return anchor_banks() + window_banks(); }
    size_t bytes() const;          // held, shared banks in full
    size_t unshared_bytes() const; // of banks that no other cache holds

    // Makes room for tokens length .. length + count - 1, sealed banks of those that will be full included. On
    // std::bad_alloc the cache is as it was.
    void reserve(int64_t count, int64_t num_anchors);
    // The tokens are in, and full banks have been sealed; window banks that hold only tokens of index below
    // `evict_before` go back to the pool.
    void commit(int64_t count, int64_t evict_before);
    void clear();
    // The window is emptied and the next token has `index`; the anchors stay. Throws std::invalid_argument if `index`
    // is not past the anchors or would go back.
    void skip_to(int64_t index);
    // What was taken out of another cache of the same shape: bounds, and every bank's bytes, anchors first. Throws
    // std::invalid_argument where they do not fit together; then the cache is as it was.
    struct Bytes {
        const uint8_t *data;
        size_t size;
    };
    void restore(int64_t length, int64_t num_anchors, int64_t window_first, const std::vector<Bytes> &banks);
    // A copy that goes on by itself: full banks are shared, unfinished ones copied.
    std::unique_ptr<Cache> fork() const;

    // Bank `b`, anchors first: the index of its first token, its bytes as written, its sealed bytes. During the pass that
    // fills a bank it has both: its own tokens see it as written, later ones as sealed. Otherwise one of them is null.
    int64_t bank_first(int b) const;
    uint8_t *live(int b) const;
    uint8_t *sealed(int b) const;
    // Its bytes and how they lie, for what is not in a pass.
    Bytes stored(int b) const;
    KvKind stored_kind(int b) const;
    long sharers(int b) const; // how many caches hold it
    // Where the part of a layer and head begins.
    size_t part(int layer, int kv_head) const { return static_cast<size_t>(layer * shape().kv_heads + kv_head) * shape().part_bytes(); }
    size_t sealed_part(int layer, int kv_head) const {
        return static_cast<size_t>(layer * shape().kv_heads + kv_head) * sealed_pool_->shape().part_bytes();
    }
    // Bank, as written, and place of token `index`, which must be reserved and not sealed.
    uint8_t *find(int64_t index, int *place) const;

  private:
    struct Slot {
        Bank live, sealed;
    };
    const Slot &slot(int b) const;

    std::shared_ptr<BankPool> live_pool_, sealed_pool_;
    std::vector<Slot> anchor_banks_;
    std::deque<Slot> window_banks_;
    int64_t length_ = 0, anchors_ = 0, first_ = 0;
};

} // namespace anchorstream
