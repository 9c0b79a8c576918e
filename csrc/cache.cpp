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
    const size_t full = static_cast<size_t>(std::max<int64_t>(0, end - first_) / kBankTokens);
    const size_t anchors_before = anchor_banks_.size(), window_before = window_banks_.size();
    try {
        while (anchor_banks_.size() < anchor_banks) anchor_banks_.push_back({live_pool_->take(), nullptr});
        while (window_banks_.size() < window_banks) window_banks_.push_back({live_pool_->take(), nullptr});
        if (sealed_pool_)
            for (size_t b = 0; b < full; ++b)
                if (!window_banks_[b].sealed) window_banks_[b].sealed = sealed_pool_->take();
    } catch (...) {
        anchor_banks_.resize(anchors_before);
        window_banks_.resize(window_before);
        throw;
    }
}

void Cache::commit(int64_t count, int64_t evict_before) {
    length_ += count;
    for (size_t b = 0; b < window_banks_.size() && first_ + static_cast<int64_t>(b + 1) * kBankTokens <= length_; ++b)
        if (window_banks_[b].sealed) window_banks_[b].live = nullptr;
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

void Cache::restore(int64_t length, int64_t num_anchors, int64_t window_first, const std::vector<Bytes> &banks) {
    constexpr int64_t kMost = int64_t{1} << 60; // so that no sum overflows
    if (length < 0 || length > kMost || num_anchors < 0 || num_anchors > kMost || window_first < num_anchors ||
        window_first > std::max(length, num_anchors))
        throw std::invalid_argument("a cache cannot have length " + std::to_string(length) + ", " + std::to_string(num_anchors) +
                                    " anchors and a window from " + std::to_string(window_first));
    auto banks_of = [](int64_t tokens) { return static_cast<size_t>((tokens + kBankTokens - 1) / kBankTokens); };
    const size_t anchors = banks_of(std::min(length, num_anchors)), window = banks_of(std::max<int64_t>(0, length - window_first));
    if (banks.size() != anchors + window)
        throw std::invalid_argument(std::to_string(banks.size()) + " banks were given where " + std::to_string(anchors + window) +
                                    " belong");
    std::vector<Slot> made;
    for (size_t b = 0; b < banks.size(); ++b) {
        const bool full = b >= anchors && window_first + static_cast<int64_t>(b - anchors + 1) * kBankTokens <= length;
        const std::shared_ptr<BankPool> &pool = full && sealed_pool_ ? sealed_pool_ : live_pool_;
        if (banks[b].size != pool->shape().bytes())
            throw std::invalid_argument("bank " + std::to_string(b) + " takes " + std::to_string(pool->shape().bytes()) + " bytes, not " +
                                        std::to_string(banks[b].size));
        Bank bank = pool->take();
        std::memcpy(bank.get(), banks[b].data, banks[b].size);
        made.push_back(pool == live_pool_ ? Slot{std::move(bank), nullptr} : Slot{nullptr, std::move(bank)});
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
    auto own = [&](Slot &slot) {
        const Bank fresh = live_pool_->take();
        std::memcpy(fresh.get(), slot.live.get(), shape().bytes());
        slot = {fresh, nullptr};
    };
    // A pass that failed may have left banks that hold nothing yet; they are not shared either.
    auto banks_of = [](int64_t tokens) { return static_cast<size_t>((std::max<int64_t>(0, tokens) + kBankTokens - 1) / kBankTokens); };
    copy->anchor_banks_.resize(banks_of(std::min(length_, anchors_)));
    copy->window_banks_.resize(banks_of(length_ - first_));
    if (length_ < anchors_ && length_ % kBankTokens) own(copy->anchor_banks_.back());
    if (length_ > first_ && (length_ - first_) % kBankTokens) own(copy->window_banks_.back());
    return copy;
}

size_t Cache::bytes() const {
    size_t sum = 0;
    for (int b = 0; b < banks(); ++b) sum += stored(b).size;
    return sum;
}

size_t Cache::unshared_bytes() const {
    size_t sum = 0;
    for (int b = 0; b < banks(); ++b) sum += sharers(b) == 1 ? stored(b).size : 0;
    return sum;
}

const Cache::Slot &Cache::slot(int b) const {
    const int anchors = anchor_banks();
    return b < anchors ? anchor_banks_[static_cast<size_t>(b)] : window_banks_[static_cast<size_t>(b - anchors)];
}

uint8_t *Cache::live(int b) const { return slot(b).live.get(); }
uint8_t *Cache::sealed(int b) const { return slot(b).sealed.get(); }

Cache::Bytes Cache::stored(int b) const {
    const Slot &s = slot(b);
    return s.live ? Bytes{s.live.get(), live_pool_->shape().bytes()} : Bytes{s.sealed.get(), sealed_pool_->shape().bytes()};
}

KvKind Cache::stored_kind(int b) const { return slot(b).live ? live_pool_->shape().kind : sealed_pool_->shape().kind; }

long Cache::sharers(int b) const {
    const Slot &s = slot(b);
    return s.live ? s.live.use_count() : s.sealed.use_count();
}

int64_t Cache::bank_first(int b) const {
    const int anchors = anchor_banks();
    return b < anchors ? int64_t{kBankTokens} * b : first_ + int64_t{kBankTokens} * (b - anchors);
}

uint8_t *Cache::find(int64_t index, int *place) const {
    const int64_t at = index < anchors_ ? index : index - first_;
    *place = static_cast<int>(at % kBankTokens);
    const auto bank = static_cast<size_t>(at / kBankTokens);
    return (index < anchors_ ? anchor_banks_[bank] : window_banks_[bank]).live.get();
}

} // namespace anchorstream
