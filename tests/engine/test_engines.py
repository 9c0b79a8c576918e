"""Both engines against a float64 brute force, and against each other: every method, shape and chunking."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anchorstream
from anchorstream.cache.retention import make_retention
from anchorstream.config import StreamConfig
from anchorstream.engine.base import Segment
from anchorstream.engine.reference import ReferenceEngine
from anchorstream.engine.swift import SwiftEngine
from anchorstream.errors import InputError, UnsupportedModelError
from anchorstream.formats.gguf import open_gguf
from helpers import oracle
from helpers.tiny_model import TinyModel

Tiny = Callable[[TinyModel], Path]
CACHE, SINKS, LENGTH = 12, 3, 40
SHAPES = [
    TinyModel(),
    TinyModel(heads=4, kv_heads=4, head_size=32),
    TinyModel(heads=4, kv_heads=1, head_size=64, tied=False),
    TinyModel(heads=3, kv_heads=3, head_size=80, bias=True),
    TinyModel(heads=6, kv_heads=3, head_size=96, ffn=112, hidden=48),
    TinyModel(heads=2, kv_heads=1, head_size=128, layers=3, rope_base=500000.0),
    TinyModel(heads=9, kv_heads=3, head_size=64, rope_dim=32, ffn=100, hidden=72),
]


def ids_of(count: int, model: TinyModel, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, len(model.tokens), count).astype(np.int32)


def logits_of(llm: anchorstream.LLM, ids: np.ndarray, chunk: int, **options: object) -> np.ndarray:
    """Logits after each chunk's last token."""
    stream = llm.stream(**options)
    out = []
    for begin in range(0, len(ids), chunk):
        stream.feed(ids[begin : begin + chunk])
        out.append(stream.logits.copy())
    return np.stack(out)


def expected(model: TinyModel, ids: np.ndarray, method: str) -> np.ndarray:
    """Logits after each token, by brute force."""
    if method == "recompute":
        rows = [oracle.forward(model, ids[max(0, t - CACHE) : t + 1], oracle.dense_sees)[-1] for t in range(len(ids))]
        return np.stack(rows)
    sees = {
        "dense": oracle.dense_sees,
        "window": oracle.streaming_sees(0, CACHE),
        "streaming": oracle.streaming_sees(SINKS, CACHE - SINKS),
    }[method]
    return oracle.forward(model, ids, sees)


@pytest.mark.parametrize("method", ["streaming", "window", "dense", "recompute"])
@pytest.mark.parametrize("model", SHAPES, ids=lambda m: f"{m.heads}over{m.kv_heads}x{m.head_size}")
def test_both_engines_agree_with_brute_force(tiny: Tiny, model: TinyModel, method: str) -> None:
    ids = ids_of(LENGTH, model)
    truth = expected(model, ids, method)
    for engine in ("swift", "reference"):
        llm = anchorstream.load(tiny(model), compute="f32", engine=engine)
        found = logits_of(llm, ids, 1, method=method, cache_size=CACHE, num_sinks=SINKS)
        assert np.abs(found - truth).max() <= 2e-3, engine


@pytest.mark.parametrize("method", ["streaming", "window", "dense", "recompute"])
@pytest.mark.parametrize("chunk", [2, 7, CACHE - 1, CACHE, CACHE + 1, 3 * CACHE, 400])
def test_chunks_do_not_matter(tiny_llm: anchorstream.LLM, method: str, chunk: int) -> None:
    ids = ids_of(400 if method != "recompute" else 60, TinyModel())
    options = {"method": method, "cache_size": CACHE, "num_sinks": SINKS}
    one = logits_of(tiny_llm, ids, 1, **options)
    many = logits_of(tiny_llm, ids, chunk, **options)
    ends = [min(end, len(ids)) - 1 for end in range(chunk, len(ids) + chunk, chunk)]
    assert np.array_equal(many, one[ends])  # to the bit: attention's sums are grouped by index, not by pass


@pytest.mark.parametrize("kv_dtype", ["f16", "q8", "q4"])
@pytest.mark.parametrize("compute", ["int8", "f32"])
def test_results_repeat_to_the_bit(tiny: Tiny, compute: str, kv_dtype: str) -> None:
    """However a stream is cut, by how many threads it is computed, and beside whom."""
    model = TinyModel(heads=9, kv_heads=3, hidden=288, dtype="Q4_1")
    ids = ids_of(700, model)
    config = StreamConfig(cache_size=300, num_sinks=5, kv_dtype=kv_dtype)
    retention = make_retention(config)

    def last(threads: int, cuts: list[int], beside: int = 0) -> np.ndarray:
        engine = SwiftEngine(open_gguf(tiny(model)), compute=compute, threads=threads)
        caches = [engine.new_cache(kv_dtype) for _ in range(1 + beside)]
        at, output = 0, np.empty(0)
        for size in cuts:
            plan = retention.plan(at, size)
            segments = [Segment(cache, np.roll(ids, i)[at : at + size], plan) for i, cache in enumerate(caches)]
            output = engine.forward(segments)[0].logits
            at += size
        assert at == len(ids)
        return output

    truth = last(1, [1] * 700)
    for threads in (1, 2):
        assert np.array_equal(truth, last(threads, [256, 256, 188]))
        assert np.array_equal(truth, last(threads, [1, 2, 3, 5, 9, 17, 33, 65, 129, 250, 186]))
    assert np.array_equal(truth, last(2, [100] * 7, beside=5))


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("length", [2, 50, 64, 65, 300])
def test_where_a_token_looks(tiny: Tiny, kv_dtype: str, length: int) -> None:
    model = TinyModel(heads=6, kv_heads=3, head_size=32)
    ids = ids_of(length + 3, model)
    found = []
    for engine in ("swift", "reference"):
        llm = anchorstream.load(tiny(model), compute="f32", engine=engine)
        stream = llm.stream(cache_size=140, num_sinks=5, **({"kv_dtype": kv_dtype} if engine == "swift" else {}))
        stream.feed(ids[:length])
        segment = stream.segment(ids[length:], attention=True)  # several at once: the last one's is told
        (output,) = llm.engine.forward([segment])
        stream.commit(ids[length:], segment.plan, output)
        found.append(segment.attention)
    fast, plain = found
    assert len(fast) == len(plain) == min(length + 3, 141)
    assert fast.sum() == pytest.approx(1, abs=1e-4)
    assert np.abs(fast - plain).max() < {"f32": 1e-5, "f16": 1e-3, "q8": 1e-2, "q4": 5e-2}[kv_dtype]
    assert np.corrcoef(fast, plain)[0, 1] > 0.98


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize("sinks", [0, 1, 64, 65])
def test_banks_of_any_fill(tiny: Tiny, size: int, sinks: int) -> None:
    """Anchors and windows that end within a bank, at its end and just past it, against the reference engine."""
    if size <= sinks:
        pytest.skip("no window would remain")
    model = TinyModel(layers=1)
    ids = ids_of(330, model)
    fast, plain = (anchorstream.load(tiny(model), compute="f32", engine=engine) for engine in ("swift", "reference"))
    found = logits_of(fast, ids, 110, cache_size=size, num_sinks=sinks)
    assert np.abs(found - logits_of(plain, ids, 110, cache_size=size, num_sinks=sinks)).max() <= 2e-3


@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize(("compute", "most"), [("f32", 2e-3), ("int8", 1.0)])
def test_every_weight_type(tiny: Tiny, dtype: str, compute: str, most: float) -> None:
    model = TinyModel(dtype=dtype, layers=2)
    ids = ids_of(50, model)
    fast = anchorstream.load(tiny(model), compute=compute)
    plain = anchorstream.load(tiny(model), engine="reference")
    found, truth = (logits_of(llm, ids, 50, cache_size=CACHE)[0] for llm in (fast, plain))
    assert np.abs(found - truth).max() <= most
    assert np.corrcoef(found, truth)[0, 1] > 0.998


def test_half_precision_cache_is_close(tiny_llm: anchorstream.LLM) -> None:
    ids = ids_of(100, TinyModel())
    exact, half = (logits_of(tiny_llm, ids, 100, cache_size=32, kv_dtype=kind)[0] for kind in ("f32", "f16"))
    assert 0 < np.abs(exact - half).max() < 0.05


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_do_not_matter(tiny: Tiny, tiny_llm: anchorstream.LLM, threads: int) -> None:
    ids = ids_of(70, TinyModel())
    other = anchorstream.load(tiny(TinyModel()), compute="f32", threads=threads)
    for chunk in (1, 70):
        assert np.array_equal(logits_of(other, ids, chunk), logits_of(tiny_llm, ids, chunk))


def test_streams_in_one_pass_do_not_touch_each_other(tiny: Tiny) -> None:
    model = TinyModel()
    engine = SwiftEngine(open_gguf(tiny(model)), compute="f32", threads=2)
    retentions = [make_retention(StreamConfig(cache_size=size, num_sinks=2)) for size in (5, 20, 90)]
    ids = [ids_of(60, model, seed) for seed in range(3)]

    def run(together: bool) -> list[np.ndarray]:
        caches, last = [engine.new_cache() for _ in ids], [np.empty(0)] * 3
        for begin, end in ((0, 33), (33, 34), (34, 60)):
            segments = [Segment(caches[i], ids[i][begin:end], retentions[i].plan(begin, end - begin)) for i in range(3)]
            if together:
                outputs = engine.forward(segments)
            else:
                outputs = [engine.forward([segment])[0] for segment in segments]
            last = [output.logits for output in outputs]
        return last

    for alone, shared in zip(run(False), run(True), strict=True):
        assert np.array_equal(alone, shared)


def test_the_kernel_obeys_bands_and_biases(tiny: Tiny) -> None:
    model = TinyModel(layers=2, heads=2, kv_heads=1, head_size=32)
    ids, anchors, window = ids_of(40, model), 3, 20
    bands = np.random.default_rng(1).integers(0, 12, len(ids))
    by_index = np.random.default_rng(2).normal(0, 2, len(ids)).astype(np.float32)

    def sees(t: int) -> list[int]:
        return [i for i in range(t) if i < anchors or i >= max(t - window, t - bands[t])]

    # a band moves no position: the oracle's slots would, so the oracle hides the tokens with a bias of minus infinity
    def bias(t: int, i: int) -> float:
        return float(by_index[i]) if i == t or i in sees(t) else -np.inf

    truth = oracle.forward(model, ids, oracle.streaming_sees(anchors, window), bias=bias)
    retention = make_retention(StreamConfig(cache_size=anchors + window, num_sinks=anchors))
    for make in (lambda f: SwiftEngine(f, compute="f32", threads=2), ReferenceEngine):
        engine = make(open_gguf(tiny(model)))
        for cuts in ([0, 40], [0, 1, 2, 17, 30, 40], list(range(41))):
            cache = engine.new_cache()
            for begin, end in itertools.pairwise(cuts):
                plan = retention.plan(begin, end - begin).with_bands(bands[begin:end])
                first = max(int(plan.first_cached[0]), anchors)
                slots = np.concatenate([by_index[: min(end, anchors)], by_index[first:end]])
                output = engine.forward([Segment(cache, ids[begin:end], plan.with_bias(slots), "all")])[0]
                assert np.abs(output.logits - truth[begin:end]).max() <= 2e-3


def test_index_of_four_million_is_exact(tiny: Tiny) -> None:
    """With one layer the evicted tokens leave no mark, so the brute force needs only what is in the cache."""
    model = TinyModel(layers=1, heads=2, kv_heads=1, head_size=64)
    anchors, window, far = 4, 60, 4_000_000
    ids = ids_of(anchors + 200, model)
    engine = SwiftEngine(open_gguf(tiny(model)), compute="f32", threads=2)
    retention = make_retention(StreamConfig(cache_size=anchors + window, num_sinks=anchors))
    cache = engine.new_cache()
    engine.forward([Segment(cache, ids[:anchors], retention.plan(0, anchors))])
    cache.skip_to(far - window)
    tail = ids[anchors:]
    # the first `window` tokens after the jump fill the window; their plans must not look into the gap
    plan = retention.plan(far - window, window)
    plan = plan.with_bands(np.arange(window))
    engine.forward([Segment(cache, tail[:window], plan)])
    for i in range(window, window + 80):
        found = engine.forward([Segment(cache, tail[i : i + 1], retention.plan(far + i - window, 1))])[0].logits
        seen = np.concatenate([ids[:anchors], tail[i - window : i + 1]])
        truth = oracle.forward(model, seen, oracle.dense_sees)[-1]
        assert np.abs(found - truth).max() <= 1e-4


def test_a_bad_plan_is_refused_and_changes_nothing(tiny: Tiny) -> None:
    model = TinyModel()
    engine = SwiftEngine(open_gguf(tiny(model)), compute="f32", threads=1)
    retention = make_retention(StreamConfig(cache_size=8, num_sinks=2))
    cache, ids = engine.new_cache(), ids_of(30, model)
    engine.forward([Segment(cache, ids[:20], retention.plan(0, 20))])
    before = cache.fork()
    bad = [
        (ids[:1], retention.plan(21, 1)),
        (ids[:1], replace(retention.plan(20, 1), first_seen=np.array([-5]))),
        (np.array([len(model.tokens)], np.int32), retention.plan(20, 1)),
        (np.array([-1], np.int32), retention.plan(20, 1)),
        (ids[:1], make_retention(StreamConfig(cache_size=8, num_sinks=5)).plan(20, 1)),
    ]
    for tokens, plan in bad:
        with pytest.raises(InputError):
            engine.forward([Segment(cache, tokens, plan)])
    segment = Segment(cache, ids[20:21], retention.plan(20, 1))
    with pytest.raises(InputError, match="twice"):
        engine.forward([segment, segment])
    assert cache.length == before.length == 20
    outputs = [engine.forward([Segment(c, ids[20:21], retention.plan(20, 1))])[0].logits for c in (cache, before)]
    assert np.array_equal(*outputs)


def test_nll_is_what_the_logits_say(tiny: Tiny) -> None:
    model = TinyModel()
    ids = ids_of(40, model)
    for engine in (SwiftEngine(open_gguf(tiny(model)), compute="f32"), ReferenceEngine(open_gguf(tiny(model)))):
        retention = make_retention(StreamConfig(cache_size=16))
        targets = np.append(ids[1:], np.int32(-1))
        output = engine.forward([Segment(engine.new_cache(), ids, retention.plan(0, 40), "all", targets)])[0]
        wide = output.logits.astype(np.float64)
        truth = np.log(np.exp(wide).sum(1))[:-1] - wide[np.arange(39), ids[1:]]
        assert np.abs(output.nll[:-1] - truth).max() < 1e-4
        assert np.isnan(output.nll[-1])


@pytest.mark.parametrize(
    "missing", ["blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight"]
)
def test_a_missing_tensor_is_named(tiny: Tiny, missing: str) -> None:
    file = open_gguf(tiny(TinyModel()))
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != missing}
    with pytest.raises(UnsupportedModelError, match=missing):
        SwiftEngine(replace(file, tensors=tensors))
