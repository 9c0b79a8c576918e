"""One reply in the making: which token comes next, which text may be shown, when to stop. Touches no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from anchorstream.errors import ConfigError
from anchorstream.stream.sampling import Sampler
from anchorstream.text.tokenizer import IncrementalText, TextTokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a reply ends.

    Attributes:
        max_tokens: generated tokens at most; None: no limit. It counts what is generated, wherever the cache stands.
        stop: texts that end the reply and are not shown.
        ignore_end: go on over end-of-sequence tokens.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_end: bool = False

    @classmethod
    def make(cls, max_tokens: int | None, stop: str | Sequence[str] = (), ignore_end: bool = False) -> Limits:
        """Checked; `max_tokens` -1 means no limit, and `stop` may be one text.

        Raises:
            ConfigError: a limit below -1, or an empty stop text.
        """
        whole = isinstance(max_tokens, int) and not isinstance(max_tokens, bool)
        if max_tokens is not None and (not whole or max_tokens < -1):
            raise ConfigError(f"max_tokens must be a whole number, -1 or None for no limit, not {max_tokens!r}")
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
        for text in texts:
            if not isinstance(text, str) or not text:
                raise ConfigError(f"a stop text must not be empty, and must be text: {text!r}")
        return cls(max_tokens=None if max_tokens == -1 else max_tokens, stop=texts, ignore_end=ignore_end)


class Constraint(Protocol):
    """A grammar that a reply must follow."""

    def allowed(self) -> np.ndarray:
        """Which tokens may come next, bool (vocab,)."""
        ...

    def accept(self, token: int) -> bool:
        """Take note that `token` comes; whether the reply is complete with it and cannot go on."""
        ...


class Generation:
    """The state of one reply.

    Use: while not `finished`: `choose` a token from the stream's logits; feed it, unless it is None; show what `push`
    gives. `finish_reason` says why it ended.
    """

    def __init__(
        self, tokenizer: TextTokenizer, sampler: Sampler, limits: Limits, constraint: Constraint | None = None
    ) -> None:
        self._sampler = sampler
        self._constraint = constraint
        self._complete = False
        self._limits = limits
        self._end_ids = frozenset() if limits.ignore_end else tokenizer.end_ids
        self._text = IncrementalText(tokenizer)
        self._held = ""
        self.count = 0
        self.finish_reason: FinishReason | None = "length" if limits.max_tokens == 0 else None
        self.end_token: int | None = None

    @property
    def finished(self) -> bool:
        """Whether the reply has ended."""
        return self.finish_reason is not None

    @property
    def looks_back(self) -> int:
        """How many of the stream's last tokens `choose` wants to see."""
        return self._sampler.looks_back

    def choose(self, logits: np.ndarray, recent: np.ndarray) -> int | None:
        """The next token, or None where the model has ended its reply (`end_token` is then the token that said so)."""
        if self._complete:
            self.finish_reason = "stop"
            return None
        token = self._sampler.choose(logits, recent, self._constraint.allowed() if self._constraint else None)
        if token in self._end_ids:
            self.finish_reason, self.end_token = "stop", token
            return None
        if self._constraint:
            self._complete = self._constraint.accept(token)
        self.count += 1
        return token

    def push(self, token: int | None) -> str:
        """The text that may be shown after `token` (None: at the end). Text that may begin a stop text is held back."""
        if token is not None:
            self._held += self._text.push(token)
        stop_at = min((at for stop in self._limits.stop if (at := self._held.find(stop)) >= 0), default=-1)
        if stop_at >= 0:
            shown, self._held = self._held[:stop_at], ""
            self.finish_reason = "stop"
            return shown
        if token is not None and self.count == self._limits.max_tokens:
            self.finish_reason = "length"
        keep = 0 if self.finished else self._pending()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def _pending(self) -> int:
        """Characters at the end of the held text that may begin a stop text."""
        for length in range(min(len(self._held), max(map(len, self._limits.stop), default=1) - 1), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._limits.stop):
                return length
        return 0
