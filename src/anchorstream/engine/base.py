"""The engine protocol: a model's weights made ready for one kind of hardware, and its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from anchorstream.cache.banks import BankInfo
from anchorstream.cache.plan import Plan
from anchorstream.models.spec import ModelSpec

Want = Literal["nothing", "last", "all"]


class Cache(Protocol):
    """The keys and values of one stream. Bytes only: which tokens stay is the plan's business."""

    @property
    def length(self) -> int:
        """How many tokens have been put in since it was empty."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        ...

    @property
    def unshared_bytes(self) -> int:
        """Bytes of it that no other cache holds."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def fork(self) -> Cache:
        """A copy that continues on its own."""
        ...


CacheState = dict[str, np.ndarray]  # named arrays, from which the engine that made them makes the cache again


@dataclass(frozen=True, slots=True)
class Segment:
    """One stream's share of a forward pass.

    Attributes:
        cache: the stream's cache; the pass appends to it and afterwards evicts what `plan.evict_before` says.
        tokens: int32 (n,), token ids, n == plan.count.
        plan: what each token sees.
        want: which logits are wanted: of no token, of the last, or of all.
        targets: int32 (n,), the token that follows each, or -1; where given, its -log p is wanted; or None.
        attention: float32 (seen,), zeros, to which the last token's attention is added, averaged over layers and heads:
            the anchors that it sees, the window, itself; or None. It does not go with a bias.
        into: float32 (vocab,), where the logits of the last token are put; or None: somewhere new.
    """

    cache: Cache
    tokens: np.ndarray
    plan: Plan
    want: Want = "last"
    targets: np.ndarray | None = None
    into: np.ndarray | None = None
    attention: np.ndarray | None = None


class Output(NamedTuple):
    """What a pass gives back for one segment.

    Attributes:
        logits: float32 (vocab,) for want="last", (n, vocab) for "all", None for "nothing".
        nll: float32 (n,), -log p of each target in nats (nan where the target is -1), or None without targets.
    """

    logits: np.ndarray | None
    nll: np.ndarray | None


class Engine(Protocol):
    """Weights ready to run. Not thread-safe: one thread owns an engine."""

    @property
    def spec(self) -> ModelSpec:
        """The model's architecture."""
        ...

    @property
    def chunk_size(self) -> int:
        """The most tokens that one pass should be given, for the sake of memory."""
        ...

    def new_cache(self, kv_dtype: str = "auto") -> Cache:
        """An empty cache. `kv_dtype` is one of config.KV_DTYPES."""
        ...

    def cache_state(self, cache: Cache) -> CacheState:
        """All that a cache holds, copied."""
        ...

    def describe_cache(self, cache: Cache) -> list[BankInfo]:
        """Each bank that a cache holds, anchors first."""
        ...

    def restore_cache(self, state: CacheState, kv_dtype: str = "auto") -> Cache:
        """The cache that `state` was taken from, to the bit.

        Raises:
            InputError: the arrays do not fit this model, precision or each other.
        """
        ...

    def kv_bytes_per_token(self, kv_dtype: str = "auto") -> int:
        """Bytes that one cached token takes in all layers."""
        ...

    def forward(self, segments: Sequence[Segment]) -> list[Output]:
        """Compute all segments in one pass; a failed pass leaves every cache as it was."""
        ...

    def describe(self) -> dict[str, object]:
        """For `info`: engine name, instruction set, threads, compute, bytes of weights."""
        ...
