// Large aligned blocks, on huge pages where the system gives them: streaming through weights then misses no TLB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace anchorstream {

struct Unmap {
    size_t bytes = 0;
    void operator()(uint8_t *data) const;
};
using Block = std::unique_ptr<uint8_t[], Unmap>;

// Zeroed. Throws std::bad_alloc. With `huge` the system is asked for huge pages.
Block allocate(size_t bytes, bool huge);

} // namespace anchorstream
