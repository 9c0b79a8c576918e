// Large aligned memory, on huge pages where the system gives them: streaming through weights and banks then misses no
// translation, which is worth a factor of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace anchorstream {

struct Unmap {
    size_t bytes = 0;
    void operator()(uint8_t *data) const;
};
using Block = std::unique_ptr<uint8_t[], Unmap>;

// Zeroed, on a 64-byte line at least; blocks of 2 MiB and more on huge pages. Throws std::bad_alloc.
Block allocate(size_t bytes);

// Hands out pieces of large blocks, which live as long as the arena. Thread-safe.
class Arena {
  public:
    explicit Arena(size_t slab_bytes) : slab_bytes_(slab_bytes) {}
    // Zeroed, on a 64-byte line. Throws std::bad_alloc.
    uint8_t *take(size_t bytes);

  private:
    const size_t slab_bytes_;
    std::mutex mutex_;
    std::vector<Block> slabs_;
    size_t used_ = 0, size_ = 0; // of the newest slab
};

} // namespace anchorstream
