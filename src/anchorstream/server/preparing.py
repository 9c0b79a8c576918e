"""What a helper makes ready before a chat's stream can be opened: texts cut into tokens, a file read. Touches no stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from anchorstream.cache.snapshot import Snapshot
from anchorstream.errors import AnchorstreamError
from anchorstream.server.job import Job
from anchorstream.server.sessions import Session, Turn
from anchorstream.server.store import Store, TurnRecord
from anchorstream.text.tokenizer import TextTokenizer
from anchorstream.text.turns import Part, TurnTexts, tokenize_parts

_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a helper has made ready.

    Attributes:
        pinned: ids of the system prompt.
        refed, refed_begins: ids that the journal brings back, and where turns begin in them.
        ids, begins: the same of what is new.
        saved: a stream's file, where there is one.
    """

    pinned: np.ndarray
    refed: np.ndarray
    refed_begins: list[int]
    ids: np.ndarray
    begins: list[int]
    saved: Snapshot | None


class UnrestorableError(AnchorstreamError):
    """A conversation's file is damaged or gone."""

    def __init__(self, session: Session | None, message: str) -> None:
        super().__init__(message)
        self.session = session


def preparation(
    job: Job,
    source: Session | None,
    turn: Turn | None,
    tokenizer: TextTokenizer,
    texts_of: Callable[[str | None], TurnTexts],
    store: Store | None,
) -> Callable[[], Prepared]:
    """The helper's work. What it needs of the conversation is read now, by the engine's thread.

    Args:
        source: the conversation whose beginning is known, or None.
        turn: the turn before or in which the job leaves it; None: at its end.
        texts_of: the template's texts with a system prompt.

    Returns:
        The work. It raises UnrestorableError, TemplateError.
    """
    asked, place = job.conversation, job.place
    assert asked is not None
    journal: list[TurnRecord] = []
    file: str | None = None
    record = job.draft.record if job.draft is not None else source.record if source is not None else None
    if job.from_disk and record is not None:
        file, journal = record.file, list(record.turns)
        if turn is not None and place is not None and place.kind == "asked":
            journal.append(replace(turn.record, reply=_NOTHING))
    known_pinned = source.pinned if source is not None else None
    told, first = asked.told(job.known), source is None

    def work() -> Prepared:
        texts = texts_of(asked.system)
        parts: list[Part]
        if place is not None and place.kind == "asked":
            parts = texts.continuing(told) if told else []
        elif told[-1]["role"] == "assistant":  # it is to be continued
            parts = texts.opening(told[:-1], first=first) if len(told) > 1 else []
            parts += texts.continuing(told[-1:])
        else:
            parts = texts.opening(told, first=first)
        ids, begins = tokenize_parts(tokenizer, parts)
        pinned = known_pinned
        if pinned is None:
            pinned = np.array(tokenizer.with_bos(tokenize_parts(tokenizer, texts.pinned)[0]), np.int32)
        refed, refed_begins, at = [_NOTHING], [], 0
        for each in journal:
            refed += [each.prompt, each.reply]
            refed_begins += [at + begin for begin in each.begins]
            at += each.num_tokens
        saved = None
        if file and store:
            try:
                saved = store.load(file)
            except AnchorstreamError as error:
                raise UnrestorableError(source, str(error)) from None
        return Prepared(pinned, np.concatenate(refed), refed_begins, np.array(ids, np.int32), begins, saved)

    return work
