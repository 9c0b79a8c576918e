"""A stream: one endless sequence of tokens, at constant memory and constant time per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from anchorstream.cache import snapshot
from anchorstream.cache.banks import Pool
from anchorstream.cache.plan import Plan
from anchorstream.cache.retention import make_retention
from anchorstream.cache.snapshot import Snapshot
from anchorstream.config import SamplingConfig, StreamConfig, make
from anchorstream.engine.base import Cache, Engine, Output, Segment, Want
from anchorstream.errors import ClosedError, ConfigError, InputError, SnapshotError
from anchorstream.kernels.native import BANK_TOKENS
from anchorstream.stream.generation import Generation, Limits
from anchorstream.stream.history import TokenHistory
from anchorstream.stream.marks import Mark, State
from anchorstream.stream.sampling import Sampler
from anchorstream.text.tokenizer import TextTokenizer

Progress = Callable[[int, int], None]  # tokens fed so far, tokens to feed

_LEAST_HISTORY = 1024  # ids kept beyond the cache's own, for repetition penalties


class Held(NamedTuple):
    """What a stream holds, in tokens.

    Attributes:
        anchors, window: how many.
        window_first: index of the window's first token.
        evicted: how many have been consumed and are held no more.
    """

    anchors: int
    window: int
    window_first: int
    evicted: int


class Stream:
    """One endless sequence. Made by `LLM.stream`; not thread-safe.

    A stream consumes tokens (`feed`, `score`) and makes them (`generate`). Whatever it consumes, it holds the anchors
    and the window that its StreamConfig asks for, and the logits after the last token. The result never depends on
    how the input was cut into calls.

    Args:
        engine: computes.
        tokenizer: cuts text.
        config: method, sizes, precision.
        pool: keeps the accounts of all streams' memory.
        fingerprint: names the model in saved streams.

    Raises:
        OutOfMemoryError: the cache would not fit into the pool; nothing has been allocated.
    """

    def __init__(
        self, engine: Engine, tokenizer: TextTokenizer, config: StreamConfig, *, pool: Pool, fingerprint: str = ""
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._pool = pool
        self.fingerprint = fingerprint
        self._retention = make_retention(config)
        self._reserve(0 if config.method == "dense" else config.cache_size + engine.chunk_size)
        self._cache: Cache | None = engine.new_cache(config.kv_dtype)
        self._history = TokenHistory(None if config.method == "dense" else max(config.cache_size, _LEAST_HISTORY))
        self._length = 0
        self._turns: list[int] = []
        self._logits: np.ndarray | None = None
        self._unfinished: tuple[np.ndarray, int, np.ndarray | None] | None = None

    # ---- what it is ----

    @property
    def config(self) -> StreamConfig:
        """Method, sizes and precision."""
        return self._config

    @property
    def length(self) -> int:
        """How many tokens the stream has consumed: the index of the next one."""
        self._settle()
        return self._length

    @property
    def cached_indices(self) -> np.ndarray:
        """Indices of the tokens that the next token will attend to, anchors first; int64."""
        return self._retention.cached(self.length, self._turns)

    @property
    def logits(self) -> np.ndarray:
        """Logits of the next token, float32 (vocab,).

        Raises:
            InputError: nothing has been fed yet.
        """
        self._settle()
        if self._logits is None:
            raise InputError("the stream is empty: feed it something first")
        return self._logits

    def recent(self, count: int) -> np.ndarray:
        """The last `count` token ids, or as many as are kept; int32."""
        return self._history.last(count)

    @property
    def nbytes(self) -> int:
        """Bytes that the cache takes now."""
        return self._open().nbytes

    @property
    def turns(self) -> tuple[int, ...]:
        """Indices at which the turns begin that are still in the window."""
        return tuple(self._turns)

    # ---- consuming ----

    def feed(self, text: str | Sequence[int] | np.ndarray, *, progress: Progress | None = None) -> int:
        """Consume text or token ids, of any length.

        The beginning-of-stream token is put before text that begins a stream, where the model wants one.

        Args:
            text: text, or ids.
            progress: called between passes with the tokens fed so far and the tokens to feed; what it raises stops
                the feeding, and what has been fed by then stays.

        Returns:
            How many tokens were consumed.

        Raises:
            InputError: nothing to feed to an empty stream, an id out of range, or text that is not valid Unicode.
                Nothing has been consumed.
            OutOfMemoryError: a dense stream that would outgrow the machine.
        """
        ids = self._ids(text)
        if len(ids) == 0:
            if self.length == 0:
                raise InputError("there is nothing to feed: the text is empty")
            return 0
        for done, chunk in self._chunks(ids):
            self._pass(chunk, want="last" if done + len(chunk) == len(ids) else "nothing")
            if progress:
                progress(done + len(chunk), len(ids))
        return len(ids)

    def score(self, text: str | Sequence[int] | np.ndarray, *, progress: Progress | None = None) -> np.ndarray:
        """Consume text or token ids, and say how likely each was.

        Returns:
            float32 (n,): -log p of each id given all that the stream held before it, in nats; nan for the first id
            of an empty stream.

        Raises:
            InputError, OutOfMemoryError: as `feed`.
        """
        ids = self._ids(text)
        scores = np.full(len(ids), np.nan, np.float32)
        if len(ids) == 0:
            return scores
        if self.length:
            scores[0] = _surprise(self.logits, int(ids[0]))
        targets = np.append(ids[1:], np.int32(-1))
        for done, chunk in self._chunks(ids):
            end = done + len(chunk)
            output = self._pass(chunk, want="last" if end == len(ids) else "nothing", targets=targets[done:end])
            assert output.nll is not None
            scores[done + 1 : end + 1] = output.nll[: len(ids) - done - 1]
            if progress:
                progress(end, len(ids))
        return scores

    def begin_turn(self, ahead: int = 0) -> None:
        """Say that a turn begins with the next token, or `ahead` tokens later: a window of whole turns may begin there."""
        index = self.length + ahead
        if not self._turns or self._turns[-1] < index:
            self._turns.append(index)

    # ---- making ----

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
        **sampling: Any,
    ) -> Iterator[str]:
        """Make tokens one after the other and yield their text as it becomes certain.

        A token is consumed by the stream before its text is yielded, so that breaking off loses nothing. The token
        with which a model ends its reply is not consumed.

        Args:
            max_tokens: how many tokens at most; None or -1: until the model ends its reply.
            stop: texts that end the reply; they are not shown.
            ignore_end: go on when the model ends its reply.
            sampling: fields of SamplingConfig: temperature, top_k, top_p, min_p, repetition_penalty, seed, ...

        Raises:
            ConfigError: an unknown or impossible setting.
            InputError: the stream is empty.
        """
        generation = self.generation(max_tokens, stop=stop, ignore_end=ignore_end, **sampling)
        assert self.logits is not None  # so that an empty stream says so now and not at the first step
        return self.run(generation)

    def generation(
        self,
        max_tokens: int | None = None,
        *,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
        **sampling: Any,
    ) -> Generation:
        """What `generate` runs: a reply's state, whose `finish_reason` and `count` can be read afterwards."""
        if isinstance(bias := sampling.get("logit_bias"), dict):
            sampling["logit_bias"] = tuple(bias.items())
        config = make(SamplingConfig, sampling)
        limits = Limits.make(max_tokens, stop, ignore_end)
        return Generation(self._tokenizer, Sampler(config, self._engine.spec.vocab_size), limits)

    def run(self, generation: Generation) -> Iterator[str]:
        """Run a reply to its end, yielding its text."""
        for text in self.steps(generation):
            if text:
                yield text

    def steps(self, generation: Generation) -> Iterator[str]:
        """Run a reply to its end, yielding after each step the text that has become certain, which may be none."""
        while not generation.finished:
            token = generation.choose(self.logits, self.recent(generation.looks_back))
            if token is not None:
                self._require_growth(1)
                self._pass(np.array([token], np.int32))
            yield generation.push(token)

    # ---- copying and closing ----

    def fork(self) -> Stream:
        """A copy that continues on its own; this stream is not changed. Nothing is copied but the unfinished bank.

        Raises:
            OutOfMemoryError: the pool could not hold both once they go different ways.
        """
        return self.fork_as(self._config)

    def fork_as(self, config: StreamConfig) -> Stream:
        """A fork that goes on with another config. What is cached so far must be what that config would have cached."""
        return self._copy(self._state(), config)

    def fork_at(self, mark: Mark) -> Stream:
        """A fork that continues from a mark of this stream, which is not changed.

        Raises:
            InputError: a mark of another stream, or one that is gone.
            OutOfMemoryError: as `fork`.
        """
        return self._copy(mark.state_for(self).copy(), self._config)

    def _copy(self, state: State, config: StreamConfig) -> Stream:
        other = Stream(self._engine, self._tokenizer, config, pool=self._pool, fingerprint=self.fingerprint)
        other._take(state)
        if not config.whole_turns:
            other._turns.clear()
        return other

    def mark(self) -> Mark:
        """Remember this place, to come back with `rewind`. Costs about what a fork costs."""
        mark = Mark(self, self._state(), self._pool.drop)
        self._pool.keep(mark)
        return mark

    def rewind(self, mark: Mark) -> None:
        """Go back to a mark, as if nothing had come after it. The mark can be used again.

        Raises:
            InputError: a mark of another stream, or one that is gone; the stream is as it was.
        """
        self._open()
        state = mark.state_for(self).copy()
        self._unfinished = None
        self._take(state)

    def _state(self) -> State:
        """A copy of all that changes."""
        self._settle()
        return State(self._open().fork(), self._length, tuple(self._turns), self._history.copy(), self._logits)

    def _take(self, state: State) -> None:
        self._cache, self._length, self._turns = state.cache, state.length, list(state.turns)
        self._history, self._logits = state.history, state.logits

    def describe(self) -> dict[str, Any]:
        """What the stream holds, as data: anchors, window, banks with their precision and sharing, the evicted."""
        self._settle()
        return self._describe(State(self._open(), self._length, tuple(self._turns), self._history, self._logits))

    @property
    def held(self) -> Held:
        """How much the next token will see, and how much has been evicted."""
        return self._held(self.length, self._turns)

    def _held(self, length: int, turns: Sequence[int]) -> Held:
        indices = self._retention.cached(length, turns)
        anchors = min(len(indices), self._config.num_anchors)
        first = int(indices[anchors]) if len(indices) > anchors else length
        return Held(anchors, len(indices) - anchors, first, length - len(indices))

    def _describe(self, state: State) -> dict[str, Any]:
        held = self._held(state.length, state.turns)
        banks = self._engine.describe_cache(state.cache)
        return {
            "method": self._config.method,
            "length": state.length,
            "cache_size": None if self._config.method == "dense" else self._config.cache_size,
            "anchors": held.anchors,
            "window": held.window,
            "window_first": held.window_first,
            "evicted": held.evicted,
            "turns_in_window": len(state.turns),
            "nbytes": state.cache.nbytes,
            "banks": [asdict(bank) for bank in banks],
        }

    def save(self, path: str | Path) -> None:
        """Write the stream to a file, from which `LLM.restore` continues it to the bit.

        Args:
            path: the file; one that is there is replaced in one step.

        Raises:
            StorageError: it cannot be written; what was there before is still there.
        """
        snapshot.write(Path(path), self.snapshot())

    def snapshot(self, mark: Mark | None = None) -> Snapshot:
        """All that the stream holds, or held at a mark, copied. May be called by another thread than the stream's for a mark.

        Raises:
            InputError: a mark of another stream, or one that is gone.
        """
        if mark is None:
            self._settle()
            state = State(self._open(), self._length, tuple(self._turns), self._history, self._logits)
        else:
            state = mark.state_for(self)
        facts = {
            "config": asdict(self._config),
            "length": state.length,
            "turns": list(state.turns),
            "description": self._describe(state),
        }
        arrays = {f"cache.{name}": array for name, array in self._engine.cache_state(state.cache).items()}
        arrays["history"] = state.history.last(1 << 62)
        if state.logits is not None:
            arrays["logits"] = state.logits
        return Snapshot(fingerprint=self.fingerprint, facts=facts, arrays=arrays)

    @classmethod
    def restored(cls, engine: Engine, tokenizer: TextTokenizer, saved: Snapshot, *, pool: Pool) -> Stream:
        """The stream that `saved` was taken from.

        Raises:
            SnapshotError: the parts do not fit together.
            OutOfMemoryError: the cache would not fit.
        """
        try:
            config = make(StreamConfig, dict(saved.facts["config"]))
            stream = cls(engine, tokenizer, config, pool=pool, fingerprint=saved.fingerprint)
            state = {
                name.removeprefix("cache."): array for name, array in saved.arrays.items() if name.startswith("cache.")
            }
            stream._cache = engine.restore_cache(state, stream._config.kv_dtype)
            stream._length = int(saved.facts["length"])
            stream._turns = [int(turn) for turn in saved.facts["turns"]]
            stream._history.append(tokenizer.check_ids(saved.arrays["history"]))
            stream._logits = saved.arrays.get("logits")
        except (KeyError, TypeError, ConfigError, InputError) as error:
            raise SnapshotError(f"the saved stream does not fit together: {error}") from None
        return stream

    def close(self) -> None:
        """Give the cache back. The stream cannot be used afterwards; closing twice does no harm."""
        self._cache = None
        self._logits = None
        self._pool.release(id(self))

    def __del__(self) -> None:
        if pool := getattr(self, "_pool", None):
            pool.release(id(self))

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside ----

    def _open(self) -> Cache:
        if self._cache is None:
            raise ClosedError("the stream has been closed")
        return self._cache

    def _ids(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """What is to be fed, checked; int32 (n,)."""
        self._open()
        if isinstance(text, str):
            ids = self._tokenizer.tokenize(text)
            if self.length == 0 and ids:
                ids = self._tokenizer.with_bos(ids)
            array = np.array(ids, np.int32)
        else:
            array = self._tokenizer.check_ids(text)
        self._require_growth(len(array))
        return array

    def _chunks(self, ids: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Pieces that one pass may take, each with the number of ids before it."""
        done = 0
        while done < len(ids):
            limit = self._retention.limit(self.length)
            size = min(self._engine.chunk_size, len(ids) - done, limit or len(ids))
            yield done, ids[done : done + size]
            done += size

    def _pass(self, ids: np.ndarray, *, want: Want = "last", targets: np.ndarray | None = None) -> Output:
        """One forward pass."""
        segment = self.segment(ids, want=want, targets=targets)
        (output,) = self._engine.forward([segment])
        return self.commit(ids, segment.plan, output)

    def segment(
        self, ids: np.ndarray, *, want: Want = "last", targets: np.ndarray | None = None, attention: bool = False
    ) -> Segment:
        """This stream's share of a forward pass that feeds `ids`, int32 (n,). `commit` must follow the pass.

        Args:
            attention: whether the segment is to be told where its last token looks.
        """
        self._settle()
        cache = self._open()
        plan = self._retention.plan(self._length, len(ids), self._turns)
        into = np.empty(self._engine.spec.vocab_size, np.float32) if want == "last" else None
        if not plan.refeed:
            self._unfinished = (ids, cache.length + len(ids), into)
            looks = np.zeros(plan.seen_by_last, np.float32) if attention else None
            return Segment(cache, ids, plan, want, targets, into, looks)
        if targets is not None:
            targets = np.concatenate([np.full(plan.refeed, -1, np.int32), targets])
        return Segment(cache, np.concatenate([self._history.last(plan.refeed), ids]), plan, want, targets, into)

    def commit(self, ids: np.ndarray, plan: Plan, output: Output) -> Output:
        """Take note that a pass over `ids` has been computed."""
        self._logits = output.logits
        self._consumed(ids)
        return output if output.nll is None else Output(output.logits, output.nll[plan.refeed :])

    def _consumed(self, ids: np.ndarray) -> None:
        self._unfinished = None
        self._length += len(ids)
        self._history.append(ids)
        if self._turns and not self._config.whole_turns:
            self._turns.clear()
        elif self._turns:
            first = self._length - self._config.window
            while len(self._turns) > 1 and self._turns[1] <= first:
                self._turns.pop(0)

    def _settle(self) -> None:
        """A KeyboardInterrupt may strike between a pass and its bookkeeping: then the bookkeeping is done now."""
        if self._unfinished is None:
            return
        ids, length, logits = self._unfinished
        self._unfinished = None
        if self._cache is not None and self._cache.length == length:
            self._logits = logits
            self._consumed(ids)

    def _require_growth(self, count: int) -> None:
        """A dense stream grows: refuse what would not fit, before anything is consumed."""
        if self._config.method == "dense" and (count > 1 or self._length % BANK_TOKENS == 0):
            self._reserve(self._length + count)

    def _reserve(self, tokens: int) -> None:
        """Set aside what a cache of so many tokens can take: the newest banks and the anchors are never quantised."""
        kind, unsealed = self._config.kv_dtype, self._engine.chunk_size + 2 * BANK_TOKENS + self._config.num_anchors
        per_token = self._engine.kv_bytes_per_token(kind)
        whole = self._engine.kv_bytes_per_token("f16") if kind in ("q8", "q4") else 0
        self._pool.reserve(id(self), (tokens + 2 * BANK_TOKENS) * per_token + unsealed * whole)


def _surprise(logits: np.ndarray, token: int) -> float:
    """-log p of a token, in nats."""
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(top + np.log(np.exp(wide - top).sum()) - wide[token])
