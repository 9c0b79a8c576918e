"""A finished turn as its tokens, and the hashes by which it will be recognised."""

from __future__ import annotations

import secrets

import numpy as np

from anchorstream.server.job import Job
from anchorstream.server.messages import next_key
from anchorstream.server.store import TurnRecord
from anchorstream.text.turns import without_reasoning


def turn_record(job: Job, number: int, choice: int = 0) -> TurnRecord:
    """A turn as its tokens, and the hashes by which it will be recognised."""
    asked, made, place = job.conversation, job.choices[choice], job.place
    assert asked is not None
    prompt = job.prompt[job.first_new :]
    begins = [begin - job.first_new for begin in job.begins if begin >= job.first_new]
    before = asked.keys[job.known - 1] if job.known else asked.start
    if place is not None and place.kind == "asked" and place.turn is not None:
        if job.draft is not None and job.draft.needs_file:
            before = secrets.token_bytes(32)  # the file holds the request already: there is no place before it
        else:
            earlier = place.turn.record
            begins = [*earlier.begins, *(len(earlier.prompt) + begin for begin in begins)]
            prompt, before = np.concatenate([earlier.prompt, prompt]), earlier.before
    text, key = "".join(made.texts), asked.keys[-1]
    if asked.said[-1].role == "assistant":  # it was continued
        text = asked.said[-1].content + text
        key = asked.keys[-2] if len(asked.keys) > 1 else asked.start
    heads = dict.fromkeys(next_key(key, "assistant", told) for told in (text, without_reasoning(text)))
    return TurnRecord(
        number=number,
        before=before,
        asked=asked.keys[-1],
        heads=tuple(heads),
        prompt=prompt,
        reply=np.array(made.tokens, np.int32),
        begins=tuple(begins),
    )
