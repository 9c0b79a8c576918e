// Compares every instruction set that this machine can run with portable: single kernels, then a whole decoder.
// Built and run by test_aarch64.py, for machines on which the Python module cannot be loaded.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "anchorstream/cpu.h"
#include "anchorstream/decoder.h"

using namespace anchorstream;

namespace {

std::mt19937 generator(7);
int failures = 0;

std::vector<float> normal(size_t n, float scale = 1) {
    std::normal_distribution<float> distribution(0, scale);
    std::vector<float> out(n);
    for (float &x : out) x = distribution(generator);
    return out;
}

std::vector<uint8_t> blocks(Type type, int rows, int columns) {
    const size_t row = row_bytes(type, columns);
    std::vector<uint8_t> out(row * static_cast<size_t>(rows));
    if (type == Type::f32) {
        const std::vector<float> values = normal(out.size() / 4);
        std::memcpy(out.data(), values.data(), out.size());
        return out;
    }
    for (uint8_t &byte : out) byte = static_cast<uint8_t>(generator());
    // any bits are weights if the 16-bit numbers among them are small; 0x3f clears the high exponent bits
    for (size_t i = 1; i < out.size(); i += 2) out[i] &= 0x2f;
    if (type == Type::q6_k)
        for (size_t i = 0; i < out.size(); i += 210) out[i + 209] = 0x1c;
    return out;
}

void compare(const char *isa, const char *what, const std::vector<float> &a, const std::vector<float> &b, double most) {
    double worst = 0, scale = 1e-30;
    for (size_t i = 0; i < a.size(); ++i) {
        worst = std::max(worst, std::isfinite(b[i]) ? std::fabs(static_cast<double>(a[i]) - b[i]) : INFINITY);
        scale = std::max(scale, std::fabs(static_cast<double>(a[i])));
    }
    if (worst <= most * scale) return;
    std::printf("%s: %s differs by %g of %g\n", isa, what, worst, scale);
    ++failures;
}

std::vector<float> logits(const Kernels &kernels, Type type, int head_size, int threads, bool half) {
    generator.seed(11);
    const int hidden = 256, heads = 6, kv_heads = 2, ffn = 256, vocab = 301, layers = 2;
    std::vector<double> frequencies;
    for (int i = 0; i < head_size / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / head_size));
    Decoder decoder(Shape{layers, hidden, heads, kv_heads, head_size, ffn, vocab, 1e-5f, frequencies, 1.0}, kernels, threads);
    auto fill = [&](Linear &linear, int rows, int columns) {
        linear.append(type, blocks(type, rows, columns).data(), rows, columns, nullptr, false, decoder.team(), decoder.arena);
    };
    fill(decoder.weights.embedding, vocab, hidden);
    decoder.weights.final_norm = std::vector<float>(hidden, 1.0f);
    for (Layer &layer : decoder.weights.layers) {
        layer.attention_norm = layer.ffn_norm = std::vector<float>(hidden, 1.0f);
        if (heads * head_size % 256 && type >= Type::q4_k) return {};
        fill(layer.qkv, (heads + 2 * kv_heads) * head_size, hidden);
        fill(layer.out, hidden, heads * head_size);
        fill(layer.gate, ffn, hidden);
        fill(layer.up, ffn, hidden);
        fill(layer.down, hidden, ffn);
    }
    Cache cache(std::make_shared<BankPool>(BankShape{layers, kv_heads, head_size, half ? KvKind::f16 : KvKind::f32}));
    std::vector<float> all;
    int64_t index = 0;
    for (int count : {1, 3, 70, 1, 1, 17}) {
        std::vector<int32_t> tokens, anchors;
        std::vector<int64_t> indices, slots, first;
        for (int i = 0; i < count; ++i, ++index) {
            tokens.push_back(static_cast<int32_t>(generator() % vocab));
            const int64_t begin = std::max<int64_t>(4, index - 60);
            indices.push_back(index);
            slots.push_back(index < 4 ? index : 4 + index - begin);
            first.push_back(begin);
            anchors.push_back(static_cast<int32_t>(std::min<int64_t>(index, 4)));
        }
        std::vector<float> out(static_cast<size_t>(vocab));
        Request request{
            &cache,  count, tokens.data(), indices.data(), slots.data(), first.data(), anchors.data(), 4, std::max<int64_t>(4, index - 60),
            nullptr, 4,     out.data(),    false,          nullptr,      nullptr};
        decoder.forward(std::span(&request, 1));
        all.insert(all.end(), out.begin(), out.end());
    }
    return all;
}

void rows(const Kernels &isa, const Kernels &plain) {
    for (int n : {1, 7, 16, 33, 576}) {
        const auto x = normal(static_cast<size_t>(n), 3), w = normal(static_cast<size_t>(n));
        std::vector<float> a(static_cast<size_t>(n)), b = a;
        plain.rms_norm(x.data(), w.data(), 1e-5f, n, a.data());
        isa.rms_norm(x.data(), w.data(), 1e-5f, n, b.data());
        compare(isa.name, "rms_norm", a, b, 1e-5);
        compare(isa.name, "log_sum_exp", {plain.log_sum_exp(x.data(), n)}, {isa.log_sum_exp(x.data(), n)}, 1e-5);
        if (n % 16) continue;
        a = b = x;
        plain.silu_mul(a.data(), w.data(), n);
        isa.silu_mul(b.data(), w.data(), n);
        compare(isa.name, "silu_mul", a, b, 1e-5);
    }
}

} // namespace

int main() {
    const Type types[] = {Type::f32,  Type::f16,  Type::bf16, Type::q4_0, Type::q4_1, Type::q5_0,
                          Type::q5_1, Type::q8_0, Type::q4_k, Type::q5_k, Type::q6_k};
    for (const Kernels *isa : runnable_kernels()) {
        std::printf("%s\n", isa->name);
        rows(*isa, portable_kernels());
        for (Type type : types)
            for (int head_size : {64, 80, 128})
                for (bool half : {false, true}) {
                    const auto plain = logits(portable_kernels(), type, head_size, 1, half), found = logits(*isa, type, head_size, 2, half);
                    compare(isa->name, "decoder", plain, found, half || type > Type::bf16 ? 2e-2 : 1e-4);
                }
    }
    std::printf(failures ? "%d failures\n" : "all agree\n", failures);
    return failures != 0;
}
