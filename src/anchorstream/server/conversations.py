"""From a request's messages to the stream that has consumed them, and back: a conversation whose beginning is gone is recognised.

Owned by the engine's thread, but for what `locate` returns: that is for a helper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import numpy as np

from anchorstream.api import LLM
from anchorstream.errors import OutOfMemoryError
from anchorstream.server import facts
from anchorstream.server.errors import ApiError, bad
from anchorstream.server.job import Draft, Job
from anchorstream.server.keeper import Keeper, new_name, new_record
from anchorstream.server.metrics import Metrics
from anchorstream.server.preparing import Prepared, UnrestorableError, preparation
from anchorstream.server.sessions import Place, Session, Turn
from anchorstream.server.settings import ServerConfig
from anchorstream.server.store import SessionRecord
from anchorstream.server.turn_record import turn_record
from anchorstream.stream.chat import pinning
from anchorstream.stream.stream import Stream
from anchorstream.text.turns import TurnTexts

_NOTHING = np.empty(0, np.int32)
_log = logging.getLogger("anchorstream.server")


class Conversations:
    """See the module."""

    def __init__(self, llm: LLM, config: ServerConfig, keeper: Keeper, metrics: Metrics) -> None:
        self._llm = llm
        self._config = config
        self._keeper = keeper
        self._sessions = keeper.sessions
        self._metrics = metrics
        self._texts = lru_cache(64)(lambda system: TurnTexts(llm.chat_template, system))

    # ---- a request comes ----

    def is_busy(self, name: str) -> bool:
        """Whether a request works on the conversation of that name."""
        session = self._sessions.get(name)
        return session is not None and session.busy

    def locate(self, job: Job) -> Callable[[], Prepared]:
        """Find where a job goes on, and hold that place.

        Returns:
            What a helper is to do next.

        Raises:
            ApiError: a system prompt that is not the conversation's.
            OutOfMemoryError: no room for a copy.
        """
        asked = job.conversation = job.request
        assert asked is not None
        session = self._sessions.get(job.session_name) if job.session_name else None
        place: Place | None = None
        source: Session | None = None  # whose stream has consumed the beginning
        if session is not None and session.num_turns and not asked.has_history:
            if asked.system is not None and asked.start != session.start:
                raise bad(f"session {session.id!r} has another system prompt, which is pinned", "messages")
            job.conversation, source = asked.appended_to(session.heads[0]), session
        elif place := self._sessions.find(asked, only=session if session and session.num_turns else None):
            source, job.known, job.place = place.session, place.known, place
        turn = place.turn if place else None
        own = source is session if job.session_name else source is not None and not source.named
        job.took_head = source is not None and turn is None and own and not source.busy
        if job.took_head:
            assert source is not None
            session = source
        elif session is None:
            session = Session(
                job.session_name or new_name(), bool(job.session_name), self._config.stream, _NOTHING, b""
            )
            if job.session_name:
                self._sessions.add(session)
        job.session, session.busy = session, True
        job.from_disk = place.from_disk if place else source is not None and source.stream is None
        if source is None:
            job.draft = Draft(self._config.stream, _NOTHING, asked.start)
        elif job.took_head:
            job.stream = source.stream
        else:
            try:
                self._leave(job, source, turn)
            except OutOfMemoryError:
                if source.busy or source.record is None:
                    raise
                self.roll_back(job)
                self._keeper.unload(source)  # there is room for one of the two: the copy comes from disk
                return self.locate(job)
        return preparation(job, source, turn, self._llm.tokenizer, self._texts, self._keeper.store)

    def _leave(self, job: Job, source: Session, turn: Turn | None) -> None:
        """Go on from within another conversation, or from its end, without touching it."""
        job.draft = draft = Draft(source.config, source.pinned, source.start, source.num_turns, source.turns_begun)
        kind = job.place.kind if job.place else "replied"
        if turn is not None:
            gone = [each for each in source.turns if each.record.number >= turn.record.number + (kind == "asked")]
            draft.number = turn.record.number
            draft.begun -= sum(len(each.record.begins) for each in gone)
            source.replaced = not source.named
        self._keeper.branch(draft, source, turn)
        if job.from_disk:
            if draft.record is None or draft.needs_file:
                raise ApiError(503, "the conversation is being written: try again", code="session_busy", retry_after=1)
            return
        stream, mark = source.stream, job.place.mark if job.place else None
        assert stream is not None
        with source.held():
            job.stream = self._keeper.with_room(stream.fork if mark is None else lambda: stream.fork_at(mark))

    def begin(self, job: Job, found: Prepared | None) -> None:
        """Open a job's stream: all is ready for reading its prompt.

        Raises:
            ApiError: a conversation longer than the cache, where that is refused.
            ConfigError: a system prompt that cannot be pinned.
            OutOfMemoryError: no room for it.
        """
        with_room = self._keeper.with_room
        if found is None:  # a text
            job.stream = with_room(lambda: self._llm.open(self._config.stream.with_(whole_turns=False)))
            self._check_length(job)
            return
        session = job.session
        assert session is not None
        ahead = _NOTHING
        if job.stream is None and found.saved is not None:
            saved = found.saved
            job.stream = with_room(lambda: self._llm.restored(saved))
        elif job.stream is None:
            config = session.config
            if job.draft is not None:
                config = job.draft.config if job.from_disk else pinning(self._config.stream, len(found.pinned))
                job.draft.config, job.draft.pinned = config, found.pinned
            ids = found.pinned.tolist()
            shared = len(ids) >= max(config.num_sinks, 1)
            job.stream = with_room(lambda: self._llm.prefixes.open(config, ids)) if shared else None
            if job.stream is None:
                job.stream = with_room(lambda: self._llm.open(config))
                ahead, job.pinned_end = found.pinned, len(ids) if shared else 0
        if job.from_disk:
            self._metrics.restored("file" if found.saved is not None else "journal")
        if job.took_head:
            session.stream = job.stream
        job.prompt = np.concatenate([ahead, found.refed, found.ids])
        job.refed, job.first_new = len(found.refed), len(ahead) + len(found.refed)
        job.begins = [len(ahead) + begin for begin in found.refed_begins]
        job.begins += [job.first_new + begin for begin in found.begins]
        stream = job.stream
        job.start_length = stream.length
        job.start_evicted = stream.held.evicted
        begun = job.draft.begun if job.draft is not None else session.turns_begun
        job.start_evicted_turns = facts.evicted_turns(stream, begun - len(found.refed_begins))
        job.request_index = stream.length + (job.begins[-1] if job.begins else 0)
        if not found.begins and job.place is not None and job.place.turn is not None:  # an old request is answered anew
            earlier = job.place.turn.record
            if not job.from_disk:
                job.request_index = stream.length - len(earlier.prompt) + (earlier.begins[-1] if earlier.begins else 0)
        self._check_length(job)
        if not job.first_new:
            self.reached(job)
        for begin in job.begins:
            if begin < job.first_new:
                stream.begin_turn(begin)
        self._metrics.prompt(job.start_length, len(job.prompt))

    def _check_length(self, job: Job) -> None:
        """Refuse what is longer than the cache, where the request wants that."""
        assert job.stream is not None
        limit, total = self._config.stream.cache_size, job.stream.length + len(job.prompt)
        if job.wish.overflow != "error":
            return
        if total >= limit:
            raise bad(
                f"the window is {limit} tokens, and the conversation takes {total}: shorten it, or set overflow to 'stream'",
                "messages" if job.conversation else "prompt",
                "context_length_exceeded",
            )
        limits = job.wish.limits
        most = limit - total if limits.max_tokens is None else min(limits.max_tokens, limit - total)
        job.wish = replace(job.wish, limits=replace(limits, max_tokens=most))

    def reached(self, job: Job) -> None:
        """A job's prompt has been fed up to one of its cuts."""
        assert job.stream is not None
        if job.pinned_end and job.fed == job.pinned_end:
            with suppress(OutOfMemoryError):  # it only saves time
                self._llm.prefixes.keep(job.stream, job.prompt[: job.pinned_end].tolist())
        if job.fed == job.first_new and job.session is not None and job.before is None:
            job.before = self._keeper.with_room(job.stream.mark)
            for begin in job.begins:
                if begin >= job.first_new:
                    job.stream.begin_turn(begin - job.fed)

    def asked(self, job: Job) -> None:
        """A job's prompt has been read."""
        if job.session is not None:
            assert job.stream is not None
            job.asked = self._keeper.with_room(job.stream.mark)

    def copies(self, stream: Stream, count: int) -> list[Stream]:
        """Forks, for further replies to the same request.

        Raises:
            OutOfMemoryError: no room for them; none has been made.
        """
        made: list[Stream] = []
        try:
            for _ in range(count):
                made.append(self._keeper.with_room(stream.fork))
        except OutOfMemoryError:
            for each in made:
                each.close()
            raise
        return made

    def give_up(self, job: Job, error: UnrestorableError) -> ApiError | None:
        """A conversation cannot be brought back: forget it. None where the job, rolled back, can begin anew with what was sent."""
        self._metrics.restored("failed")
        _log.error("a conversation cannot be brought back: %s", error)
        if error.session is not None:
            self._keeper.delete(error.session)
        if job.request is None or (job.session_name is not None and not job.request.has_history):
            message = (
                "the conversation's file is damaged or gone, and its beginning was not sent: the session has ended"
            )
            return ApiError(410, message, code="session_lost", param="session")
        return None

    # ---- a request ends ----

    def roll_back(self, job: Job) -> None:
        """As if the job had never come."""
        session, stream, draft = job.session, job.stream, job.draft
        for choice in job.choices[1:]:
            choice.stream.close()
        if session is not None and job.took_head:
            if stream is not None and not job.from_disk and job.before is not None and job.before.alive:
                stream.rewind(job.before)
            elif stream is not None and (job.from_disk or job.before is not None):
                self._keeper.unload(session)
        elif stream is not None:
            stream.close()
        if draft is not None and draft.record is not None and draft.record.file and self._keeper.store:
            self._keeper.store.unlink(draft.record.file)
        for mark in (job.before, job.asked):
            if mark is not None:
                mark.drop()
        job.stream = job.before = job.asked = job.draft = job.place = job.session = None
        job.choices.clear()
        job.fed = job.known = job.refed = job.first_new = job.pinned_end = 0
        if session is None:
            return
        session.busy = False
        if session.num_turns:
            self._sessions.index(session)
        else:
            self._sessions.remove(session)

    def keep(self, job: Job, tell: Callable[[BaseException | None], None]) -> None:
        """Make a job's replies a turn of its conversation, on disk first. `tell` is called when that is done, maybe by a helper."""
        session, stream, draft = job.session, job.stream, job.draft
        assert stream is not None
        if session is None:
            for choice in job.choices:
                choice.stream.close()
            tell(None)
            return
        self._metrics.turns.inc()
        begun = facts.turns_begun(job)
        record = session.record
        needs_file = False
        if draft is not None:
            if session.stream is not None:  # a named conversation goes another way
                session.stream.close()
                session.forget_marks()
            session.turns.clear()
            session.stream, session.config, session.pinned, session.start = (
                stream,
                draft.config,
                draft.pinned,
                draft.start,
            )
            record, needs_file = draft.record, draft.needs_file
            if job.place is None and self._keeper.store is not None:
                record = new_record(session.id, session.named, draft)
            if record is not None:
                record.id, record.named = session.id, session.named
            session.record = record
            session.num_turns = draft.number
        turn = turn_record(job, session.num_turns)
        again = job.place is not None and job.place.kind == "asked"
        session.turns.append(Turn(turn, None if again else job.before, job.asked))
        session.num_turns += 1
        session.turns_begun, session.used, session.replaced = begun, time.time(), False
        others = [self._other(job, session, number) for number in range(1, len(job.choices))]
        if record is not None:
            record.turns = [*record.turns, turn]
        session.busy = False
        if self._sessions.get(session.id) is None:
            self._sessions.add(session)
        self._sessions.index(session)
        if record is None:
            tell(None)
        else:
            file_from = (stream, job.before) if needs_file and job.before is not None else None
            written = [other for other in others if other is not None]
            whole = draft is not None or session.unwritten
            self._keeper.write_turn(session, None if whole else turn, file_from, written, tell)
            self._keeper.save_soon(session)
        self._keeper.limit()

    def _other(self, job: Job, session: Session, choice: int) -> SessionRecord | None:
        """Another reply to the same request becomes a conversation of its own, unless a client has named this one."""
        stream, base, store = job.choices[choice].stream, session.record, self._keeper.store
        if session.named or (job.draft is not None and job.draft.needs_file):
            stream.close()
            return None
        other = Session(new_name(), False, session.config, session.pinned, session.start)
        turn = turn_record(job, session.num_turns - 1, choice)
        other.stream, other.num_turns, other.turns_begun = stream, session.num_turns, session.turns_begun
        other.turns.append(Turn(turn, None, None))
        if base is not None and store is not None:
            file = store.link(base.file) if base.file else None
            if not base.file or file:
                other.record = replace(base, id=other.id, named=False, file=file, turns=[*base.turns, turn])
        self._sessions.add(other)
        return other.record
