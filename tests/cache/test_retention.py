"""Plans: what each token sees, as pure integers, against the sentences of DESIGN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstream.cache.plan import Plan
from anchorstream.cache.retention import make_retention
from anchorstream.config import StreamConfig
from anchorstream.errors import ConfigError

CONFIGS = st.one_of(
    st.builds(lambda a, w: StreamConfig(num_sinks=a, cache_size=a + w), st.integers(0, 6), st.integers(1, 12)),
    st.builds(lambda c: StreamConfig(method="window", cache_size=c), st.integers(1, 12)),
    st.just(StreamConfig(method="dense")),
)


def seen_by(plan: Plan, place: int) -> list[int]:
    """Indices that the token at `place` of a plan attends to, itself left out."""
    return [*range(plan.anchors_seen[place]), *range(plan.first_seen[place], plan.indices[place])]


def truth(config: StreamConfig, t: int) -> list[int]:
    if config.method == "dense":
        return list(range(t))
    anchors = config.num_anchors
    return [i for i in range(t) if i < anchors or i >= t - config.window]


@given(config=CONFIGS, cuts=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_every_token_sees_what_its_method_says_in_any_chunking(config: StreamConfig, cuts: list[int]) -> None:
    retention, start, evicted = make_retention(config), 0, 0
    for count in cuts:
        plan = retention.plan(start, count)
        for place in range(count):
            t = start + place
            seen = seen_by(plan, place)
            assert seen == truth(config, t)
            assert min([i for i in seen if i >= plan.num_anchors], default=t) >= evicted or config.num_anchors > t
            # positions are slots: nothing is left out between the anchors, the window and the token
            assert plan.slots[place] == len(seen)
        start += count
        evicted = plan.evict_before
        assert retention.cached(start).tolist() == truth(config, start)


@given(c=st.integers(1, 12), start=st.integers(0, 40))
def test_recompute(c: int, start: int) -> None:
    retention = make_retention(StreamConfig(method="recompute", cache_size=c))
    plan = retention.plan(start, 1)
    if start <= c:
        assert plan.refeed == 0
        assert plan.indices.tolist() == [start]
    else:
        assert plan.refeed == c
        assert plan.indices.tolist() == list(range(c + 1))
    assert retention.cached(start).tolist() == list(range(max(0, start - c), start))
    assert retention.limit(start) == max(1, c + 1 - start)


@settings(max_examples=200)
@given(
    anchors=st.integers(0, 5),
    window=st.integers(2, 20),
    turns=st.lists(st.integers(0, 120), unique=True, max_size=12).map(sorted),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_whole_turns(anchors: int, window: int, turns: list[int], cuts: list[int]) -> None:
    """The window begins at the oldest turn that fits whole, if half of the window remains."""
    config = StreamConfig(num_sinks=anchors, cache_size=anchors + window, whole_turns=True)
    retention, start = make_retention(config), 0
    for count in cuts:
        # a turn is known before its first token is fed
        plan = retention.plan(start, count, turns)
        for place, t in enumerate(range(start, start + count)):
            plain = max(anchors, t - window)
            fitting = [turn for turn in turns if turn >= plain and turn <= t - (window + 1) // 2]
            first = fitting[0] if fitting and plain > anchors else plain
            assert plan.first_cached[place] == first
        start += count


def test_far_indices_do_not_overflow() -> None:
    plan = make_retention(StreamConfig()).plan(10**15, 3)
    assert plan.first_cached.tolist() == [10**15 - 1020 + i for i in range(3)]
    assert plan.slots.tolist() == [1024] * 3


def test_bands_hide_without_moving() -> None:
    plan = make_retention(StreamConfig(num_sinks=2, cache_size=12)).plan(20, 3)
    banded = plan.with_bands(np.array([0, 4, 99]))
    assert [seen_by(banded, i)[2:] for i in range(3)] == [[], [17, 18, 19, 20], list(range(12, 22))]
    assert banded.slots.tolist() == plan.slots.tolist()


@pytest.mark.parametrize("start", [0, 1, 5, 30])
def test_a_bias_has_one_entry_a_cached_token(start: int) -> None:
    plan = make_retention(StreamConfig(num_sinks=2, cache_size=12)).plan(start, 4)
    held = len(set(range(min(2, start + 4))) | set(range(max(2, int(plan.first_cached[0])), start + 4)))
    assert plan.num_keys == held
    assert plan.with_bias(np.zeros(held)).bias.dtype == np.float32
    with pytest.raises(ConfigError, match=str(held)):
        plan.with_bias(np.zeros(held + 1))
