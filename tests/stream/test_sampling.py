"""Sampling against a plain implementation that sorts everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstream.config import SamplingConfig
from anchorstream.errors import ConfigError, ModelFileError
from anchorstream.stream.sampling import Sampler

NOTHING = np.empty(0, np.int32)


def plain(logits: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """Probabilities, float64 (vocab,): temperature, top-k, top-p, min-p, one after the other."""
    wide = logits.astype(np.float64) / config.temperature
    p = np.exp(wide - wide.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if config.top_k:
        p[order[config.top_k :]] = 0
        p /= p.sum()
    if config.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before > config.top_p]] = 0
    if config.min_p:
        p[p < config.min_p * p.max()] = 0
    return p / p.sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.01, 1.0, 5.0, 40.0]),
    temperature=st.sampled_from([0.2, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 2, 5, 300]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
)
def test_only_and_all_that_may_be_chosen(
    seed: int, spread: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(200) * spread).astype(np.float32)
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    ids, weights = Sampler(config, 200)._candidates(logits, logits.max())
    found = np.zeros(200)
    found[ids] = weights / weights.sum()
    truth = plain(logits, config)
    # a token exactly at the edge of top-p may fall on either side
    assert np.abs(found - truth).sum() < 1e-3 or abs(len(ids) - np.count_nonzero(truth)) <= 1


def test_frequencies_are_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    for config in (
        SamplingConfig(temperature=1.0, top_p=1.0, seed=1),
        SamplingConfig(temperature=1.0, top_p=0.8, seed=1),
    ):
        sampler = Sampler(config, 4)
        counts = np.bincount([sampler.choose(logits, NOTHING) for _ in range(20000)], minlength=4) / 20000
        assert np.abs(counts - plain(logits, config)).max() < 0.015


def test_greedy_and_top_k_1_take_the_best() -> None:
    logits = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for config in (SamplingConfig(temperature=0), SamplingConfig(top_k=1)):
        assert Sampler(config, 100).choose(logits, NOTHING) == logits.argmax()


def test_a_seed_repeats_and_its_absence_does_not() -> None:
    logits = np.zeros(1000, np.float32)

    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingConfig(temperature=1.0, top_p=1.0, seed=seed), 1000)
        return [sampler.choose(logits, NOTHING) for _ in range(20)]

    assert draw(5) == draw(5) != draw(6)
    assert draw(None) != draw(None)


def test_repetition_penalty_hits_both_signs() -> None:
    logits = np.array([2.0, -1.0, 1.9, -1.5], np.float32)
    sampler = Sampler(SamplingConfig(temperature=0, repetition_penalty=2.0, penalty_last_n=4), 4)
    assert sampler.looks_back == 4
    assert sampler.choose(logits, np.array([0, 0])) == 2
    assert list(sampler._adjusted(logits, np.array([0, 1]))) == [1.0, -2.0, np.float32(1.9), -1.5]
    assert logits[0] == 2.0  # the stream's logits stay


def test_logit_bias() -> None:
    logits = np.zeros(10, np.float32)
    config = SamplingConfig(temperature=0, logit_bias=((7, 5.0), (0, float("-inf"))))
    assert Sampler(config, 10).choose(logits, NOTHING) == 7
    with pytest.raises(ConfigError, match="10"):
        Sampler(SamplingConfig(logit_bias=((10, 1.0),)), 10)
    with pytest.raises(ConfigError, match="not a number"):
        Sampler(SamplingConfig(logit_bias=((1, float("nan")),)), 10)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers(temperature: float, bad: float) -> None:
    logits = np.zeros(10, np.float32)
    logits[3] = bad
    with pytest.raises(ModelFileError, match="damaged"):
        Sampler(SamplingConfig(temperature=temperature), 10).choose(logits, NOTHING)


def test_presence_and_frequency_count_what_the_reply_holds() -> None:
    logits = np.array([3.0, 2.0, 1.0, 0.0], np.float32)

    def chosen(**penalties: float) -> list[int]:
        sampler = Sampler(SamplingConfig(temperature=0, **penalties), 4)
        return [sampler.choose(logits, NOTHING) for _ in range(6)]

    assert chosen() == [0] * 6
    # once seen, a token loses 1.5: 3 -> 1.5, then 2 -> 0.5
    assert chosen(presence_penalty=1.5) == [0, 1, 0, 0, 0, 0]
    # each time it loses 0.6: 3, 2.4, 1.8 < 2, ...
    assert chosen(frequency_penalty=0.6) == [0, 0, 1, 0, 1, 0]
    assert logits.tolist() == [3.0, 2.0, 1.0, 0.0]


def test_a_grammar_decides_what_may_come() -> None:
    logits = np.array([3.0, 2.0, 1.0, 0.0], np.float32)
    allowed = np.array([False, False, True, True])
    assert Sampler(SamplingConfig(temperature=0), 4).choose(logits, NOTHING, allowed) == 2
    sampler = Sampler(SamplingConfig(temperature=5, top_p=1.0, seed=1), 4)
    assert {sampler.choose(logits, NOTHING, allowed) for _ in range(100)} == {2, 3}
