"""What commands show while they work, and how they are stopped."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Progress = Callable[[int, int], None]


@contextmanager
def pull_progress(name: str) -> Iterator[Progress]:
    """A progress bar of bytes on the error stream; made when there is something to show."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("pulling {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def load(model: str, **options: Any) -> Any:
    """`anchorstream.load`, with a progress bar where the model has to be pulled first."""
    import anchorstream
    from anchorstream.formats import hub

    if model in hub.ALIASES and model not in hub.pulled():
        with pull_progress(model) as progress:
            hub.pull(model, progress=progress)
    return anchorstream.load(model, **options)


class PromptProgress:
    """One line on a terminal that says how far a long prompt has come; silent for short ones and without a terminal.

    Args:
        stopped: asked between passes; where it says True the feeding ends with `Stopped`.
    """

    _PATIENCE = 1.0  # seconds before anything is shown

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self._stopped = stopped
        self._begin = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        seconds = time.monotonic() - self._begin
        if sys.stderr.isatty() and (self._shown or seconds > self._PATIENCE):
            left = seconds * (total - done) / done
            end = "\r\x1b[K" if done == total else f"\rreading: {done:,} of {total:,} tokens, {left:.0f} s left \x1b[K"
            print(end, end="", file=sys.stderr, flush=True)
            self._shown = True
        if self._stopped():
            raise Stopped


class Stopped(Exception):  # noqa: N818 - no error: the user asked for it
    """The user has asked to stop, between two passes."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C sets a flag that is asked for between steps, so that no step is cut in the middle.

    A second Ctrl-C raises KeyboardInterrupt as usual.
    """
    pressed = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
