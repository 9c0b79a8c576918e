"""What Prometheus is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import anchorstream
from anchorstream.server import attention
from helpers.live_server import LiveServer, Talk, cached

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def values(server: LiveServer) -> dict[str, float]:
    """Every sample, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[
                f"{sample.name.removeprefix('anchorstream_')}{{{labels}}}"
                if labels
                else sample.name.removeprefix("anchorstream_")
            ] = sample.value
    return found


def test_counts_are_what_happened(small: LiveServer) -> None:
    before = values(small)
    talk = Talk(small, "Be brief.", max_tokens=7, ignore_eos=True)
    sent = reused = gone = 0
    for turn in range(20):
        talk.say(f"Say {turn}")
        sent += talk.last["usage"]["prompt_tokens"]
        reused += cached(talk.last)
        gone += talk.last["streaming"]["evicted_by_request"]
    after = values(small)
    change = {name: after[name] - before.get(name, 0) for name in after}
    assert change["tokens_generated_total"] == 140
    assert change["prompt_tokens_total"] == sent
    assert change["prompt_tokens_reused_total"] == reused
    assert change["tokens_read_total"] == sent - reused
    assert change["evicted_tokens_total"] == gone == talk.last["streaming"]["evicted_tokens"]
    assert change["evicted_turns_total"] == talk.last["streaming"]["evicted_turns"] > 5
    assert change["turns_total"] == change["replies_total{length}"] == 20
    assert change["time_to_first_token_seconds_count"] == 20
    assert change["time_between_tokens_seconds_count"] == 20 * 6
    assert 0 < after["cache_hit_rate"] < 1
    assert after["sessions{memory}"] >= 1
    assert after["pool_bytes{reserved}"] > 0


def test_attention_is_sampled(small: LiveServer) -> None:
    small.chat("Go on for ever", max_tokens=2000, ignore_eos=True)
    found = values(small)
    bands = {name: value for name, value in found.items() if name.startswith("attention_band_mass")}
    assert sum(bands.values()) == pytest.approx(1, abs=1e-3)
    assert {"attention_band_mass{anchors}", "attention_band_mass{self}", "attention_band_mass{1-16}"} <= set(bands)
    assert 0 < found["attention_band_utilisation"] <= 1
    assert 0 < found["anchor_entropy_bits"] <= 2  # of four anchors
    assert found["anchor_entropy_change_bits_per_1000_tokens"] > 0


def test_a_real_model_leans_on_its_sinks(llm: anchorstream.LLM, book: str) -> None:
    """The paper's finding, by our own figure."""
    stream = llm.stream()
    stream.feed(book[:20_000])
    ids = np.array([100], np.int32)
    segment = stream.segment(ids, attention=True)
    (output,) = llm.engine.forward([segment])
    stream.commit(ids, segment.plan, output)
    assert segment.attention is not None
    found = attention.shares(segment.attention, 4)
    assert found["anchors"] > 0.25
    assert sum(found.values()) == pytest.approx(1, abs=1e-3)


def test_figures_of_known_weights() -> None:
    even = np.full(105, 1 / 105, np.float32)
    assert attention.utilisation(even, 4) == pytest.approx(0.95)
    assert attention.entropy(even[:4]) == pytest.approx(2)
    assert attention.shares(even, 4)["17-64"] == pytest.approx(48 / 105)
    near = np.zeros(105, np.float32)
    near[[0, 103]] = 0.5
    assert attention.utilisation(near, 4) == pytest.approx(0.01)
    assert attention.entropy(near[:4]) == 0


def test_every_metric_is_documented_and_no_label_names_a_session(small: LiveServer) -> None:
    small.chat("hello", session="secret-session-name")
    text = small.http.get("/metrics").text
    assert "secret-session-name" not in text
    documented = (DOCS / "metrics.md").read_text()
    names = {family.name.removeprefix("anchorstream_") for family in text_string_to_metric_families(text)}
    for name in names:
        if not name.endswith("_created"):
            assert re.search(rf"`{name}(_total)?[`{{]", documented), name


def test_the_dashboard_asks_for_what_there_is(small: LiveServer) -> None:
    known = values(small)
    names = {re.sub(r"\{.*", "", name) for name in known}
    for panel in json.loads((DOCS / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"anchorstream_(\w+)", target["expr"]):
                assert name in names, name
