"""What the turns of a chat add to its text: found by rendering the template around marks, for any template.

An endless chat cannot render its whole history for each turn. So the template is rendered for a short conversation
that has the same shape, with marks where the contents go, and what it puts around them is taken from there. What a
person has said never reaches the template, and so is never taken for something that the template wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from anchorstream.errors import TemplateError
from anchorstream.text.chat_template import ChatTemplate, Message
from anchorstream.text.tokenizer import TextTokenizer

_USER, _REPLY = "\ue000user\ue001", "\ue000reply\ue001"  # private-use characters, which no template writes
_SYSTEM = "\ue000system\ue001"
_MARK = re.compile("\ue000(\\d+)\ue001")
_END_OF_REASONING = "</think>"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a chat's text.

    Attributes:
        text: what it says.
        content: whether a person or the model has said it; control tokens spelled out in it are plain text.
        begins_turn: whether a turn begins with it.
    """

    text: str
    content: bool = False
    begins_turn: bool = False


class TurnTexts:
    """The pieces of a chat's text: `pinned`, then `opening(messages)`, the reply, `opening(messages)`, the reply, ...

    Args:
        template: the model's.
        system: the system prompt, or None for the template's own.

    Attributes:
        pinned: all that comes before the first turn, as parts.
        closing: what ends a reply: its end-of-turn token and whatever follows, if that does not depend on what follows.

    Raises:
        TemplateError: the template raises (many do when a model knows no system prompt), or hides contents.
    """

    def __init__(self, template: ChatTemplate, system: str | None) -> None:
        self._template = template
        self._head: list[Message] = [] if system is None else [{"role": "system", "content": _SYSTEM}]
        first, found, _ = self._render([_user(_USER)], prompt=True).partition(_USER)
        if not found:
            raise TemplateError("the chat template does not show what the user says")
        if system is not None and _SYSTEM not in first:
            raise TemplateError("the chat template does not show the system prompt")
        self.closing = self._after_reply([])
        header, _, _ = self._after_reply([_user(_USER)]).partition(_USER)
        if not header.startswith(self.closing):  # the end of a reply depends on what follows: then it comes with that
            self.closing = ""
        header = header[len(self.closing) :]
        self._pinned = first[: len(first) - len(header)] if header and first.endswith(header) else first
        self._strips = f" {_USER} " not in self._render([_user(f" {_USER} ")], prompt=True)
        self._drops_reasoning = self._hides_old_reasoning()
        before, _, after = self._pinned.partition(_SYSTEM)
        shown = (system or "").strip() if self._strips else system or ""
        self.pinned = [part for part in (Part(before), Part(shown, content=True), Part(after)) if part.text]

    def opening(self, messages: Sequence[Message], *, first: bool) -> list[Part]:
        """What comes between the pinned text (or the end of a reply, without its closing) and the reply to `messages`.

        Args:
            messages: of the user and the assistant, the last of them the one to be answered.
            first: whether they come first in the chat.

        Raises:
            TemplateError: a template that rewrites what came before.
        """
        marked: list[Message] = [{"role": m["role"], "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]
        before = self._pinned if first else self.closing
        text = self._render(marked, prompt=True) if first else self._after_reply(marked)
        if not text.startswith(before):
            raise TemplateError("the chat template changes what came before a turn; such a chat cannot be streamed")
        # the closing belongs to the turn before
        parts = [] if first or not self.closing else [Part(self.closing)]
        return parts + self._parts(messages, text[len(before) :])

    def continuing(self, messages: Sequence[Message]) -> list[Part]:
        """What comes between the beginning of a reply and the reply to `messages`, whose first is that reply.

        For a reply of which only a part has been heard, or another than the model gave.
        """
        reply = Part(self._shown(messages, 0), content=True)
        return [reply, *self.opening(messages[1:], first=False)] if len(messages) > 1 else [reply]

    def _parts(self, messages: Sequence[Message], text: str) -> list[Part]:
        pieces = _MARK.split(text)
        parts: list[Part] = []
        opens = True  # a turn: what comes next belongs to it
        for place, piece in enumerate(pieces):
            if place % 2:
                parts.append(Part(self._shown(messages, int(piece)), content=True))
                opens = messages[int(piece)]["role"] == "assistant"
                continue
            if opens and place and self.closing and piece.startswith(self.closing):
                parts.append(Part(self.closing))
                piece = piece[len(self.closing) :]
            parts.append(Part(piece, begins_turn=opens))
            opens = False
        return [part for part in parts if part.text or part.begins_turn]

    def _shown(self, messages: Sequence[Message], place: int) -> str:
        """A message's content as the template shows it."""
        message = messages[place]
        content = message["content"]
        old = message["role"] == "assistant" and any(m["role"] == "user" for m in messages[place + 1 :])
        if old and self._drops_reasoning and _END_OF_REASONING in content:
            content = content.rsplit(_END_OF_REASONING, 1)[1].lstrip("\n")
        return content.strip() if self._strips else content

    def _hides_old_reasoning(self) -> bool:
        """Whether the template shows what a model thought in an earlier turn."""
        told: Message = {"role": "assistant", "content": f"<think>\nthought\n{_END_OF_REASONING}\n\n{_REPLY}"}
        try:
            text = self._render([_user(_USER), told, _user("again")], prompt=True)
        except TemplateError:
            return False
        return _REPLY in text and "thought" not in text

    def _render(self, messages: Sequence[Message], *, prompt: bool) -> str:
        return self._template.render([*self._head, *messages], add_generation_prompt=prompt)

    def _after_reply(self, following: Sequence[Message]) -> str:
        """What the template writes after a reply that is followed by `following`."""
        turn: list[Message] = [_user(_USER), {"role": "assistant", "content": _REPLY}]
        _, found, after = self._render([*turn, *following], prompt=bool(following)).partition(_REPLY)
        if not found:
            raise TemplateError("the chat template does not show what the assistant said")
        return after


def without_reasoning(content: str) -> str:
    """What a client sends back of a reply if it drops what the model thought."""
    return content.rsplit(_END_OF_REASONING, 1)[-1].strip()


def tokenize_parts(tokenizer: TextTokenizer, parts: Sequence[Part]) -> tuple[list[int], list[int]]:
    """Ids of parts, and the places among them at which turns begin.

    Contents are cut together with the text around them, as the model has learned it, unless they spell control tokens:
    these stay plain text.
    """
    ids: list[int] = []
    turns: list[int] = []
    pending = ""
    for part in parts:
        plain = part.content and _spells_control(tokenizer, part.text)
        if part.begins_turn or plain:
            ids += tokenizer.tokenize(pending)
            pending = ""
        if part.begins_turn:
            turns.append(len(ids))
        if plain:
            ids += tokenizer.tokenize(part.text, special=False)
        else:
            pending += part.text
    return ids + tokenizer.tokenize(pending), turns


def _spells_control(tokenizer: TextTokenizer, text: str) -> bool:
    return any(piece in text for piece in tokenizer.control_pieces)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
