"""One request on its way through the engine's thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorstream.config import SamplingConfig, StreamConfig
from anchorstream.server.messages import Conversation
from anchorstream.server.outbox import Outbox
from anchorstream.server.sessions import Place, Session
from anchorstream.server.settings import Overflow
from anchorstream.server.store import SessionRecord
from anchorstream.stream.generation import Constraint, Generation, Limits
from anchorstream.stream.marks import Mark
from anchorstream.stream.stream import Stream

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked of the engine.

    Attributes:
        sampling, limits: how to reply.
        grammar: what the replies must follow: a schema, {} for any object, or None.
        choices: replies to make.
        logprobs: likeliest tokens to report with each, 0 for the chosen one alone, None for nothing.
        echo: whether the prompt's own probabilities are wanted.
        overflow: what happens to a conversation longer than the cache.
    """

    sampling: SamplingConfig
    limits: Limits
    grammar: dict[str, Any] | None = None
    choices: int = 1
    logprobs: int | None = None
    echo: bool = False
    overflow: Overflow = "stream"


@dataclass(slots=True)
class Choice:
    """One reply in the making."""

    number: int
    stream: Stream
    generation: Generation
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reason: str | None = None
    last_time: float = 0.0


@dataclass(slots=True)
class Draft:
    """What a conversation will be like that begins, or that leaves another one within it.

    Attributes:
        config, pinned, start: of its stream and its system prompt.
        number: turns that it has already.
        begun: turns of a user that its stream has seen begin.
        record: what is on disk of it up to where it leaves, or None: nothing is kept.
        needs_file: whether that lacks the stream's file.
    """

    config: StreamConfig
    pinned: np.ndarray
    start: bytes
    number: int = 0
    begun: int = 0
    record: SessionRecord | None = None
    needs_file: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A request: what it asks, and how far it has come.

    Attributes:
        wish, outbox: what is asked, and who is told.
        request: a chat's messages; None for a text. conversation: the same, as the continuation of what is known.
        session_name: of a chat whose client names it.
        prompt: ids to be fed: of the system prompt, of what a journal brings back, and of what is new.
        begins: places in the prompt at which turns begin.
        first_new: where the new ids begin. pinned_end: where a system prompt ends that is worth keeping; 0: none.
        refed: how many ids come from a journal.
        fed: how many have been fed.
        known: how many of the messages the stream had consumed before.
        place: where the chat goes on, or None: at its end, or it begins.
        session: the conversation that it will be a turn of; None for a text.
        took_head: whether it goes on at that conversation's end, with its stream. from_disk: whether that was on disk.
        draft: what the conversation will be like, if it does not go on at its end.
        stream: the stream; start_length, start_evicted(_turns), request_index: how long it was and what it had lost when the
            job began, and where the request to be answered begins in it.
        before, asked: marks of it, before what is new and before the reply.
    """

    wish: Wish
    outbox: Outbox
    request: Conversation | None = None
    conversation: Conversation | None = None
    session_name: str | None = None
    prompt: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    number: int = field(default_factory=lambda: next(_numbers))
    begins: Sequence[int] = ()
    first_new: int = 0
    pinned_end: int = 0
    refed: int = 0
    fed: int = 0
    known: int = 0
    place: Place | None = None
    session: Session | None = None
    took_head: bool = False
    from_disk: bool = False
    draft: Draft | None = None
    stream: Stream | None = None
    start_length: int = 0
    start_evicted: int = 0
    start_evicted_turns: int = 0
    request_index: int = 0
    before: Mark | None = None
    asked: Mark | None = None
    choices: list[Choice] = field(default_factory=list)
    constraints: list[Constraint | None] = field(default_factory=list)
    echoed: list[Any] = field(default_factory=list)
    cancelled: bool = False
    submitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    read: float = 0.0
    ended: float = 0.0

    def cancel(self) -> None:
        """Its client has gone. May be called by any thread; the engine's stops at its next step."""
        self.cancelled = True

    @property
    def next_cut(self) -> int:
        """Where the next slice of the prompt must end at the latest, because something is to be done there."""
        return min((cut for cut in (self.pinned_end, self.first_new) if cut > self.fed), default=len(self.prompt))

    @property
    def unread(self) -> int:
        """Ids of the prompt that are still to be fed."""
        return len(self.prompt) - self.fed
