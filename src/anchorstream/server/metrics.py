"""What Prometheus is told; docs/metrics.md says what each means. No label names a session."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from anchorstream.server.job import Job

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BETWEEN = (0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05, 0.1, 0.25, 1)


class Metrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"anchorstream_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"anchorstream_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"anchorstream_{name}", text, registry=registry, buckets=buckets)

        self._sent = counter("prompt_tokens", "Tokens of the conversations that were sent.")
        self._reused = counter("prompt_tokens_reused", "Of these, tokens that a stream had consumed before.")
        self.read = counter("tokens_read", "Prompt tokens that were computed.")
        self.generated = counter("tokens_generated", "Tokens that were made.")
        self.turns = counter("turns", "Turns that were finished.")
        self._finished = counter("replies", "Replies that ended, by reason.", ("reason",))
        self.refused = counter("requests_refused", "Requests that found the queue full.")
        self._stage = gauge("requests", "Requests by stage.", ("stage",))
        self.waited = histogram("queue_seconds", "From a request's coming to its beginning.", _FIRST)
        self.first = histogram("time_to_first_token_seconds", "From a request's coming to its first token.", _FIRST)
        self.between = histogram("time_between_tokens_seconds", "From one token of a reply to the next.", _BETWEEN)
        self.evicted_tokens = counter("evicted_tokens", "Tokens that left their conversation's window.")
        self.evicted_turns = counter("evicted_turns", "Turns whose beginning left their conversation's window.")
        self._restores = counter("restores", "Conversations that were brought back from disk, by result.", ("result",))
        self.unloaded = counter("unloads", "Conversations that were sent to disk for want of memory.")
        self.sessions = gauge("sessions", "Conversations, by where they are.", ("place",))
        self.pool = gauge("pool_bytes", "Bytes of caches, by kind.", ("kind",))
        self.hit_rate = gauge("cache_hit_rate", "Prompt tokens reused / prompt tokens sent, since the start.")
        self.band = gauge("attention_band_mass", "Share of attention by distance in tokens, sampled.", ("distance",))
        self.band_use = gauge(
            "attention_band_utilisation", "Share of the window that 95 % of its attention needs, sampled."
        )
        self.entropy = gauge("anchor_entropy_bits", "Entropy of the attention over the anchors, sampled.")
        self.entropy_change = gauge(
            "anchor_entropy_change_bits_per_1000_tokens", "Change of that entropy per thousand tokens of a stream."
        )
        for reason in ("stop", "length", "cancelled", "error"):
            self._finished.labels(reason)
        for result in ("file", "journal", "failed"):
            self._restores.labels(result)
        self._all_sent = self._all_reused = 0
        self._durations: deque[float] = deque([1.0], maxlen=50)

    def prompt(self, reused: int, read: int) -> None:
        """A prompt is going to be read."""
        self._sent.inc(reused + read)
        self._reused.inc(reused)
        self._all_sent += reused + read
        self._all_reused += reused
        self.hit_rate.set(self._all_reused / max(1, self._all_sent))

    def finished(self, reason: str) -> None:
        """A reply has ended."""
        self._finished.labels(reason).inc()

    def restored(self, result: str) -> None:
        """A conversation has come back from disk, or has not."""
        self._restores.labels(result).inc()

    def stages(self, load: Mapping[str, int]) -> None:
        """How many requests are at which stage."""
        for stage, count in load.items():
            self._stage.labels(stage).set(count)

    def took(self, job: Job) -> None:
        """A job has ended."""
        self._durations.append(job.ended - job.started)

    def typical_seconds(self) -> float:
        """How long a job takes."""
        return sum(self._durations) / len(self._durations)

    def exposition(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)
