"""The pool, forks, prefixes and marks: nothing is copied that can be shared, nothing is lost, nothing leaks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorstream
from anchorstream.cli.main import run
from anchorstream.errors import ConfigError, InputError, OutOfMemoryError
from helpers.tiny_model import TinyModel

IDS = np.random.default_rng(3).integers(3, 250, 3000).astype(np.int32)
KINDS = ["f16", "f32", "q8", "q4"]


@pytest.mark.parametrize(("kind", "least"), [("q8", 1.85), ("q4", 3.5)])
def test_sealed_banks_are_small(llm: anchorstream.LLM, kind: str, least: float) -> None:
    assert llm.engine.kv_bytes_per_token("f16") / llm.engine.kv_bytes_per_token(kind) >= least
    stream = llm.stream(kv_dtype=kind, cache_size=512)
    stream.feed(IDS[:700])
    banks = stream.describe()["banks"]
    assert [bank["precision"] for bank in banks if bank["anchors"]] == ["f16"]
    assert banks[-1]["precision"] == "f16"
    assert {bank["precision"] for bank in banks[1:-1]} == {kind}


@pytest.mark.parametrize("kind", ["q8", "q4"])
@pytest.mark.parametrize("chunk", [1, 63, 64, 65, 256])
def test_sealing_does_not_depend_on_chunks(tiny_llm: anchorstream.LLM, kind: str, chunk: int) -> None:
    """A token sees its own bank as written and older ones as sealed, however it came."""
    one, many = (tiny_llm.stream(kv_dtype=kind, cache_size=200, num_sinks=3) for _ in range(2))
    one.feed(IDS[:600])
    for begin in range(0, 600, chunk):
        many.feed(IDS[begin : min(begin + chunk, 600)])
    assert np.array_equal(one.logits, many.logits)
    exact = tiny_llm.stream(kv_dtype="f16", cache_size=200, num_sinks=3)
    exact.feed(IDS[:600])
    assert np.abs(one.logits - exact.logits).max() > 1e-4


def test_a_hundred_forks_cost_a_hundred_unsealed_banks(llm: anchorstream.LLM) -> None:
    stream = llm.stream()
    stream.feed(IDS[:1500])
    times, forks = [], []
    for _ in range(100):
        begin = time.perf_counter()
        forks.append(stream.fork())
        times.append(time.perf_counter() - begin)
    bank = 64 * llm.engine.kv_bytes_per_token()
    for fork in forks:
        assert sum(b["nbytes"] for b in fork.describe()["banks"] if not b["shared"]) == bank
    print(f"a fork takes {1000 * float(np.median(times)):.2f} ms")
    assert np.median(times) < 0.01  # a millisecond on a quiet machine
    for fork in forks[1:]:
        fork.close()
    forks[0].feed(IDS[:5])
    stream.feed(IDS[:5])
    assert np.array_equal(forks[0].logits, stream.logits)


def test_a_prefix_is_computed_once_and_shared(llm: anchorstream.LLM) -> None:
    text = "You are a patient teacher. " * 20
    prefix = llm.prefix(text)
    plain = llm.stream(num_pinned=prefix.num_tokens, cache_size=512)
    plain.feed(text)
    streams = [llm.stream(prefix=prefix, cache_size=512) for _ in range(3)]
    for stream in streams:
        assert stream.length == prefix.num_tokens
        assert all(bank["shared"] for bank in stream.describe()["banks"])
    for each in (*streams, plain):
        each.feed(" Hello there.")
    for stream in streams:
        assert np.abs(stream.logits - plain.logits).max() < 0.5  # other passes, int8 arithmetic
        assert stream.cached_indices.tolist() == plain.cached_indices.tolist()
    prefix.close()
    streams[0].feed(" How are you?")


def test_chats_with_the_same_system_prompt_share_it(llm: anchorstream.LLM) -> None:
    one, two = (llm.chat("You are a shared system prompt, of some length.") for _ in range(2))
    assert [bank["shared"] for bank in one.stream.describe()["banks"]] == [True]
    said = ["".join(chat.send("Hi!", temperature=0, max_tokens=10)) for chat in (one, two)]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "options", [{"cache_size": 10}, {"kv_dtype": "q4"}, {"num_sinks": 99}, {"method": "dense"}, {"cache_sise": 100}]
)
def test_a_prefix_and_options_that_do_not_go_with_it(tiny_llm: anchorstream.LLM, options: dict[str, object]) -> None:
    prefix = tiny_llm.prefix(IDS[:20].tolist())
    with pytest.raises(ConfigError):
        tiny_llm.stream(prefix=prefix, **options)
    with pytest.raises(InputError):
        tiny_llm.prefix("")


@pytest.mark.parametrize("kind", KINDS)
def test_rewinding_is_as_if_nothing_had_come_after(tiny_llm: anchorstream.LLM, kind: str) -> None:
    stream, witness = (tiny_llm.stream(kv_dtype=kind, cache_size=150) for _ in range(2))
    for each in (stream, witness):
        each.feed(IDS[:400])
    mark = stream.mark()
    for detour in (1, 90, 1000):
        stream.feed(IDS[1000 : 1000 + detour])
        stream.rewind(mark)
        assert (stream.length, stream.cached_indices.tolist()) == (400, witness.cached_indices.tolist())
        assert np.array_equal(stream.logits, witness.logits)
    for each in (stream, witness):
        each.feed(IDS[400:500])
    assert np.array_equal(stream.logits, witness.logits)


def test_marks_of_others_and_dropped_ones(tiny_llm: anchorstream.LLM) -> None:
    one, two = tiny_llm.stream(), tiny_llm.stream()
    one.feed(IDS[:5])
    two.feed(IDS[:5])
    mark = one.mark()
    with pytest.raises(InputError, match="another stream"):
        two.rewind(mark)
    mark.drop()
    mark.drop()
    assert not mark.alive
    with pytest.raises(InputError, match="gone"):
        one.rewind(mark)
    assert one.length == 5


def test_regenerate_and_undo(llm: anchorstream.LLM) -> None:
    chat = llm.chat("You are kind.")
    first = "".join(chat.send("Tell me something.", temperature=0, max_tokens=20))
    length = chat.stream.length
    assert "".join(chat.regenerate(temperature=0, max_tokens=20)) == first
    assert (chat.stream.length, chat.num_turns) == (length, 1)
    "".join(chat.send("Another thing.", max_tokens=5))
    assert chat.undo() == "Another thing."
    assert chat.undo() == "Tell me something."
    assert chat.stream.length == chat.num_pinned
    with pytest.raises(InputError, match="no turn"):
        chat.undo()


def test_the_pool_refuses_before_it_allocates(tiny: Callable[[TinyModel], Path]) -> None:
    llm = anchorstream.load(tiny(TinyModel()), compute="f32", cache_bytes=3_000_000)
    streams = []

    def open_many() -> None:
        while len(streams) < 20:
            streams.append(llm.stream(cache_size=300))

    with pytest.raises(OutOfMemoryError, match=r"pool of 3 MB cannot hold 0.7 MB more beside the .* that \d streams"):
        open_many()
    assert 2 <= len(streams) < 20
    for stream in streams:  # those that run never fail
        stream.feed(IDS)
    with pytest.raises(OutOfMemoryError):
        streams[0].fork()
    streams.pop().close()
    llm.stream(cache_size=300).close()
    del streams[-1]
    llm.stream(cache_size=300)
    with pytest.raises(ConfigError, match="cache_bytes"):
        anchorstream.load(tiny(TinyModel()), cache_bytes=0)


def test_marks_give_way_oldest_first(tiny: Callable[[TinyModel], Path]) -> None:
    limit = 1300 * 2 * 2 * 2 * 32 * 4
    llm = anchorstream.load(tiny(TinyModel()), compute="f32", cache_bytes=limit)
    stream = llm.stream(cache_size=100)
    marks = []
    for i in range(25):
        stream.feed(IDS[i * 100 : i * 100 + 100])
        marks.append(stream.mark())
    alive = [mark.alive for mark in marks]
    assert alive[-1]
    assert not alive[0]
    assert alive == sorted(alive)  # the oldest are gone
    assert llm.pool.held_by_marks + llm.pool.reserved <= limit
    stream.rewind(marks[-1])
    other = llm.stream(cache_size=100)  # a stream that needs the room takes it from the marks
    assert llm.pool.held_by_marks + llm.pool.reserved <= limit
    other.close()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_life_is_what_brute_force_says(
    tiny_llm: anchorstream.LLM, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Feed, fork, mark, rewind, save, restore and close in any order: every stream holds what its tokens say."""
    kind = data.draw(st.sampled_from(KINDS))
    options = {
        "kv_dtype": kind,
        "cache_size": data.draw(st.sampled_from([20, 64, 130])),
        "num_sinks": data.draw(st.integers(0, 5)),
    }
    path = tmp_path_factory.getbasetemp() / "life.stream"
    streams: list[tuple[anchorstream.Stream, list[int], list]] = [(tiny_llm.stream(**options), [], [])]
    for _ in range(data.draw(st.integers(2, 12))):
        place = data.draw(st.integers(0, len(streams) - 1))
        stream, told, marks = streams[place]
        action = data.draw(st.sampled_from(["feed", "feed", "fork", "mark", "rewind", "save", "close"]))
        if action == "feed":
            begin = data.draw(st.integers(0, 2800))
            piece = IDS[begin : begin + data.draw(st.integers(1, 150))]
            stream.feed(piece)
            told.extend(piece.tolist())
        elif action == "fork":
            streams.append((stream.fork(), list(told), []))
        elif action == "mark":
            marks.append((stream.mark(), list(told)))
        elif action == "rewind" and marks:
            mark, told_then = data.draw(st.sampled_from(marks))
            stream.rewind(mark)
            told[:] = told_then
        elif action == "save":
            stream.save(path)
            streams.append((tiny_llm.restore(path), list(told), []))
        elif action == "close" and len(streams) > 1:
            stream.close()
            streams.pop(place)
    for stream, told, _ in streams:
        assert stream.length == len(told)
        anchors, window = options["num_sinks"], options["cache_size"] - options["num_sinks"]
        assert stream.cached_indices.tolist() == [i for i in range(len(told)) if i < anchors or i >= len(told) - window]
        if told:
            fresh = tiny_llm.stream(**options)
            fresh.feed(told)
            assert np.abs(stream.logits - fresh.logits).max() < (1e-3 if kind == "f32" else 0.3)
        stream.close()


def test_no_bank_leaks(tiny: Callable[[TinyModel], Path]) -> None:
    """Streams that come and go for ever take no more than one of them."""
    from anchorstream.evaluation import machine

    llm = anchorstream.load(tiny(TinyModel(layers=8, kv_heads=4, head_size=64)), compute="f32")
    sizes = []
    for _ in range(30):
        with llm.stream(cache_size=1000) as stream:
            stream.feed(IDS)
            with stream.fork() as fork:
                fork.feed(IDS[:300])
            stream.rewind(stream.mark())
        sizes.append(machine.memory())
    assert sizes[-1] - sizes[5] < 4 << 20
    assert llm.pool.reserved == 0


def test_the_picture_of_a_saved_stream(
    llm: anchorstream.LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = llm.stream(kv_dtype="q4", cache_size=512)
    stream.feed(IDS[:2000])
    stream.save(tmp_path / "s")
    assert run(["info", "--stream", str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    assert "▒" in out
    assert "1,488 evicted" in out
    assert run(["info", "--stream", str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["window_first"] == 2000 - 508
    assert run(["info", "--stream", str(tmp_path / "nothing")]) == 10
