"""Live servers for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import anchorstream
from anchorstream.config import StreamConfig
from helpers.live_server import LiveServer
from helpers.tiny_model import TinyModel

SMALL = StreamConfig(cache_size=128, whole_turns=True)


@pytest.fixture
def start(tiny: Callable[[TinyModel], Path]) -> Iterator[Callable[..., LiveServer]]:
    """Starts servers of a tiny model with a small cache, and stops them at the end."""
    running: list[LiveServer] = []

    def begin(**options: Any) -> LiveServer:
        path = tiny(TinyModel())
        options.setdefault("stream", SMALL)
        running.append(LiveServer(lambda: anchorstream.load(path, compute="f32", threads=1), **options))
        return running[-1]

    yield begin
    for server in running:
        server.stop()


@pytest.fixture(scope="module")
def small(tiny: Callable[[TinyModel], Path]) -> Iterator[LiveServer]:
    """One server of a tiny model for the tests of a file."""
    path = tiny(TinyModel())
    server = LiveServer(lambda: anchorstream.load(path, compute="f32", threads=1), stream=SMALL)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def real(default_model_path: Path) -> Iterator[LiveServer]:
    """One server of the default model for the tests of a file."""
    server = LiveServer(lambda: anchorstream.load(default_model_path))
    yield server
    server.stop()
