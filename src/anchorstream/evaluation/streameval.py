"""StreamEval (StreamingLLM, section 4.4): does a stream find what it was told some lines ago?

Lines "The REGISTER_CONTENT in line 13 is <45603>." stream in; every ten lines the content of an earlier line is asked
for. A query is put to a fork, so that what the model answers does not change what the stream has been told.

Small models mix up numbered lines whatever the cache holds (the default model: none right). So lines may be named by
made-up words instead: "The REGISTER_CONTENT in line Tadeko is <45603>.", of which it finds a third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorstream.config import choice

_EVERY = 10  # lines between queries
_ANSWER_TOKENS = 8
NAMES = ("words", "numbers")


@dataclass(frozen=True, slots=True)
class Answer:
    """One query: where in the stream, how far back, and whether the answer was right."""

    line: int
    tokens: int
    distance: int
    right: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name, and what it says."""

    name: str
    content: int

    @property
    def question(self) -> str:
        """All of the line but the answer."""
        return f"The REGISTER_CONTENT in line {self.name} is <"

    @property
    def text(self) -> str:
        """The line."""
        return f"{self.question}{self.content}>.\n"


def lines(count: int, seed: int, names: str = "words") -> Iterator[Line]:
    """Lines, the same for the same seed.

    Raises:
        ConfigError: `names` is not one of NAMES.
    """
    choice("streameval", "names", names, NAMES)
    random = np.random.default_rng(seed)
    used: set[str] = set()
    for number in range(count):
        name = str(number)
        while names == "words" and (name in used or name.isdigit()):
            syllables = (random.choice(list("bdfgklmnprstvz")) + random.choice(list("aeiou")) for _ in range(3))
            name = "".join(syllables).capitalize()
        used.add(name)
        yield Line(name, int(random.integers(1, 50_000)))


def measure(
    llm: Any,
    *,
    count: int,
    distances: Sequence[int],
    options: dict[str, Any],
    seed: int = 0,
    names: str = "words",
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Answer]:
    """Feed `count` lines and yield an answer for each query.

    Args:
        distances: how many lines back is asked for, each at every query.
        options: of the stream.
        names: how lines are named: `words`, or `numbers` as in the paper.
        progress: called with the lines fed so far and in all.
    """
    told: list[Line] = []
    with llm.stream(**options) as stream:
        for number, line in enumerate(lines(count, seed, names)):
            stream.feed(line.text)
            told.append(line)
            if progress:
                progress(number + 1, count)
            if (number + 1) % _EVERY:
                continue
            for distance in distances:
                if distance <= number:
                    yield Answer(number, stream.length, distance, _ask(stream, told[number - distance]))


def _ask(stream: Any, line: Line) -> bool:
    with stream.fork() as fork:
        fork.feed(line.question)
        said = "".join(fork.generate(_ANSWER_TOKENS, temperature=0, stop=">"))
    return bool(said.strip() == str(line.content))


def accuracy_by(answers: Sequence[Answer], what: str, bins: Sequence[int]) -> list[dict[str, float]]:
    """Share of right answers for each bin of an attribute (`tokens` or `distance`); `bins` are upper bounds, in order."""
    rows, low = [], 0
    for high in bins:
        inside = [a.right for a in answers if low < getattr(a, what) <= high]
        if inside:
            rows.append({"up_to": high, "queries": len(inside), "accuracy": sum(inside) / len(inside)})
        low = high
    return rows
