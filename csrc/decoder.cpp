#include "anchorstream/decoder.h"

#include <stdexcept>

#include "pass.h"

namespace anchorstream {

size_t Weights::bytes() const {
    size_t sum = embedding.bytes() + head.bytes();
    for (const Layer &layer : layers)
        sum += layer.qkv.bytes() + layer.out.bytes() + layer.gate.bytes() + layer.up.bytes() + layer.down.bytes();
    return sum;
}

size_t Weights::bytes_per_token() const { return bytes() - (head.rows() ? embedding.bytes() : 0); }

Decoder::Decoder(Shape shape, const Kernels &kernels, int threads)
    : shape_(std::move(shape)), kernels_(kernels), team_(threads), pass_(nullptr) {
    weights.layers.resize(static_cast<size_t>(shape_.layers));
    pass_ = std::make_unique<Pass>(*this);
}
Decoder::~Decoder() = default;

void Decoder::check(const Request &r) const {
    const BankShape &bank = r.cache->shape();
    if (bank.layers != shape_.layers || bank.kv_heads != shape_.kv_heads || bank.head_size != shape_.head_size)
        throw std::invalid_argument("the cache belongs to another model");
    if (r.count < 1) throw std::invalid_argument("a pass needs at least one token");
    const int64_t window = r.cache->length() ? r.cache->window_first() : r.num_anchors;
    for (int i = 0; i < r.count; ++i) {
        const int64_t index = r.cache->length() + i;
        if (r.indices[i] != index)
            throw std::invalid_argument("the plan gives index " + std::to_string(r.indices[i]) + " to token " + std::to_string(index));
        if (r.tokens[i] < 0 || r.tokens[i] >= shape_.vocab)
            throw std::invalid_argument("token id " + std::to_string(r.tokens[i]) + " is not in 0.." + std::to_string(shape_.vocab - 1));
        if (index >= r.num_anchors && (r.first_seen[i] < window || r.first_seen[i] > index))
            throw std::invalid_argument("token " + std::to_string(index) + " would see from " + std::to_string(r.first_seen[i]) +
                                        ", but the window holds " + std::to_string(window) + " and later");
        if (r.anchors_seen[i] < 0 || r.anchors_seen[i] > std::min(index, r.num_anchors))
            throw std::invalid_argument("token " + std::to_string(index) + " cannot see " + std::to_string(r.anchors_seen[i]) + " anchors");
        if (r.targets && r.targets[i] >= shape_.vocab)
            throw std::invalid_argument("target " + std::to_string(r.targets[i]) + " is not in the vocabulary");
    }
}

void Decoder::forward(std::span<Request> requests) {
    const std::lock_guard lock(busy_);
    for (const Request &request : requests) {
        check(request);
        for (const Request &other : requests)
            if (&other != &request && other.cache == request.cache) throw std::invalid_argument("a cache comes twice in one pass");
    }
    if (requests.empty()) return;
    pass_->prepare(requests);
    team_.run([this](int member) { pass_->run(member); });
    for (Request &request : requests) request.cache->commit(request.count, request.evict_before);
}

} // namespace anchorstream
