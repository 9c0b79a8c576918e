#include "anchorstream/memory.h"

#include <algorithm>
#include <new>
#include <sys/mman.h>

namespace anchorstream {
namespace {

constexpr size_t kPage = 4096, kHuge = size_t{2} << 20;

size_t up(size_t n, size_t to) {
    if (n > SIZE_MAX - to) throw std::bad_alloc();
    return (n + to - 1) / to * to;
}

} // namespace

void Unmap::operator()(uint8_t *data) const { munmap(data, bytes); }

Block allocate(size_t bytes) {
    const bool huge = bytes >= kHuge;
    const size_t whole = up(std::max<size_t>(bytes, 1), huge ? kHuge : kPage);
    const size_t asked = huge ? up(whole, kHuge) + kHuge : whole;
    void *raw = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto *start = static_cast<uint8_t *>(raw);
    if (huge) { // keep the part that begins at a huge page
        const size_t skip = (kHuge - reinterpret_cast<uintptr_t>(start) % kHuge) % kHuge;
        if (skip) munmap(start, skip);
        start += skip;
        munmap(start + whole, asked - skip - whole);
        madvise(start, whole, MADV_HUGEPAGE);
    }
    return Block(start, Unmap{whole});
}

uint8_t *Arena::take(size_t bytes) {
    const size_t whole = up(bytes, 64);
    const std::lock_guard lock(mutex_);
    if (used_ + whole > size_) {
        const size_t slab = std::max(slab_bytes_, whole);
        slabs_.push_back(allocate(slab));
        size_ = slab;
        used_ = 0;
    }
    uint8_t *piece = slabs_.back().get() + used_;
    used_ += whole;
    return piece;
}

} // namespace anchorstream
