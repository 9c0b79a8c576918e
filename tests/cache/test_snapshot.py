"""Saved streams: save, restore, continue both; and everything that must be refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import anchorstream
from anchorstream.errors import SnapshotError, StorageError
from helpers.tiny_model import TinyModel

IDS = np.random.default_rng(1).integers(3, 250, 600)
METHODS = [
    {"method": "dense"},
    {"method": "window", "cache_size": 70},
    {"method": "recompute", "cache_size": 20},
    {"cache_size": 70},
]


@pytest.mark.parametrize("options", METHODS, ids=lambda o: o.get("method", "streaming"))
@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8", "q4"])
@pytest.mark.parametrize("fed", [1, 64, 65, 300])
def test_both_go_on_alike(
    tiny_llm: anchorstream.LLM, tmp_path: Path, options: dict[str, object], kv_dtype: str, fed: int
) -> None:
    stream = tiny_llm.stream(kv_dtype=kv_dtype, **options)
    stream.feed(IDS[:fed])
    stream.save(tmp_path / "s")
    back = tiny_llm.restore(tmp_path / "s")
    assert (back.length, back.config, back.cached_indices.tolist()) == (
        stream.length,
        stream.config,
        stream.cached_indices.tolist(),
    )
    assert np.array_equal(back.logits, stream.logits)
    for each in (stream, back):
        each.feed(IDS[300:345])
    assert np.array_equal(back.logits, stream.logits)
    said = [
        "".join(each.generate(20, temperature=0.7, seed=3, ignore_end=True, repetition_penalty=1.2))
        for each in (stream, back)
    ]
    assert said[0] == said[1]


def test_the_reference_engine_saves_too(tiny: Callable[[TinyModel], Path], tmp_path: Path) -> None:
    llm = anchorstream.load(tiny(TinyModel()), engine="reference")
    stream = llm.stream(cache_size=20)
    stream.feed(IDS[:50])
    stream.save(tmp_path / "s")
    back = llm.restore(tmp_path / "s")
    for each in (stream, back):
        each.feed(IDS[50:60])
    assert np.array_equal(back.logits, stream.logits)


def test_turns_and_an_empty_stream(tiny_llm: anchorstream.LLM, tmp_path: Path) -> None:
    empty = tiny_llm.stream(whole_turns=True, cache_size=40)
    empty.save(tmp_path / "empty")
    back = tiny_llm.restore(tmp_path / "empty")
    for each in (empty, back):
        for begin in range(0, 200, 25):
            each.begin_turn()
            each.feed(IDS[begin : begin + 25])
    assert np.array_equal(back.logits, empty.logits)
    empty.save(tmp_path / "empty")
    assert tiny_llm.restore(tmp_path / "empty").turns == empty.turns


def test_another_model_is_refused(
    tiny_llm: anchorstream.LLM, tiny: Callable[[TinyModel], Path], tmp_path: Path
) -> None:
    stream = tiny_llm.stream()
    stream.feed(IDS[:5])
    stream.save(tmp_path / "s")
    other = anchorstream.load(tiny(TinyModel(layers=1)))
    with pytest.raises(SnapshotError, match="another model"):
        other.restore(tmp_path / "s")


def test_another_precision_is_refused(
    tiny_llm: anchorstream.LLM, tiny: Callable[[TinyModel], Path], tmp_path: Path
) -> None:
    stream = tiny_llm.stream()  # f32, for the model computes in f32
    stream.feed(IDS[:5])
    stream.save(tmp_path / "s")
    with pytest.raises(SnapshotError, match="bytes"):
        anchorstream.load(tiny(TinyModel()), compute="int8").restore(tmp_path / "s")


def test_any_flipped_bit_is_found(tiny_llm: anchorstream.LLM, tmp_path: Path) -> None:
    stream = tiny_llm.stream(cache_size=10)
    stream.feed(IDS[:30])
    path = tmp_path / "s"
    stream.save(path)
    data = path.read_bytes()
    random = np.random.default_rng(0)
    for at in [*range(8), *random.integers(8, len(data), 150).tolist()]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(SnapshotError):
            tiny_llm.restore(path)
    for end in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(SnapshotError):
            tiny_llm.restore(path)


def test_other_files_and_versions(tiny_llm: anchorstream.LLM, tmp_path: Path) -> None:
    save_file({"a": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(SnapshotError, match="not a saved stream"):
        tiny_llm.restore(tmp_path / "other")
    save_file({"a": np.zeros(3)}, tmp_path / "next", metadata={"format": "anchorstream-stream", "version": "2"})
    with pytest.raises(SnapshotError, match="version 2"):
        tiny_llm.restore(tmp_path / "next")
    with pytest.raises(StorageError, match="No such file"):
        tiny_llm.restore(tmp_path / "nothing")
    with pytest.raises(StorageError):
        tiny_llm.restore(tmp_path)


def test_a_failed_save_leaves_the_old_file(
    tiny_llm: anchorstream.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = tiny_llm.stream()
    stream.feed(IDS[:5])
    stream.save(tmp_path / "s")
    before = (tmp_path / "s").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    stream.feed(IDS[:5])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            stream.save(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    with pytest.raises(StorageError):
        stream.save(tmp_path / "missing" / "s")


def test_names_are_safe(tiny_llm: anchorstream.LLM, tmp_path: Path) -> None:
    """Arrays cannot be smuggled in: what the header does not vouch for is refused."""
    stream = tiny_llm.stream()
    stream.feed(IDS[:5])
    stream.save(tmp_path / "s")
    arrays = load_file(tmp_path / "s")
    save_file(
        arrays,
        tmp_path / "s",
        metadata={"format": "anchorstream-stream", "version": "1", "checksum": "0" * 64, "facts": "{}"},
    )
    with pytest.raises(SnapshotError, match="damaged"):
        tiny_llm.restore(tmp_path / "s")


def test_a_full_cache_is_restored_in_no_time(llm: anchorstream.LLM, tmp_path: Path) -> None:
    stream = llm.stream()
    stream.feed(np.resize(IDS, 1500))
    stream.save(tmp_path / "s")
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        llm.restore(tmp_path / "s").close()
        times.append(time.perf_counter() - begin)
    print(f"restored in {min(times) * 1000:.0f} ms")
    assert min(times) < 0.2  # 0.05 is the bar on a quiet machine (docs/results.md)
