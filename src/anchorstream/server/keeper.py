"""Where conversations are: in memory, on disk, or gone. Owned by the engine's thread; a helper reads and writes files."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from anchorstream.errors import OutOfMemoryError
from anchorstream.server.errors import ApiError
from anchorstream.server.job import Draft
from anchorstream.server.metrics import Metrics
from anchorstream.server.sessions import Session, Sessions, Turn
from anchorstream.server.store import SessionRecord, Store, TurnRecord
from anchorstream.stream.marks import Mark
from anchorstream.stream.prefix import Prefixes
from anchorstream.stream.stream import Stream

T = TypeVar("T")
_log = logging.getLogger("anchorstream.server")
_JOURNAL = 512  # tokens that may be read again when a conversation comes back from disk, its last turn apart


class Keeper:
    """See the module.

    Args:
        store: the folder; None: nothing is kept on disk.
        prefixes: system prompts that are kept for others, and give way last.
        max_sessions: conversations that are kept.
        metrics: what is counted.

    Attributes:
        sessions: all that are known.
        post: hands work to the engine's thread; set by the scheduler.
    """

    def __init__(self, store: Store | None, prefixes: Prefixes, max_sessions: int, metrics: Metrics) -> None:
        self.store = store
        self.sessions = Sessions()
        self.post: Callable[[Callable[[], None]], None] = lambda work: work()
        self._prefixes = prefixes
        self._max_sessions = max_sessions
        self._metrics = metrics
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")  # one: writes keep their order
        for record in store.records() if store else ():
            self.sessions.add(Session.from_disk(record))

    # ---- memory ----

    def with_room(self, make: Callable[[], T]) -> T:
        """Make something that takes memory, sending idle conversations to disk until there is room.

        Raises:
            OutOfMemoryError: even so there is none.
        """
        while True:
            try:
                return make()
            except OutOfMemoryError:
                if idle := self.sessions.idle():
                    self.unload(idle[0])
                elif not self._prefixes.drop_oldest():
                    raise

    def unload(self, session: Session) -> None:
        """Drop a conversation's stream. Its file and its journal bring it back; where nothing is kept, it is gone."""
        if session.stream is not None:
            session.stream.close()
            session.stream = None
        session.forget_marks()
        if session.record is None:
            self.sessions.remove(session)
            return
        self.sessions.index(session)
        self._metrics.unloaded.inc()

    # ---- disk ----

    def write_turn(
        self,
        session: Session,
        turn: TurnRecord | None,
        file_from: tuple[Stream, Mark] | None,
        others: list[SessionRecord],
        tell: Callable[[BaseException | None], None],
    ) -> None:
        """Journal a turn, or a whole conversation anew, and then tell.

        Args:
            session: the conversation.
            turn: the new turn; None: all of it is new.
            file_from: a stream and the mark from which its file is to be written first, if it needs one.
            others: further conversations that are new.
            tell: called by the helper with what went wrong, or None.
        """
        store, record = self.store, session.record
        assert store is not None
        assert record is not None
        session.unwritten = False

        def write() -> None:
            failure: BaseException | None = None
            try:
                if file_from is not None:
                    stream, mark = file_from
                    saved = stream.snapshot(mark)
                    record.file, record.saved_length = store.write(saved), int(saved.facts["length"])
                if turn is None:
                    store.put(record)
                else:
                    store.add_turn(record, turn)
                for other in others:
                    store.put(other)
            except Exception as error:
                failure = error
                session.unwritten = True  # the next turn writes all
            tell(failure)

        self._disk.submit(write)

    def save_soon(self, session: Session) -> None:
        """Write a stream's file if its journal has become long. It holds the stream as it was before its last turn."""
        record, store, stream = session.record, self.store, session.stream
        if record is None or store is None or stream is None or session.saving or len(record.turns) < 2:
            return
        if sum(turn.num_tokens for turn in record.turns[:-1]) <= _JOURNAL:
            return
        mark = session.turns[-1].before
        if mark is None or not mark.alive:
            return
        turns = record.saved_turns + len(record.turns) - 1
        begun = session.turns_begun - len(record.turns[-1].begins)
        session.saving = True

        def write() -> None:
            name, length = None, 0
            try:
                saved = stream.snapshot(mark)
                length = int(saved.facts["length"])
                name = store.write(saved)
                store.replace_file(record.id, name, turns, length, begun)
            except Exception as error:
                _log.error("a conversation's stream could not be written: %s", error)
                store.unlink(name)
                name = None
            self.post(lambda: note(name, length))

        def note(name: str | None, length: int) -> None:
            session.saving = False
            if name is not None and session.record is record:
                record.turns = record.turns[turns - record.saved_turns :]
                record.file, record.saved_turns, record.saved_length, record.saved_begun = name, turns, length, begun

        self._disk.submit(write)

    def branch(self, draft: Draft, source: Session, turn: Turn | None) -> None:
        """Note in a draft what is on disk of a conversation up to where another one leaves it."""
        record = source.record
        if record is None or self.store is None:
            return
        own = new_record("", False, draft)
        number = turn.record.number if turn is not None else record.saved_turns + len(record.turns)
        file = self.store.link(record.file) if record.file else None
        if number < record.saved_turns or (record.file and not file):  # the file holds more than that, or is going
            own.saved_turns, own.saved_begun, draft.needs_file = number, draft.begun, True
            if file:
                self.store.unlink(file)
        else:
            own.file, own.turns = file, turns_up_to(record, turn)
            own.saved_turns, own.saved_length, own.saved_begun = (
                record.saved_turns,
                record.saved_length,
                record.saved_begun,
            )
        draft.record = own

    def limit(self) -> None:
        """Forget the conversations that were used least, where there are too many."""
        excess = len(self.sessions) - self._max_sessions
        for session in self.sessions.oldest()[:excess] if excess > 0 else ():
            self.delete(session)

    def delete(self, session: Session) -> None:
        """Forget a conversation."""
        if session.stream is not None:
            session.stream.close()
            session.stream = None
        self.sessions.remove(session)
        if session.record is not None and self.store is not None:
            self._disk.submit(self.store.delete, session.id)

    def fork(self, session: Session, identity: str | None) -> Session:
        """A copy of a conversation, under a name of its own.

        Raises:
            ApiError: a name that is taken, or a conversation that is being answered.
        """
        name = identity or new_name()
        if self.sessions.get(name) is not None:
            raise ApiError(409, f"there is a session {name!r} already", code="session_exists", param="id")
        if session.busy or session.saving:
            raise ApiError(409, f"session {session.id!r} is busy: try again", code="session_busy", retry_after=1)
        copy = Session(name, True, session.config, session.pinned, session.start)
        copy.num_turns, copy.turns_begun = session.num_turns, session.turns_begun
        copy.turns.extend(Turn(turn.record, None, None) for turn in session.turns)
        if session.stream is not None:
            try:
                with session.held():
                    copy.stream = self.with_room(session.stream.fork)
            except OutOfMemoryError:
                if session.record is None:
                    raise
                self.unload(session)  # both lie on disk then
        if session.record is not None and self.store is not None:
            copy.record = replace(session.record, id=name, named=True, turns=session.turn_records)
            if copy.record.file:
                copy.record.file = self.store.link(copy.record.file)
            self._disk.submit(self.store.put, copy.record)
        self.sessions.add(copy)
        return copy

    def close(self) -> None:
        """Wait until all is written."""
        self._disk.shutdown(wait=True)
        if self.store is not None:
            self.store.close()


def new_name() -> str:
    """A name for a conversation that no client has named."""
    return f"conv-{secrets.token_hex(8)}"


def new_record(name: str, named: bool, draft: Draft) -> SessionRecord:
    """What is on disk of a conversation that is new."""
    now = time.time()
    return SessionRecord(
        id=name, named=named, created=now, used=now, pinned=draft.pinned, start=draft.start, config=draft.config
    )


def turns_up_to(record: SessionRecord, turn: Turn | None) -> list[TurnRecord]:
    """The journal before a turn; None: all of it."""
    return [each for each in record.turns if turn is None or each.number < turn.record.number]
