// The kernels, once per instruction set: plain functions on raw pointers in one table, chosen at load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "anchorstream/layout.h"

namespace anchorstream {

// Activations of n tokens, as the matrix kernels read them. Integer kernels read the quantised parts, float kernels
// `values`. A block is 32 columns; x is about scale * q.
struct Activations {
    float *values = nullptr;        // [n][columns]
    int8_t *q = nullptr;            // [n][columns], |q| <= 127
    float *scale = nullptr;         // [n][blocks]
    float *sum = nullptr;           // [n][blocks], scale * sum of q
    int32_t *minus_sum = nullptr;   // [n][blocks], -(sum of q)
    int32_t *minus_sum16 = nullptr; // [n][2 blocks], the same per 16 columns
    int columns = 0;
    int blocks = 0;
};

// Queries of one kv head against one bank of 64 keys and values, continuing a running softmax.
struct Attend {
    const float *q;       // [rows][dim], already multiplied by 1/sqrt(dim)
    const uint8_t *part;  // keys and values as kv_layout says
    const uint8_t *ahead; // the part that will be asked for next, or null
    const int *low;       // [rows] a row sees keys low <= k < high of this bank
    const int *high;      // [rows]
    const float *bias;    // [64] added to the scores, or null
    float *largest;       // [rows] running maximum, -inf at first
    float *total;         // [rows] running sum of exponentials
    float *out;           // [rows][dim] running sum of exponential * value
    float *scratch;       // [rows * 64 + 2 * 64 * dim]
    int rows;
    int dim;
};

// A running softmax of one row: its maximum, its sum of exponentials, its sum of exponential * value.
struct Attended {
    float *largest, *total, *out;
};

constexpr size_t attend_scratch(size_t rows, size_t dim) { return rows * (kBankTokens + dim + 1) + 2 * kBankTokens * dim; }

struct Kernels {
    const char *name;
    // y[t][0..15] = panel * x[t] for tokens t in [0, n); with `add` y is added to. `ahead` is the panel that will be
    // asked for next: it is brought into the cache meanwhile, for what a pass over few tokens waits for is memory.
    using Gemm = void (*)(const uint8_t *panel, const Activations &act, int n, float *y, ptrdiff_t stride, bool add, const uint8_t *ahead);
    Gemm gemm[static_cast<int>(Kind::count)];
    void (*attend[static_cast<int>(KvKind::count)])(const Attend &);
    // Joins a running softmax of one row with that of the keys that come next.
    void (*merge)(const Attended &from, Attended &into, int dim);
    // Quantises the part of a full bank: `from` is f16, `to` is q8 or q4.
    void (*seal)(KvKind kind, int dim, const uint8_t *from, uint8_t *to);
    // out = x / rms(x) * weight
    void (*rms_norm)(const float *x, const float *weight, float epsilon, int n, float *out);
    // Fills token t of act from act.values[t].
    void (*quantise)(const Activations &act, int t);
    // gate = silu(gate) * up
    void (*silu_mul)(float *gate, const float *up, int n);
    // Rotates half-split pairs (i, i + half): out may not alias x. The rest of the head (dim > 2 half) is copied.
    void (*rotate)(const float *x, const float *cos, const float *sin, int half, int dim, float factor, float *out);
    void (*to_f16)(const float *x, int n, uint16_t *out);
    // log(sum(exp(x)))
    float (*log_sum_exp)(const float *x, int n);
    // Sums n bytes (a multiple of 256) as fast as memory gives them.
    uint64_t (*read)(const uint8_t *data, size_t n);
};

const Kernels &portable_kernels();
#if defined(__x86_64__)
const Kernels &avx2_kernels();
const Kernels &avx512_kernels();
#elif defined(__aarch64__)
const Kernels &neon_kernels();
#endif

} // namespace anchorstream
