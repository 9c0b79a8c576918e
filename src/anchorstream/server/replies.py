"""From what the engine's thread tells to OpenAI's objects: whole, and in chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from anchorstream.server.job import Job
from anchorstream.server.outbox import Chosen, Text
from anchorstream.text.tokenizer import TextTokenizer

_REASONS = {"stop": "stop", "length": "length", "cancelled": "stop"}


@dataclass(slots=True)
class Reply:
    """What has been told of one choice."""

    texts: list[str] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)

    def add(self, event: Text) -> None:
        """Take note of more of it."""
        self.texts.append(event.text)
        if event.chosen is not None:
            self.chosen.append(event.chosen)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


class Form:
    """What chat and text completions share.

    Args:
        kind: which of them.
        model: the model's name. fingerprint: of model and program.
        tokenizer: spells tokens where likelihoods are wanted.
        job: the request.
    """

    def __init__(
        self, kind: Literal["chat", "text"], model: str, fingerprint: str, tokenizer: TextTokenizer, job: Job
    ) -> None:
        self.chat = kind == "chat"
        self._model = model
        self._fingerprint = fingerprint
        self._tokenizer = tokenizer
        self._job = job
        self._id = ("chatcmpl-" if self.chat else "cmpl-") + uuid4().hex[:24]
        self._created = int(time.time())

    def _object(self, choices: list[dict[str, Any]], *, chunk: bool, **more: Any) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._fingerprint,
            "choices": choices,
            **more,
        }

    # ---- chunks ----

    def opening(self, choice: int) -> dict[str, Any] | None:
        """What comes first: of a chat, who speaks."""
        if not self.chat:
            return None
        delta = {"role": "assistant", "content": ""}
        return self._chunk(choice, delta, None)

    def delta(self, choice: int, reply: Reply) -> dict[str, Any]:
        """More of a reply."""
        return self._chunk(choice, {"content": reply.text} if self.chat else reply.text, self.logprobs(reply.chosen))

    def ending(self, choice: int, reason: str, **more: Any) -> dict[str, Any]:
        """Why a reply ended."""
        return self._chunk(choice, {} if self.chat else "", None, _REASONS[reason], **more)

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk that a client gets which has asked for usage."""
        return self._object([], chunk=True, usage=usage)

    def _chunk(self, choice: int, delta: Any, logprobs: Any, reason: str | None = None, **more: Any) -> dict[str, Any]:
        told = {"index": choice, "delta" if self.chat else "text": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._object([told], chunk=True, **more)

    # ---- whole ----

    def choice(self, index: int, reply: Reply, reason: str) -> dict[str, Any]:
        """One whole reply."""
        shown: Any = reply.text
        if self.chat:
            shown = {"role": "assistant", "content": reply.text, "refusal": None}
        return {
            "index": index,
            "message" if self.chat else "text": shown,
            "logprobs": self.logprobs(reply.chosen),
            "finish_reason": _REASONS[reason],
        }

    def whole(self, choices: list[dict[str, Any]], told: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        return self._object(choices, chunk=False, **{k: v for k, v in told.items() if k != "reasons"})

    # ---- likelihoods ----

    def logprobs(self, chosen: list[Chosen], begin: int = 0) -> dict[str, Any] | None:
        """How likely each token was, as this kind of completion tells it.

        Args:
            begin: length of the text before them.
        """
        if self._job.wish.logprobs is None:
            return None
        if self.chat:
            return {"content": [self._likely(each) for each in chosen], "refusal": None}
        tokens = [self._spell(each.token) for each in chosen]
        offsets = []
        for token in tokens:
            offsets.append(begin)
            begin += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [each.logprob for each in chosen],
            "top_logprobs": [{self._spell(i): p for i, p in each.top} for each in chosen]
            if self._job.wish.logprobs
            else None,
            "text_offset": offsets,
        }

    def echoed(self) -> tuple[str, dict[str, Any] | None]:
        """The prompt as text, and how likely each of its tokens was; the first has nothing before it."""
        job = self._job
        ids = job.prompt.tolist()
        if job.wish.logprobs is None:
            return self._tokenizer.detokenize(ids), None
        rest = [
            each if isinstance(each, Chosen) else Chosen(token, each)
            for token, each in zip(ids[1:], job.echoed, strict=True)
        ]
        told = self.logprobs([Chosen(ids[0], 0.0), *rest])
        assert told is not None
        told["token_logprobs"][0] = None
        if told["top_logprobs"]:
            told["top_logprobs"][0] = None
        return "".join(told["tokens"]), told

    def _likely(self, each: Chosen) -> dict[str, Any]:
        def one(token: int, logprob: float) -> dict[str, Any]:
            data = self._tokenizer.token_bytes(token)
            return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

        return {**one(each.token, each.logprob), "top_logprobs": [one(i, p) for i, p in each.top]}

    def _spell(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")


def joined(first: dict[str, Any] | None, then: dict[str, Any] | None) -> dict[str, Any] | None:
    """The likelihoods of a prompt and of its continuation as one."""
    if first is None or then is None:
        return None
    return {key: (first[key] or []) + (then[key] or []) if first[key] is not None else None for key in first}
