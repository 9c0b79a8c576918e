"""Conversations that the server knows, and the places in them from which one can go on. Owned by the engine's thread.

A place is what has been said up to it, as a hash, and a state of a stream: `asked` just before a reply, or `replied` just
after one. The longest known place of a request's history is where it goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from anchorstream.config import StreamConfig
from anchorstream.server.messages import Conversation
from anchorstream.server.store import SessionRecord, TurnRecord
from anchorstream.stream.marks import Mark
from anchorstream.stream.stream import Stream

Kind = Literal["asked", "replied"]
Key = tuple[bytes, Kind]

_TURNS_TO_GO_BACK = 4  # turns of a conversation whose places are remembered


@dataclass(slots=True)
class Turn:
    """A finished turn in memory: its record, and marks before it and before its reply, where they are kept."""

    record: TurnRecord
    before: Mark | None
    asked: Mark | None

    def drop_marks(self) -> None:
        """Give its marks up."""
        for mark in (self.before, self.asked):
            if mark is not None:
                mark.drop()


@dataclass(slots=True, eq=False)
class Session:
    """One conversation.

    Attributes:
        id: its name. named: whether a client has given it.
        config, pinned, start: of its stream, and of its system prompt.
        stream: None while it lies on disk.
        record: what is on disk; None where nothing is kept.
        turns: the last ones.
        num_turns: how many have been finished.
        turns_begun: how many of a user's turns the stream has seen begin.
        busy: whether a request works on its stream.
        replaced: whether a later request went another way from within it, so that it is of little use.
        saving: whether its stream is being written.
        unwritten: whether what is on disk lacks a turn, because the disk failed.
        keys: of its places, in the index.
    """

    id: str
    named: bool
    config: StreamConfig
    pinned: np.ndarray
    start: bytes
    stream: Stream | None = None
    record: SessionRecord | None = None
    turns: deque[Turn] = field(default_factory=deque)
    num_turns: int = 0
    turns_begun: int = 0
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)
    busy: bool = False
    saving: bool = False
    unwritten: bool = False
    replaced: bool = False
    keys: set[Key] = field(default_factory=set)

    @property
    def heads(self) -> tuple[bytes, ...]:
        """Hashes of all that has been said."""
        return self.turns[-1].record.heads if self.turns else (self.start,)

    @property
    def length(self) -> int:
        """Tokens that its stream has consumed."""
        if self.stream is not None:
            return self.stream.length
        return self.record.length if self.record else 0

    def keeps(self, turn: Turn) -> bool:
        """Whether the place before a turn, and that before its reply, could be brought back from disk."""
        return self.record is not None and turn.record.number >= self.record.saved_turns

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep it from being sent to disk while its stream is copied."""
        was, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = was

    @property
    def turn_records(self) -> list[TurnRecord]:
        """What the journal holds."""
        return list(self.record.turns) if self.record else []

    @classmethod
    def from_disk(cls, record: SessionRecord) -> Session:
        """A conversation that lies on disk."""
        session = cls(record.id, record.named, record.config, record.pinned, record.start)
        session.record = record
        session.created, session.used = record.created, record.used
        session.num_turns = record.saved_turns + len(record.turns)
        session.turns_begun = record.saved_begun + sum(len(turn.begins) for turn in record.turns)
        session.forget_marks()
        return session

    def forget_marks(self) -> None:
        """Its stream is not in memory: its turns are what the journal holds."""
        for turn in self.turns:
            turn.drop_marks()
        self.turns.clear()
        self.turns.extend(Turn(record, None, None) for record in self.turn_records)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes on.

    Attributes:
        session: whose.
        kind: before or after a reply.
        known: how many of the request's messages the stream has consumed there.
        turn: the turn before or in which it is; None: the conversation's end.
        mark: where the stream was there, if it is not its end.
        from_disk: whether it has to be brought back.
    """

    session: Session
    kind: Kind
    known: int
    turn: Turn | None
    mark: Mark | None = None
    from_disk: bool = False


class Sessions:
    """All conversations, and an index of their places."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._places: dict[Key, dict[str, Turn | None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, identity: str) -> Session | None:
        """The conversation of that name."""
        return self._sessions.get(identity)

    def add(self, session: Session) -> None:
        """Take up a conversation."""
        self._sessions[session.id] = session
        self.index(session)

    def remove(self, session: Session) -> None:
        """Forget a conversation."""
        self._forget_places(session)
        self._sessions.pop(session.id, None)

    def index(self, session: Session) -> None:
        """Note anew from which places of a conversation one can go on."""
        self._forget_places(session)
        while len(session.turns) > _TURNS_TO_GO_BACK:
            session.turns.popleft().drop_marks()
        for turn in session.turns:
            if turn.before is not None or session.keeps(turn):
                self._note(session, (turn.record.before, "replied"), turn)
            if turn.asked is not None or session.keeps(turn):
                self._note(session, (turn.record.asked, "asked"), turn)
        for head in session.heads if session.turns else ():
            self._note(session, (head, "replied"), None)

    def find(self, conversation: Conversation, *, only: Session | None = None) -> Place | None:
        """The longest known place of a conversation.

        Args:
            only: look in this one alone.
        """
        said, keys = conversation.said, conversation.keys
        for known in range(len(said), 0, -1):
            key = keys[known - 1]
            last = known == len(said)
            if said[known - 1].role == "user":
                place = self._at((key, "asked"), known, only) if last or said[known].role == "assistant" else None
            else:
                place = None if last or said[known].role != "user" else self._at((key, "replied"), known, only)
            if place is not None:
                return place
        return None

    def idle(self) -> list[Session]:
        """Conversations in memory that no request works on: those of least use first."""
        return [each for each in self.oldest() if each.stream is not None]

    def oldest(self) -> list[Session]:
        """All that no request works on, the least recently used first."""
        found = [each for each in self._sessions.values() if not each.busy and not each.saving]
        return sorted(found, key=lambda each: (not each.replaced, each.used))

    def _at(self, key: Key, known: int, only: Session | None) -> Place | None:
        found = self._places.get(key)
        if not found:
            return None
        for identity in reversed(found):
            session, turn = self._sessions[identity], found[identity]
            if only is not None and session is not only:
                continue
            if session.busy and only is None and turn is None:
                continue  # its end is moving
            mark = None if turn is None else turn.asked if key[1] == "asked" else turn.before
            if session.stream is None or (turn is not None and (mark is None or not mark.alive)):
                if session.saving or (turn is not None and not session.keeps(turn)):
                    continue
                return Place(session, key[1], known, turn, None, from_disk=True)
            return Place(session, key[1], known, turn, mark)
        return None

    def _note(self, session: Session, key: Key, turn: Turn | None) -> None:
        places = self._places.setdefault(key, {})
        places.pop(session.id, None)
        places[session.id] = turn
        session.keys.add(key)

    def _forget_places(self, session: Session) -> None:
        for key in session.keys:
            if places := self._places.get(key):
                places.pop(session.id, None)
                if not places:
                    del self._places[key]
        session.keys.clear()
