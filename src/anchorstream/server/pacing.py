"""How much of a prompt is read beside running replies, so that these are slowed down by no more than they should."""

from __future__ import annotations

from collections import deque

_MOST_SLOWER = 1.75  # a step with a slice of a prompt takes at most so much longer than one without
_KEPT = 32  # measurements
_ENOUGH = 4  # of them to go by
_PLAIN_EVERY = 200  # steps with a slice, after which one without is measured


class Pacing:
    """Learns from measured steps. A reply's tokens come once a step.

    Args:
        most: ids of a prompt in one step, where no reply waits.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._plain: dict[int, deque[float]] = {}  # seconds of steps without a slice, by number of replies
        self._per_id: deque[float] = deque(maxlen=_KEPT)  # what each id of a slice added
        self._since_plain = 0

    def slice(self, replies: int) -> int:
        """Ids of a prompt that the next step should read beside so many replies."""
        if not replies:
            return self._most
        if len(self._plain.get(replies, ())) < _ENOUGH or self._since_plain >= _PLAIN_EVERY:
            return 0
        if not self._per_id:
            return min(4, self._most)
        per_id = sorted(self._per_id)[len(self._per_id) // 2]
        return max(1, min(self._most, int((_MOST_SLOWER - 1) * self._base(replies) / per_id)))

    def took(self, seconds: float, replies: int, ids: int) -> None:
        """Note a step."""
        if not replies:
            return
        if not ids:
            self._since_plain = 0
            self._plain.setdefault(replies, deque(maxlen=_KEPT)).append(seconds)
            return
        self._since_plain += 1
        if replies in self._plain and (more := seconds - self._base(replies)) > 0:
            self._per_id.append(more / ids)

    def _base(self, replies: int) -> float:
        """The lower quartile: a step that was disturbed from outside must not teach that steps are slow."""
        known = sorted(self._plain[replies])
        return known[len(known) // 4]
