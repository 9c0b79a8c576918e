#include "anchorstream/cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace anchorstream {

std::shared_ptr<uint8_t> BankPool::take() {
    uint8_t *bank = nullptr;
    {
        const std::lock_guard lock(mutex_);
        free_.reserve(++taken_); // so that giving back never fails
        if (!free_.empty()) {
            bank = free_.back();
            free_.pop_back();
        }
    }
    if (!bank) bank = arena_.take(shape_.bytes());
    return std::shared_ptr<uint8_t>(bank, [pool = shared_from_this()](uint8_t *data) {
        const std::lock_guard lock(pool->mutex_);
        pool->free_.push_back(data);
        --pool->taken_;
    });
}

void Cache::reserve(int64_t count, int64_t num_anchors) {
    if (length_ == 0) {
        anchors_ = first_ = num_anchors;
    } else if (num_anchors != anchors_) {
        throw std::invalid_argument("a cache of " + std::to_string(anchors_) + " anchors was given a plan of " +
                                    std::to_string(num_anchors));
    }
    const int64_t end = length_ + count;
    const size_t anchor_banks = static_cast<size_t>((std::min(end, anchors_) + kBankTokens - 1) / kBankTokens);
    const size_t window_banks = static_cast<size_t>((std::max<int64_t>(0, end - first_) + kBankTokens - 1) / kBankTokens);
    const size_t anchors_before = anchor_banks_.size(), window_before = window_banks_.size();
    try {
        while (anchor_banks_.size() < anchor_banks) anchor_banks_.push_back(pool_->take());
        while (window_banks_.size() < window_banks) window_banks_.push_back(pool_->take());
    } catch (...) {
        anchor_banks_.resize(anchors_before);
        window_banks_.resize(window_before);
        throw;
    }
}

void Cache::commit(int64_t count, int64_t evict_before) {
    length_ += count;
    while (!window_banks_.empty() && first_ + kBankTokens <= std::min(evict_before, length_)) {
        window_banks_.pop_front();
        first_ += kBankTokens;
    }
}

void Cache::clear() {
    anchor_banks_.clear();
    window_banks_.clear();
    length_ = anchors_ = first_ = 0;
}

void Cache::skip_to(int64_t index) {
    if (length_ < anchors_ || length_ == 0 || index < length_)
        throw std::invalid_argument("a cache of length " + std::to_string(length_) + " and " + std::to_string(anchors_) +
                                    " anchors cannot skip to " + std::to_string(index));
    window_banks_.clear();
    length_ = first_ = index;
}

void Cache::restore(int64_t length, int64_t num_anchors, int64_t window_first, const std::vector<const uint8_t *> &banks) {
    constexpr int64_t kMost = int64_t{1} << 60; // so that no sum overflows
    if (length < 0 || length > kMost || num_anchors < 0 || num_anchors > kMost || window_first < num_anchors ||
        window_first > std::max(length, num_anchors))
        throw std::invalid_argument("a cache cannot have length " + std::to_string(length) + ", " + std::to_string(num_anchors) +
                                    " anchors and a window from " + std::to_string(window_first));
    auto banks_of = [](int64_t tokens) { return static_cast<size_t>((tokens + kBankTokens - 1) / kBankTokens); };
    const size_t anchors = banks_of(std::min(length, num_anchors)), window = banks_of(std::max<int64_t>(0, length - window_first));
    if (banks.size() != anchors + window)
        throw std::invalid_argument(std::to_string(banks.size()) + " banks were given where " + std::to_string(anchors + window) + " belong");
    std::vector<Bank> made;
    for (const uint8_t *bytes : banks) {
        made.push_back(pool_->take());
        std::memcpy(made.back().get(), bytes, shape().bytes());
    }
    const auto split = made.begin() + static_cast<ptrdiff_t>(anchors);
    anchor_banks_.assign(made.begin(), split);
    window_banks_.assign(split, made.end());
    length_ = length;
    anchors_ = num_anchors;
    first_ = window_first;
}

std::unique_ptr<Cache> Cache::fork() const {
    auto copy = std::make_unique<Cache>(*this);
    auto own = [&](Bank &bank) {
        const Bank fresh = pool_->take();
        std::memcpy(fresh.get(), bank.get(), shape().bytes());
        bank = fresh;
    };
    if (const int64_t held = std::min(length_, anchors_); held % kBankTokens) own(copy->anchor_banks_.back());
    if (const int64_t held = length_ - first_; held > 0 && held % kBankTokens) own(copy->window_banks_.back());
    return copy;
}

uint8_t *Cache::bank(int b) const {
    const int anchors = anchor_banks();
    return (b < anchors ? anchor_banks_[static_cast<size_t>(b)] : window_banks_[static_cast<size_t>(b - anchors)]).get();
}

int64_t Cache::bank_first(int b) const {
    const int anchors = anchor_banks();
    return b < anchors ? int64_t{kBankTokens} * b : first_ + int64_t{kBankTokens} * (b - anchors);
}

uint8_t *Cache::find(int64_t index, int *place) const {
    const int64_t at = index < anchors_ ? index : index - first_;
    *place = static_cast<int>(at % kBankTokens);
    const auto bank = static_cast<size_t>(at / kBankTokens);
    return (index < anchors_ ? anchor_banks_[bank] : window_banks_[bank]).get();
}

} // namespace anchorstream
