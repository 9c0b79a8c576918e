"""A request's messages: checked, and recognised by hash. A conversation is known by what was said, not by its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorstream.server.errors import bad

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Said:
    """One message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request's messages.

    Attributes:
        system: the system prompt, or None.
        said: what user and assistant have said, in order.
        keys: for each of `said`, a hash of all up to it, the system prompt included.
        start: the hash of the system prompt alone.
    """

    system: str | None
    said: tuple[Said, ...]
    start: bytes
    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, messages: Sequence[tuple[str, str]]) -> Conversation:
        """Checked.

        Args:
            messages: pairs of role and content.

        Raises:
            ApiError: an unknown role, a system message that is not the first, nothing to answer.
        """
        system: str | None = None
        said: list[Said] = []
        for place, (told, content) in enumerate(messages):
            role = _ROLES.get(told)
            at = f"messages[{place}].role"
            if role is None:
                raise bad(f"messages of role {told!r} are not supported: system, developer, user or assistant", at)
            if role == "system":
                if said:
                    raise bad("a system message must come first: only there can it be pinned and never be dropped", at)
                system = content if system is None else f"{system}\n\n{content}"
                continue
            if role == "user" and not content.strip():
                raise bad("the message is empty: say something", f"messages[{place}].content")
            said.append(Said(role, content))
        if not any(each.role == "user" for each in said):
            raise bad("there is nothing to answer: messages must hold at least one of the user", "messages")
        start = next_key(b"anchorstream", "system", system or "") if system is not None else b""
        keys, key = [], start
        for each in said:
            key = next_key(key, each.role, each.content)
            keys.append(key)
        return cls(system, tuple(said), start, tuple(keys))

    def told(self, first: int) -> list[dict[str, str]]:
        """Messages from place `first`, for a chat template."""
        return [{"role": each.role, "content": each.content} for each in self.said[first:]]

    def appended_to(self, head: bytes) -> Conversation:
        """The same messages as the continuation of a conversation that is not sent again."""
        key, keys = head, []
        for each in self.said:
            key = next_key(key, each.role, each.content)
            keys.append(key)
        return replace(self, start=head, keys=tuple(keys))

    @property
    def has_history(self) -> bool:
        """Whether the client sends what was said before."""
        return any(each.role == "assistant" for each in self.said)


def next_key(key: bytes, role: str, content: str) -> bytes:
    """The hash of a conversation that goes on with a message."""
    # clients trim what they send back
    return hashlib.sha256(key + role.encode() + b"\0" + content.strip().encode("utf-8", "surrogatepass")).digest()
