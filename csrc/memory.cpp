#include "anchorstream/memory.h"

#include <new>
#include <sys/mman.h>

namespace anchorstream {

void Unmap::operator()(uint8_t *data) const { munmap(data, bytes); }

Block allocate(size_t bytes, bool huge) {
    constexpr size_t kHuge = size_t{2} << 20;
    if (bytes == 0) bytes = 64;
    const size_t slack = huge ? kHuge : 0;
    if (bytes + slack < bytes) throw std::bad_alloc();
    void *raw = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto *start = static_cast<uint8_t *>(raw);
    if (huge) { // keep only the part that begins at a huge page
        const size_t skip = (kHuge - reinterpret_cast<uintptr_t>(start) % kHuge) % kHuge;
        if (skip) munmap(start, skip);
        start += skip;
        const size_t whole = (bytes + 4095) / 4096 * 4096;
        if (slack - skip) munmap(start + whole, bytes + slack - skip > whole ? bytes + slack - skip - whole : 0);
        madvise(start, whole, MADV_HUGEPAGE);
    }
    return Block(start, Unmap{bytes});
}

} // namespace anchorstream
