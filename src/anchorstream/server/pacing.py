"""How much of a prompt is read beside running replies, so that these are slowed down by no more than they should."""

from __future__ import annotations

_MOST_SLOWER = 1.75  # a step with a slice of a prompt takes at most so much longer than one without
_WEIGHT = 0.2  # of the newest measurement


class Pacing:
    """Learns from measured steps. A reply's tokens come once a step.

    Args:
        most: ids of a prompt in one step, where no reply waits.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._plain: dict[int, float] = {}  # seconds of a step, by number of replies
        self._per_id = 0.0  # further seconds for each id of a prompt
        self._since_plain = 0

    def slice(self, replies: int) -> int:
        """Ids of a prompt that the next step should read beside so many replies."""
        if not replies:
            return self._most
        base = self._plain.get(replies)
        if base is None or self._since_plain > 200:
            return 0  # measure a step without first, and again now and then
        if not self._per_id:
            return min(8, self._most)
        return max(1, min(self._most, int((_MOST_SLOWER - 1) * base / self._per_id)))

    def took(self, seconds: float, replies: int, ids: int) -> None:
        """Note a step."""
        if not replies:
            return
        if not ids:
            self._since_plain = 0
            known = self._plain.get(replies)
            # a step that was disturbed from outside must not teach that steps are slow
            self._plain[replies] = seconds if known is None else known + _WEIGHT * (min(seconds, 2 * known) - known)
            return
        self._since_plain += 1
        if base := self._plain.get(replies):
            each = max(seconds - base, 1e-6) / ids
            self._per_id = (
                each if not self._per_id else self._per_id + _WEIGHT * (min(each, 3 * self._per_id) - self._per_id)
            )
