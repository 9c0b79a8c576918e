"""A prefix: text that is computed once and begins any number of streams, which share its banks as pinned anchors."""

from __future__ import annotations

from typing import Any

from anchorstream.config import StreamConfig, make
from anchorstream.errors import ConfigError
from anchorstream.stream.stream import Stream


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
