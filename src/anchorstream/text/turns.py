"""What one turn of a chat adds to its text: found by rendering the template around marks, for any template.

An endless chat cannot render its whole history for each turn. So the template is rendered for a short conversation
that has the same shape, and what it puts around the marked contents is taken from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from anchorstream.errors import TemplateError
from anchorstream.text.chat_template import ChatTemplate, Message
from anchorstream.text.tokenizer import TextTokenizer

_USER, _REPLY = "\ue000user\ue001", "\ue000reply\ue001"  # private-use characters, which no conversation holds


class TurnTexts:
    """The pieces of a chat's text. `pinned`, then for each turn `opening(user)`, the reply, `closing`.

    Args:
        template: the model's.
        system: the system prompt, or None for the template's own.

    Attributes:
        pinned: all that comes before the first turn.
        closing: what ends a reply: its end-of-turn token and whatever follows.

    Raises:
        TemplateError: the template raises (many do when a model knows no system prompt), or hides contents.
    """

    def __init__(self, template: ChatTemplate, system: str | None) -> None:
        self._template = template
        self._head: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        first, found, _ = self._render([{"role": "user", "content": _USER}], prompt=True).partition(_USER)
        if not found:
            raise TemplateError("the chat template does not show what the user says")
        self.closing = self._after_reply([])
        header, _, _ = self._after_reply([{"role": "user", "content": _USER}]).partition(_USER)
        if not header.startswith(self.closing):  # the end of a reply depends on what follows: then it comes with that
            self.closing = ""
        header = header[len(self.closing) :]
        self.pinned = first[: len(first) - len(header)] if header and first.endswith(header) else first

    def opening(self, user: str, *, first: bool) -> str:
        """What comes between the last closing (or the pinned text) and the reply to `user`."""
        turn: list[Message] = [{"role": "user", "content": user}]
        before = self.pinned if first else self.closing
        text = self._render(turn, prompt=True) if first else self._after_reply(turn)
        if not text.startswith(before):
            raise TemplateError("the chat template changes what came before a turn; such a chat cannot be streamed")
        return text[len(before) :]

    def _render(self, messages: Sequence[Message], *, prompt: bool) -> str:
        return self._template.render([*self._head, *messages], add_generation_prompt=prompt)

    def _after_reply(self, following: Sequence[Message]) -> str:
        """What the template writes after a reply that is followed by `following`."""
        turn: list[Message] = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _REPLY}]
        _, found, after = self._render([*turn, *following], prompt=bool(following)).partition(_REPLY)
        if not found:
            raise TemplateError("the chat template does not show what the assistant said")
        return after


def tokenize_turn(tokenizer: TextTokenizer, text: str, content: str) -> list[int]:
    """Ids of a rendered turn. Control tokens that a person has typed within `content` stay plain text."""
    content = content.strip()
    if content and tokenizer.tokenize(content) != tokenizer.tokenize(content, special=False):
        before, found, after = text.partition(content)
        if not found:
            raise TemplateError("the message holds control tokens of the model, and its chat template rewrites it")
        return [
            *tokenizer.tokenize(before),
            *tokenizer.tokenize(content, special=False),
            *tokenizer.tokenize(after),
        ]
    return tokenizer.tokenize(text)
