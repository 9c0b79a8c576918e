// The Python module: checks shapes and types, and hands raw pointers on. No arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "anchorstream/cpu.h"
#include "anchorstream/decoder.h"

namespace nb = nanobind;
using namespace anchorstream;

namespace {

template <class T, int N> using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N> using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Made = nb::ndarray<nb::numpy, float, nb::c_contig>;

void require(bool holds, const std::string &message) {
    if (!holds) throw std::invalid_argument(message);
}

Made make(std::initializer_list<size_t> shape, float **data) {
    size_t count = 1;
    for (size_t n : shape) count *= n;
    *data = new float[std::max<size_t>(count, 1)]();
    const nb::capsule owner(*data, [](void *p) noexcept { delete[] static_cast<float *>(p); });
    return Made(*data, shape.size(), shape.begin(), owner);
}

const char *const kKvKinds[] = {"f16", "f32", "q8", "q4"};

KvKind parse_kv_kind(const std::string &name) {
    for (int i = 0; i < static_cast<int>(KvKind::count); ++i)
        if (name == kKvKinds[i]) return static_cast<KvKind>(i);
    throw std::invalid_argument("no cache precision is named '" + name + "'; there are f16, f32, q8 and q4");
}

// ---- the decoder -------------------------------------------------------------------------------------------------

class Model {
  public:
    Model(Shape shape, const std::string &isa, int threads) : decoder_(checked(std::move(shape)), choose_kernels(isa), threads) {
        const Shape &s = decoder_.shape();
        for (KvKind kind : {KvKind::f16, KvKind::f32, KvKind::q8, KvKind::q4})
            pools_.push_back(std::make_shared<BankPool>(BankShape{s.layers, s.kv_heads, s.head_size, kind}));
    }

    static Shape checked(Shape s) {
        require(s.layers > 0 && s.hidden > 0 && s.heads > 0 && s.kv_heads > 0 && s.ffn > 0 && s.vocab > 0, "sizes must be positive");
        require(s.heads % s.kv_heads == 0, "heads must be a multiple of kv_heads");
        require(s.head_size % 16 == 0 && s.head_size <= 256, "head_size must be a multiple of 16 up to 256");
        require(2 * s.inverse_frequencies.size() <= static_cast<size_t>(s.head_size), "more rotary frequencies than a head has pairs");
        return s;
    }

    void add_matrix(const std::string &role, int layer, const std::string &type, int rows, int columns, In<uint8_t, 1> data,
                    std::optional<In<int64_t, 1>> order, bool as_f32) {
        Linear &linear = matrix(role, layer);
        const Type parsed = parse_type(type);
        require(rows > 0, role + ": no rows");
        require(data.size() == row_bytes(parsed, columns) * static_cast<size_t>(rows),
                role + ": " + std::to_string(data.size()) + " bytes are not " + std::to_string(rows) + " x " + std::to_string(columns) +
                    " weights of " + type);
        if (order) {
            require(order->size() == static_cast<size_t>(rows), role + ": the order must name each row");
            for (size_t i = 0; i < order->size(); ++i)
                require(order->data()[i] >= 0 && order->data()[i] < rows, role + ": the order names a row that is not there");
        }
        const nb::gil_scoped_release released;
        linear.append(parsed, data.data(), rows, columns, order ? order->data() : nullptr, as_f32, decoder_.team(), decoder_.arena);
    }

    void add_vector(const std::string &role, int layer, In<float, 1> data) {
        std::vector<float> &to = vector(role, layer);
        to.insert(to.end(), data.data(), data.data() + data.size());
    }

    // Every matrix and vector is there and has the size that the shape says.
    void seal() {
        const Shape &s = decoder_.shape();
        const Weights &w = decoder_.weights;
        auto fits = [](const Linear &linear, int rows, int columns, const std::string &name) {
            require(linear.columns() == columns && linear.rows() == static_cast<int>(round_up(static_cast<size_t>(rows), kPanelRows)),
                    name + " must be " + std::to_string(rows) + " x " + std::to_string(columns) + ", not " + std::to_string(linear.rows()) +
                        " x " + std::to_string(linear.columns()));
        };
        auto sized = [](const std::vector<float> &v, int n, const std::string &name) {
            require(v.size() == static_cast<size_t>(n),
                    name + " must have " + std::to_string(n) + " elements, not " + std::to_string(v.size()));
        };
        fits(w.embedding, s.vocab, s.hidden, "embedding");
        if (w.head.rows()) fits(w.head, s.vocab, s.hidden, "head");
        sized(w.final_norm, s.hidden, "final_norm");
        const int qkv = (s.heads + 2 * s.kv_heads) * s.head_size, attention = s.heads * s.head_size;
        for (const Layer &layer : w.layers) {
            fits(layer.qkv, qkv, s.hidden, "qkv");
            fits(layer.out, s.hidden, attention, "out");
            fits(layer.gate, s.ffn, s.hidden, "gate");
            fits(layer.up, s.ffn, s.hidden, "up");
            fits(layer.down, s.hidden, s.ffn, "down");
            sized(layer.attention_norm, s.hidden, "attention_norm");
            sized(layer.ffn_norm, s.hidden, "ffn_norm");
            if (!layer.qkv_bias.empty()) sized(layer.qkv_bias, qkv, "qkv_bias");
        }
        sealed_ = true;
    }

    std::unique_ptr<Cache> new_cache(const std::string &kind) {
        const KvKind wanted = parse_kv_kind(kind);
        auto pool = [this](KvKind k) { return pools_[static_cast<size_t>(k)]; };
        if (is_quantised(wanted)) return std::make_unique<Cache>(pool(KvKind::f16), pool(wanted));
        return std::make_unique<Cache>(pool(wanted));
    }

    void forward(const nb::list &list) {
        require(sealed_, "the model has not been sealed");
        std::vector<Request> requests;
        for (nb::handle item : list) {
            const auto t = nb::cast<nb::tuple>(item);
            require(t.size() == 15, "a request has 15 fields");
            Request r{};
            r.cache = nb::cast<Cache *>(t[0]);
            const auto tokens = nb::cast<In<int32_t, 1>>(t[1]);
            const auto indices = nb::cast<In<int64_t, 1>>(t[2]), slots = nb::cast<In<int64_t, 1>>(t[3]);
            const auto first_seen = nb::cast<In<int64_t, 1>>(t[4]);
            const auto anchors_seen = nb::cast<In<int32_t, 1>>(t[5]);
            const size_t n = tokens.size();
            require(n > 0 && indices.size() == n && slots.size() == n && first_seen.size() == n && anchors_seen.size() == n,
                    "tokens and plan must have the same length, at least 1");
            r.count = static_cast<int>(n);
            r.tokens = tokens.data();
            r.indices = indices.data();
            r.slots = slots.data();
            r.first_seen = first_seen.data();
            r.anchors_seen = anchors_seen.data();
            r.num_anchors = nb::cast<int64_t>(t[6]);
            r.evict_before = nb::cast<int64_t>(t[7]);
            r.bias_first = nb::cast<int64_t>(t[9]);
            require(r.num_anchors >= 0, "num_anchors must not be negative");
            if (!t[8].is_none()) {
                const auto bias = nb::cast<In<float, 1>>(t[8]);
                const int64_t end = r.cache->length() + r.count;
                const int64_t keys = std::min(end, r.num_anchors) + std::max<int64_t>(0, end - r.bias_first);
                require(static_cast<int64_t>(bias.size()) == keys && r.bias_first >= r.num_anchors,
                        "the bias must have one entry per cached token");
                r.bias = bias.data();
            }
            const size_t vocab = static_cast<size_t>(decoder_.shape().vocab);
            r.all_logits = nb::cast<bool>(t[11]);
            if (!t[10].is_none()) {
                const auto logits = nb::cast<Out<float, 2>>(t[10]);
                require(logits.shape(0) == (r.all_logits ? n : 1) && logits.shape(1) == vocab, "logits have the wrong shape");
                r.logits = logits.data();
            }
            if (!t[12].is_none()) {
                const auto targets = nb::cast<In<int32_t, 1>>(t[12]);
                const auto nll = nb::cast<Out<float, 1>>(t[13]);
                require(targets.size() == n && nll.size() == n, "targets must be one per token");
                r.targets = targets.data();
                r.nll = nll.data();
            }
            if (!t[14].is_none()) {
                const auto attention = nb::cast<Out<float, 1>>(t[14]);
                const int64_t last = r.indices[n - 1];
                const int64_t seen = last < r.num_anchors ? last + 1 : r.anchors_seen[n - 1] + last - r.first_seen[n - 1] + 1;
                require(static_cast<int64_t>(attention.size()) == seen && !r.bias,
                        "attention must have one entry per token seen, and no bias");
                r.attention = attention.data();
            }
            for (const Request &other : requests) require(other.cache != r.cache, "one cache twice in a pass");
            requests.push_back(r);
        }
        const nb::gil_scoped_release released;
        decoder_.forward(requests);
    }

    size_t weight_bytes() const { return decoder_.weights.bytes(); }
    size_t bytes_per_token() const { return decoder_.weights.bytes_per_token(); }
    const char *isa() const { return decoder_.kernels().name; }
    int threads() { return decoder_.team().size(); }

  private:
    Layer &layer(int index) {
        auto &layers = decoder_.weights.layers;
        require(index >= 0 && index < static_cast<int>(layers.size()), "no layer " + std::to_string(index));
        return layers[static_cast<size_t>(index)];
    }
    Linear &matrix(const std::string &role, int index) {
        if (role == "embedding") return decoder_.weights.embedding;
        if (role == "head") return decoder_.weights.head;
        if (role == "qkv") return layer(index).qkv;
        if (role == "out") return layer(index).out;
        if (role == "gate") return layer(index).gate;
        if (role == "up") return layer(index).up;
        if (role == "down") return layer(index).down;
        throw std::invalid_argument("no matrix named " + role);
    }
    std::vector<float> &vector(const std::string &role, int index) {
        if (role == "final_norm") return decoder_.weights.final_norm;
        if (role == "attention_norm") return layer(index).attention_norm;
        if (role == "ffn_norm") return layer(index).ffn_norm;
        if (role == "qkv_bias") return layer(index).qkv_bias;
        throw std::invalid_argument("no vector named " + role);
    }

    Decoder decoder_;
    std::vector<std::shared_ptr<BankPool>> pools_;
    bool sealed_ = false;
};

// ---- caches --------------------------------------------------------------------------------------------------------

// Every bank's bytes, anchors first.
std::vector<nb::ndarray<nb::numpy, uint8_t, nb::c_contig>> bank_copies(const Cache &cache) {
    std::vector<nb::ndarray<nb::numpy, uint8_t, nb::c_contig>> out;
    for (int b = 0; b < cache.banks(); ++b) {
        const Cache::Bytes stored = cache.stored(b);
        auto *data = new uint8_t[stored.size];
        const nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<uint8_t *>(p); });
        {
            const nb::gil_scoped_release released;
            std::memcpy(data, stored.data, stored.size);
        }
        out.emplace_back(data, std::initializer_list<size_t>{stored.size}, owner);
    }
    return out;
}

void restore_cache(Cache &cache, int64_t length, int64_t num_anchors, int64_t window_first, const std::vector<In<uint8_t, 1>> &banks) {
    std::vector<Cache::Bytes> bytes;
    for (const auto &bank : banks) bytes.push_back({bank.data(), bank.size()});
    cache.restore(length, num_anchors, window_first, bytes);
}

// For each bank, anchors first: index of its first token, precision, bytes, how many caches hold it.
nb::list describe_banks(const Cache &cache) {
    nb::list out;
    for (int b = 0; b < cache.banks(); ++b)
        out.append(
            nb::make_tuple(cache.bank_first(b), kKvKinds[static_cast<int>(cache.stored_kind(b))], cache.stored(b).size, cache.sharers(b)));
    return out;
}

// ---- single kernels, for tests -----------------------------------------------------------------------------------

Activations activations(const float *x, int n, int columns, std::vector<uint8_t> &space) {
    const size_t cells = static_cast<size_t>(n) * static_cast<size_t>(columns),
                 blocks = static_cast<size_t>(n) * static_cast<size_t>(columns / kBlock + 1);
    space.resize(cells * 5 + blocks * 20 + 64);
    Activations act;
    act.values = reinterpret_cast<float *>(space.data());
    act.scale = act.values + cells;
    act.sum = act.scale + blocks;
    act.minus_sum = reinterpret_cast<int32_t *>(act.sum + blocks);
    act.minus_sum16 = act.minus_sum + blocks;
    act.q = reinterpret_cast<int8_t *>(act.minus_sum16 + 2 * blocks);
    act.columns = columns;
    act.blocks = columns / kBlock;
    std::memcpy(act.values, x, cells * sizeof(float));
    return act;
}

Made test_gemm(const std::string &isa, const std::string &type, In<uint8_t, 1> weights, int rows, In<float, 2> x, bool as_f32) {
    const Kernels &kernels = choose_kernels(isa);
    const int n = static_cast<int>(x.shape(0)), columns = static_cast<int>(x.shape(1));
    require(rows > 0 && n > 0, "no rows or no tokens");
    require(weights.size() == row_bytes(parse_type(type), columns) * static_cast<size_t>(rows), "weights and shape disagree");
    Team team(1);
    Arena arena(1);
    Linear linear;
    linear.append(parse_type(type), weights.data(), rows, columns, nullptr, as_f32, team, arena);
    std::vector<uint8_t> space;
    const Activations act = activations(x.data(), n, columns, space);
    if (linear.needs_quantised())
        for (int t = 0; t < n; ++t) kernels.quantise(act, t);
    std::vector<float> y(static_cast<size_t>(n * linear.rows()));
    for (int p = 0; p < linear.panels(); ++p) {
        const Linear::Panel panel = linear.panel(p);
        kernels.gemm[static_cast<int>(panel.kind)](panel.data, act, n, y.data() + p * kPanelRows, linear.rows(), false, nullptr);
    }
    float *data;
    Made out = make({static_cast<size_t>(n), static_cast<size_t>(rows)}, &data);
    for (int t = 0; t < n; ++t) std::memcpy(data + t * rows, y.data() + t * linear.rows(), static_cast<size_t>(rows) * sizeof(float));
    return out;
}

// The rows of a matrix as floats: straight from the file's blocks, or packed and unpacked again.
Made test_dequantise(const std::string &type, In<uint8_t, 1> weights, int rows, int columns, bool packed) {
    const Type parsed = parse_type(type);
    require(rows > 0 && weights.size() == row_bytes(parsed, columns) * static_cast<size_t>(rows), "weights and shape disagree");
    float *data;
    Made out = make({static_cast<size_t>(rows), static_cast<size_t>(columns)}, &data);
    Team team(1);
    Arena arena(1);
    Linear linear;
    if (packed) linear.append(parsed, weights.data(), rows, columns, nullptr, false, team, arena);
    for (int r = 0; r < rows; ++r) {
        if (packed) linear.unpack_row(r, data + r * columns);
        else dequantise_row(parsed, weights.data() + row_bytes(parsed, columns) * static_cast<size_t>(r), columns, data + r * columns);
    }
    return out;
}

// Softmax attention of rows over keys low[r] <= k < high[r], bank by bank; q8 and q4 banks are sealed from f16 first.
Made test_attend(const std::string &isa, In<float, 2> q, In<float, 2> keys, In<float, 2> values, In<int32_t, 1> low, In<int32_t, 1> high,
                 std::optional<In<float, 1>> bias, const std::string &kind_name) {
    const Kernels &kernels = choose_kernels(isa);
    const KvKind kind = parse_kv_kind(kind_name), written = is_quantised(kind) ? KvKind::f16 : kind;
    const int rows = static_cast<int>(q.shape(0)), dim = static_cast<int>(q.shape(1)), count = static_cast<int>(keys.shape(0));
    require(dim % 16 == 0 && dim <= 256 && static_cast<int>(keys.shape(1)) == dim && static_cast<int>(values.shape(1)) == dim &&
                static_cast<int>(values.shape(0)) == count,
            "q, keys and values must share a head size, a multiple of 16 up to 256");
    require(static_cast<int>(low.size()) == rows && static_cast<int>(high.size()) == rows, "low and high must be one per row");
    require(!bias || static_cast<int>(bias->size()) == count, "bias must be one per key");
    const auto n = static_cast<size_t>(rows), width = static_cast<size_t>(dim);
    const KvLayout at = kv_layout(written, dim);
    std::vector<uint8_t> part(at.end), sealed(kv_layout(kind, dim).end);
    std::vector<float> largest(n, -INFINITY), total(n), padded(kBankTokens), scratch(attend_scratch(n, width));
    std::vector<int> l(n), h(n);
    float *data;
    Made out = make({n, width}, &data);
    for (int start = 0; start < count; start += kBankTokens) {
        // what no one sees is poison: it must not get through (and repeats what is there where a bank is sealed)
        for (int t = 0; t < kBankTokens; ++t)
            for (int d = 0; d < dim; ++d) {
                const int key = is_quantised(kind) ? std::min(start + t, count - 1) : start + t;
                const float kv[2] = {key < count ? keys.data()[key * dim + d] : 1e4f, key < count ? values.data()[key * dim + d] : 1e4f};
                const size_t places[2] = {static_cast<size_t>(d * kBankTokens + t), static_cast<size_t>(t * dim + d)};
                for (int i = 0; i < 2; ++i) {
                    uint8_t *to = part.data() + (i ? at.values : 0);
                    float wide[16] = {kv[i]};
                    uint16_t narrow[16];
                    kernels.to_f16(wide, 16, narrow);
                    if (written == KvKind::f16) std::memcpy(to + 2 * places[i], narrow, 2);
                    else std::memcpy(to + 4 * places[i], wide, 4);
                }
            }
        if (is_quantised(kind)) kernels.seal(kind, dim, part.data(), sealed.data());
        for (size_t r = 0; r < n; ++r) {
            l[r] = std::clamp(low.data()[r] - start, 0, kBankTokens);
            h[r] = std::clamp(std::min(high.data()[r], count) - start, 0, kBankTokens);
        }
        if (bias)
            for (int i = 0; i < kBankTokens; ++i) padded[static_cast<size_t>(i)] = start + i < count ? bias->data()[start + i] : 0.0f;
        const Attend call{q.data(),       is_quantised(kind) ? sealed.data() : part.data(),
                          nullptr,        l.data(),
                          h.data(),       bias ? padded.data() : nullptr,
                          largest.data(), total.data(),
                          data,           scratch.data(),
                          rows,           dim};
        kernels.attend[static_cast<int>(kind)](call);
    }
    for (size_t r = 0; r < n; ++r)
        for (size_t d = 0; d < width; ++d) data[r * width + d] /= total[r];
    return out;
}

nb::tuple test_quantise(const std::string &isa, In<float, 2> x) {
    const Kernels &kernels = choose_kernels(isa);
    const int n = static_cast<int>(x.shape(0)), columns = static_cast<int>(x.shape(1));
    require(columns % kBlock == 0, "columns must be a multiple of 32");
    std::vector<uint8_t> space;
    const Activations act = activations(x.data(), n, columns, space);
    float *q, *scale, *sum;
    Made qs = make({x.shape(0), x.shape(1)}, &q), scales = make({x.shape(0), static_cast<size_t>(act.blocks)}, &scale),
         sums = make({x.shape(0), static_cast<size_t>(act.blocks)}, &sum);
    for (int t = 0; t < n; ++t) kernels.quantise(act, t);
    for (int i = 0; i < n * columns; ++i) q[i] = act.q[i];
    std::memcpy(scale, act.scale, static_cast<size_t>(n * act.blocks) * sizeof(float));
    std::memcpy(sum, act.sum, static_cast<size_t>(n * act.blocks) * sizeof(float));
    return nb::make_tuple(qs, scales, sums);
}

Made test_rms_norm(const std::string &isa, In<float, 1> x, In<float, 1> weight, float epsilon) {
    require(x.size() == weight.size() && x.size() > 0, "x and weight must have the same length");
    float *data;
    Made out = make({x.size()}, &data);
    choose_kernels(isa).rms_norm(x.data(), weight.data(), epsilon, static_cast<int>(x.size()), data);
    return out;
}

Made test_silu_mul(const std::string &isa, In<float, 1> gate, In<float, 1> up) {
    require(gate.size() == up.size() && gate.size() % 16 == 0, "gate and up must have the same length, a multiple of 16");
    float *data;
    Made out = make({gate.size()}, &data);
    std::memcpy(data, gate.data(), gate.size() * sizeof(float));
    choose_kernels(isa).silu_mul(data, up.data(), static_cast<int>(gate.size()));
    return out;
}

Made test_rotate(const std::string &isa, In<float, 1> x, In<float, 1> cos, In<float, 1> sin, float factor) {
    require(cos.size() == sin.size() && 2 * cos.size() <= x.size(), "cos and sin must have the same length, at most half of x's");
    float *data;
    Made out = make({x.size()}, &data);
    choose_kernels(isa).rotate(x.data(), cos.data(), sin.data(), static_cast<int>(cos.size()), static_cast<int>(x.size()), factor, data);
    return out;
}

float test_log_sum_exp(const std::string &isa, In<float, 1> x) {
    require(x.size() > 0, "x is empty");
    return choose_kernels(isa).log_sum_exp(x.data(), static_cast<int>(x.size()));
}

// Bytes per second that `threads` threads read together from `bytes` of memory; the best of `repeats` sweeps.
double read_bandwidth(size_t bytes, int threads, int repeats) {
    require(bytes >= size_t{1} << 20 && threads > 0 && repeats > 0, "bytes must be at least 1 MiB, threads and repeats at least 1");
    const nb::gil_scoped_release released;
    const Kernels &kernels = choose_kernels("");
    Team team(threads);
    constexpr size_t kPiece = size_t{1} << 18;
    const size_t pieces = bytes / kPiece;
    const Block block = allocate(pieces * kPiece);
    std::memset(block.get(), 1, pieces * kPiece);
    std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
    double best = 0;
    for (int i = 0; i <= repeats; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        team.run([&](int member) {
            for (int piece; (piece = team.claim(member, static_cast<int>(pieces))) >= 0;)
                sums[static_cast<size_t>(member) * 8] += kernels.read(block.get() + static_cast<size_t>(piece) * kPiece, kPiece);
        });
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (i) best = std::max(best, static_cast<double>(pieces * kPiece) / took.count());
    }
    return best;
}

} // namespace

NB_MODULE(_core, m) {
    m.doc() = "The compiled core of anchorstream.";

    nb::class_<Cache>(m, "Cache")
        .def_prop_ro("length", &Cache::length)
        .def_prop_ro("nbytes", &Cache::bytes)
        .def("clear", &Cache::clear)
        .def("skip_to", &Cache::skip_to, nb::arg("index"))
        .def_prop_ro("num_anchors", &Cache::num_anchors)
        .def_prop_ro("window_first", &Cache::window_first)
        .def_prop_ro("anchor_banks", &Cache::anchor_banks)
        .def_prop_ro("unshared_bytes", &Cache::unshared_bytes)
        .def("banks", &bank_copies)
        .def("describe", &describe_banks)
        .def("restore", &restore_cache, nb::arg("length"), nb::arg("num_anchors"), nb::arg("window_first"), nb::arg("banks"))
        .def("fork", &Cache::fork, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<Model>(m, "Model")
        .def(
            "__init__",
            [](Model *self, int layers, int hidden, int heads, int kv_heads, int head_size, int ffn, int vocab, float norm_epsilon,
               In<double, 1> inverse_frequencies, double rope_magnitude, const std::string &isa, int threads) {
                require(threads > 0 && threads <= 1024, "threads must be from 1 to 1024");
                std::vector<double> frequencies(inverse_frequencies.data(), inverse_frequencies.data() + inverse_frequencies.size());
                new (self) Model(
                    Shape{layers, hidden, heads, kv_heads, head_size, ffn, vocab, norm_epsilon, std::move(frequencies), rope_magnitude},
                    isa, threads);
            },
            nb::kw_only(), nb::arg("layers"), nb::arg("hidden"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_size"),
            nb::arg("ffn"), nb::arg("vocab"), nb::arg("norm_epsilon"), nb::arg("inverse_frequencies"), nb::arg("rope_magnitude"),
            nb::arg("isa"), nb::arg("threads"))
        .def("add_matrix", &Model::add_matrix, nb::arg("role"), nb::arg("layer"), nb::arg("type"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data"), nb::arg("order").none(), nb::arg("as_f32"))
        .def("add_vector", &Model::add_vector, nb::arg("role"), nb::arg("layer"), nb::arg("data"))
        .def("seal", &Model::seal)
        .def("new_cache", &Model::new_cache, nb::keep_alive<0, 1>(), nb::arg("kind"))

        .def("forward", &Model::forward, nb::arg("requests"))
        .def_prop_ro("weight_bytes", &Model::weight_bytes)
        .def_prop_ro("bytes_per_token", &Model::bytes_per_token)
        .def_prop_ro("isa", &Model::isa)
        .def_prop_ro("threads", &Model::threads);

    m.def("runnable", [] {
        std::vector<std::string> names;
        for (const Kernels *kernels : runnable_kernels()) names.emplace_back(kernels->name);
        return names;
    });
    m.def(
        "bank_bytes",
        [](const std::string &kind, int layers, int kv_heads, int head_size) {
            require(layers > 0 && kv_heads > 0 && head_size > 0, "sizes must be positive");
            return BankShape{layers, kv_heads, head_size, parse_kv_kind(kind)}.bytes();
        },
        nb::arg("kind"), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_size"));
    m.def("read_bandwidth", &read_bandwidth, nb::arg("bytes"), nb::arg("threads"), nb::arg("repeats"));
    m.def("gemm", &test_gemm, nb::arg("isa"), nb::arg("type"), nb::arg("weights"), nb::arg("rows"), nb::arg("x"), nb::arg("as_f32"));
    m.def("dequantise", &test_dequantise, nb::arg("type"), nb::arg("weights"), nb::arg("rows"), nb::arg("columns"), nb::arg("packed"));
    m.def("attend", &test_attend, nb::arg("isa"), nb::arg("q"), nb::arg("keys"), nb::arg("values"), nb::arg("low"), nb::arg("high"),
          nb::arg("bias").none(), nb::arg("kind"));
    m.def("quantise", &test_quantise, nb::arg("isa"), nb::arg("x"));
    m.def("rms_norm", &test_rms_norm, nb::arg("isa"), nb::arg("x"), nb::arg("weight"), nb::arg("epsilon"));
    m.def("silu_mul", &test_silu_mul, nb::arg("isa"), nb::arg("gate"), nb::arg("up"));
    m.def("rotate", &test_rotate, nb::arg("isa"), nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("factor"));
    m.def("log_sum_exp", &test_log_sum_exp, nb::arg("isa"), nb::arg("x"));
}
