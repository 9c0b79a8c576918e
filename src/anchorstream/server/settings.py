"""Every knob of the server, each with its one default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from anchorstream.config import StreamConfig, choice
from anchorstream.errors import ConfigError

Overflow = Literal["stream", "error"]
OVERFLOWS: tuple[str, ...] = get_args(Overflow)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server runs.

    Attributes:
        host, port: where it listens; the loopback address is reached from this machine alone.
        api_key: what clients must send as bearer token; None: nothing.
        folder: where sessions are kept over a restart; None: in memory alone.
        stream: how each conversation keeps its cache.
        overflow: what happens to a conversation longer than the cache: `stream` goes on, `error` refuses.
        parallel: conversations that are computed at the same time.
        queue: requests that may wait beside them; more are refused with 429.
        cache_bytes: what all conversations in memory may take together; None: half of what the machine has free.
        max_sessions: conversations kept on disk; the least recently used go first.
        max_tokens: tokens of a reply, where a request does not say.
        max_body_bytes: size of a request.
        max_messages: messages of a request.
        cors_origins: web pages of other hosts that may use the server; none by default.
        heartbeat: seconds between comments to a client that waits for its prompt to be read.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = field(default=None, repr=False)
    folder: Path | None = None
    stream: StreamConfig = field(default_factory=lambda: StreamConfig(whole_turns=True))
    overflow: Overflow = "stream"
    parallel: int = 8
    queue: int = 64
    cache_bytes: int | None = None
    max_sessions: int = 1000
    max_tokens: int = 512
    max_body_bytes: int = 16 << 20
    max_messages: int = 20_000
    cors_origins: tuple[str, ...] = ()
    heartbeat: float = 5.0

    def __post_init__(self) -> None:
        choice("ServerConfig", "overflow", self.overflow, OVERFLOWS)
        for name, least in (
            ("port", 0),
            ("parallel", 1),
            ("queue", 0),
            ("max_sessions", 1),
            ("max_tokens", 1),
            ("max_body_bytes", 1024),
            ("max_messages", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.port > 65535:
            raise ConfigError(f"port must be at most 65535, not {self.port}")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty: leave it out, or give one")
        if self.stream.method != "streaming":
            raise ConfigError(f"the server needs method 'streaming', not {self.stream.method!r}")
        if not self.heartbeat > 0:
            raise ConfigError(f"heartbeat must be more than 0 seconds, not {self.heartbeat!r}")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("127.0.0.1", "::1", "localhost")
