"""A prefix: text that is computed once and begins any number of streams, which share its banks as pinned anchors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from anchorstream.config import StreamConfig, make
from anchorstream.errors import ConfigError
from anchorstream.stream.stream import Stream

_MOST = 8  # system prompts whose banks are kept for the next chat


class Prefix:
    """Made by `LLM.prefix`. Streams that begin with it cost nothing until they go on.

    Args:
        stream: a stream that holds just the prefix, all of it pinned.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def num_tokens(self) -> int:
        """Tokens of the prefix."""
        return self._stream.length

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, once."""
        return self._stream.nbytes

    def open(self, options: dict[str, Any]) -> Stream:
        """A stream that has consumed the prefix.

        Args:
            options: fields of StreamConfig; `num_pinned` is the prefix's.

        Raises:
            ConfigError: options that do not go with the prefix.
        """
        pinned = self._stream.config
        config = make(StreamConfig, {"kv_dtype": pinned.kv_dtype, **options, "num_pinned": self.num_tokens})
        if config.kv_dtype != pinned.kv_dtype:
            raise ConfigError(f"the prefix was computed for kv_dtype {pinned.kv_dtype!r}, not {config.kv_dtype!r}")
        if config.num_sinks > self.num_tokens:
            raise ConfigError(f"num_sinks {config.num_sinks} is more than the {self.num_tokens} tokens of the prefix")
        return self._stream.fork_as(config)

    def close(self) -> None:
        """Let go of it; streams that began with it go on."""
        self._stream.close()


class Prefixes:
    """The system prompts that were computed last, for the next chats that begin with them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[tuple[int, ...], str], Prefix] = OrderedDict()

    def open(self, config: StreamConfig, ids: list[int]) -> Stream | None:
        """A stream that has consumed `ids`, which it pins; None if they have not been computed.

        Raises:
            OutOfMemoryError: its cache would not fit.
        """
        key = (tuple(ids), config.kv_dtype)
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key].open(asdict(config))

    def keep(self, stream: Stream, ids: list[int]) -> None:
        """Keep `ids`, which are all that `stream` has consumed and are pinned."""
        config = stream.config
        bare = config.with_(num_sinks=0, num_pinned=len(ids), cache_size=len(ids) + 1, whole_turns=False)
        self._kept[tuple(ids), config.kv_dtype] = Prefix(stream.fork_as(bare))
        if len(self._kept) > _MOST:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Let go of the one that was used longest ago, for its memory; False where there is none."""
        if not self._kept:
            return False
        self._kept.popitem(last=False)[1].close()
        return True

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return sum(prefix.nbytes for prefix in self._kept.values())
