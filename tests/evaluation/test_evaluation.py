"""The measurements: right numbers, nothing lost at a break, clear words about bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import anchorstream
from anchorstream.cli.main import run
from anchorstream.errors import ConfigError, InputError, MissingExtraError, SnapshotError, StorageError
from anchorstream.evaluation import latency, long_run, perplexity, plots, results, speed, streameval, texts
from helpers.tiny_model import TinyModel

IDS = np.random.default_rng(0).integers(3, 250, 6000).astype(np.int32)


def opener(llm: anchorstream.LLM) -> Callable[..., anchorstream.Stream]:
    return lambda config: llm.stream(**asdict(config))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The cat sat on the mat, and the hat was in the hall. " * 120, encoding="utf-8")
    return path


def test_perplexity_is_what_the_stream_says(tiny_llm: anchorstream.LLM) -> None:
    for scores in perplexity.plan(["streaming", "window", "dense"], cache_size=32, num_sinks=4, tokens=5000):
        perplexity.measure(opener(tiny_llm), IDS[:5000], scores)
        truth = tiny_llm.stream(**asdict(scores.config)).score(IDS[:5000])[1:]
        assert scores.perplexity == pytest.approx(float(np.exp(truth.astype(np.float64).mean())), rel=1e-4)
        lengths, values = scores.running()
        assert lengths[-1] == 5000
        assert values[-1] == pytest.approx(scores.perplexity)
        assert len(scores.per_block(2048)) == 3
        assert scores.facts()["tokens"] == 5000


def test_recompute_by_samples_is_recompute(tiny_llm: anchorstream.LLM) -> None:
    whole, sampled = (
        perplexity.plan(["recompute"], cache_size=16, num_sinks=0, tokens=100, stride=s)[0] for s in (1, 7)
    )
    for scores in (whole, sampled):
        perplexity.measure(opener(tiny_llm), IDS[:100], scores)
    places = np.arange(7, 100, 7)
    assert np.isfinite(sampled.nll[places]).all()
    assert np.isfinite(sampled.nll).sum() == len(places)
    assert np.abs(sampled.nll[places] - whole.nll[places]).max() < 1e-3
    whole.name = "whole"
    shared = perplexity.on_common_tokens([whole, sampled])
    assert shared["whole"] == pytest.approx(sampled.perplexity, rel=1e-3)
    assert shared[sampled.name] == pytest.approx(sampled.perplexity)


def test_a_break_keeps_what_was_measured(tiny_llm: anchorstream.LLM) -> None:
    class EnoughError(Exception):
        pass

    def progress(done: int, so_far: float) -> None:
        if done >= 4096:
            raise EnoughError

    (scores,) = perplexity.plan(["streaming"], cache_size=32, num_sinks=4, tokens=6000)
    with pytest.raises(EnoughError):
        perplexity.measure(opener(tiny_llm), IDS, scores, progress=progress)
    assert scores.done == 4096
    assert np.isfinite(scores.perplexity)


def test_a_killed_long_run_goes_on_with_the_same_result(tiny_llm: anchorstream.LLM, tmp_path: Path) -> None:
    options = {"cache_size": 64, "num_sinks": 4}
    truth = long_run.run(tiny_llm, IDS, long_run.LongRun(70_000, 20_000), tmp_path / "whole", options)

    class KilledError(Exception):
        pass

    def kill(state: long_run.LongRun) -> None:
        if state.done in (30_000, 60_000):
            raise KilledError

    folder = tmp_path / "killed"
    for expected in (30_000, 60_000):
        with pytest.raises(KilledError):
            long_run.run(tiny_llm, IDS, long_run.LongRun(70_000, 20_000), folder, options, progress=kill)
        state = json.loads((folder / "checkpoint.json").read_text())
        assert state["run"]["done"] == expected
        kill_again = state["run"]["done"]
        assert len(list(folder.glob("*.stream"))) == 1
        if kill_again == 60_000:
            break
        # the second run must pass 30,000, which it has already done
    found = long_run.run(tiny_llm, IDS, long_run.LongRun(70_000, 20_000), folder, options)
    assert found.perplexities == truth.perplexities
    assert len(truth.perplexities) == 4
    with pytest.raises(SnapshotError, match="another text or setting"):
        long_run.run(tiny_llm, IDS[:50], long_run.LongRun(70_000, 20_000), folder, options)


def test_streameval_finds_only_what_is_cached(llm: anchorstream.LLM) -> None:
    answers = list(streameval.measure(llm, count=70, distances=[10, 60], options={"cache_size": 512}, seed=1))
    by = {row["up_to"]: row["accuracy"] for row in streameval.accuracy_by(answers, "distance", [10, 60])}
    assert by[60] == 0
    assert by[10] > 0
    assert [line.text for line in streameval.lines(5, 3)] == [line.text for line in streameval.lines(5, 3)]
    assert next(iter(streameval.lines(1, 0, "numbers"))).text.startswith("The REGISTER_CONTENT in line 0 is <")
    with pytest.raises(ConfigError, match="words, numbers"):
        next(iter(streameval.lines(1, 0, "colours")))


def test_latency_and_speed(tiny_llm: anchorstream.LLM) -> None:
    (row,) = latency.measure(tiny_llm, IDS, [64], rounds=1)
    assert row.facts()["recompute_over_streaming"] == row.recompute / row.streaming
    assert row.dense_bytes > row.streaming_bytes
    figures = speed.measure(tiny_llm, IDS, cache_size=64, prompt=32, tokens=16, rounds=1)
    assert all(value > 0 for value in figures.values())


def test_texts(tmp_path: Path, tiny_llm: anchorstream.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {"empty": b"  \n", "binary": b"abc\0def", "latin": b"caf\xe9"}
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            texts.read_files([tmp_path / name])
    with pytest.raises(InputError, match="cannot be read"):
        texts.read_files([tmp_path / "nothing"])
    with pytest.raises(InputError, match="5 tokens, 9 were asked for"):
        texts.token_ids(tiny_llm.tokenizer, "abcde", 9)
    assert len(texts.token_ids(tiny_llm.tokenizer, "abcde", 9, repeat=True)) == 9
    with pytest.raises(InputError, match="pg19"):
        texts.read_dataset("pg20", 10)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="eval"):
        texts.read_dataset("pg19", 10)


def test_results_survive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = results.write(tmp_path / "r", "x", {"a": 1}, {"n": np.arange(3)})
    assert json.loads(path.read_text()) == {"a": 1}
    with np.load(tmp_path / "r" / "x.npz") as arrays:
        assert arrays["n"].tolist() == [0, 1, 2]

    def full(*arguments: object, **options: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageError, match="No space left"):
        results.write(tmp_path / "r", "x", {"a": 2})
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"a": 1}
    assert not list((tmp_path / "r").glob("*.part"))


def test_pictures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="--no-picture"):
        plots.bars(tmp_path / "x.png", {"a": 1.0}, title="t", x="x", y="y")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["ppl", "--tokens", "2500", "--cache-size", "64", "--stride", "400"], ["ppl.json", "ppl.npz", "ppl.png"]),
        (["sinks", "--tokens", "2100", "--cache-size", "64", "--counts", "0,4"], ["sinks.json", "sinks.png"]),
        (["cache-size", "--tokens", "2100", "--sizes", "32,64"], ["cache-size.json", "cache-size.png"]),
        (["latency", "--sizes", "32,64", "--rounds", "1"], ["latency.json", "latency.png"]),
        (["long", "--tokens", "20000", "--block", "5000", "--cache-size", "64"], ["long.json", "long.png"]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_each_command(
    command: list[str],
    files: list[str],
    text: Path,
    tiny: Callable[[TinyModel], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = ["eval", *command, "--text", str(text), "--model", str(tiny(TinyModel())), "--out", str(out), "--json"]
    assert run(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["benchmark"] == command[0]
    assert result["processor"]
    for name in files:
        assert (out / name).stat().st_size > 0


def test_streameval_command(
    tiny: Callable[[TinyModel], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--lines",
        "40",
        "--cache-size",
        "256",
        "--model",
        str(tiny(TinyModel())),
        "--out",
        str(tmp_path),
        "--json",
    ]
    assert run(["eval", "streameval", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["by_distance"]
    assert (tmp_path / "streameval-distance.png").exists()


def test_bench_command(tiny: Callable[[TinyModel], Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "bench",
        str(tiny(TinyModel())),
        "--cache-size",
        "64",
        "--prompt",
        "32",
        "--tokens",
        "8",
        "--rounds",
        "1",
    ]
    assert run(arguments) == 0
    assert "between tokens" in capsys.readouterr().out
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["decode_tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["ppl"], 2, "--text"),
        (["ppl", "--methods", "magic", "--text", "TEXT"], 2, "magic"),
        (["ppl", "--tokens", "1000000", "--text", "TEXT"], 2, "were asked for"),
        (["ppl", "--tokens", "1", "--text", "TEXT"], 2, "at least 2"),
        (["ppl", "--stride", "0", "--text", "TEXT"], 2, "stride"),
        (["sinks", "--counts", "a,b", "--text", "TEXT"], 2, "commas"),
        (["long", "--block", "5", "--text", "TEXT"], 2, "1,000"),
        (["streameval", "--lines", "1"], 2, "lines"),
        (["ppl", "--text", "nothing.txt"], 2, "nothing.txt"),
    ],
)
def test_bad_input(
    arguments: list[str],
    code: int,
    says: str,
    text: Path,
    tiny: Callable[[TinyModel], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["eval", *(str(text) if a == "TEXT" else a for a in arguments), "--model", str(tiny(TinyModel()))]
    assert run(command) == code
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
