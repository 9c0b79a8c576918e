"""What the routes share: the model and its thread, once they are there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from starlette.requests import Request

from anchorstream import __version__
from anchorstream.api import LLM
from anchorstream.server.conversations import Conversations
from anchorstream.server.errors import ApiError
from anchorstream.server.keeper import Keeper
from anchorstream.server.metrics import Metrics
from anchorstream.server.scheduler import Scheduler
from anchorstream.server.settings import ServerConfig
from anchorstream.server.store import Store


class Ready:
    """A model that can be asked.

    Raises:
        StorageError: the sessions' folder cannot be used.
    """

    def __init__(self, llm: LLM, name: str, config: ServerConfig, metrics: Metrics) -> None:
        self.llm = llm
        self.name = name
        self.config = config
        self.started = int(time.time())
        store = Store(config.folder, llm.fingerprint) if config.folder is not None else None
        self.keeper = Keeper(store, llm.prefixes, config.max_sessions, metrics)
        conversations = Conversations(llm, config, self.keeper, metrics)
        self.scheduler = Scheduler(llm, config, conversations, metrics)
        self.keeper.post = self.scheduler.post
        self.fingerprint = f"anchorstream-{__version__}-{llm.fingerprint[:8]}"
        self.scheduler.start()

    def measure(self, metrics: Metrics) -> None:
        """Read the figures that are read off rather than counted."""
        sessions = list(self.keeper.sessions)
        in_memory = sum(each.stream is not None for each in sessions)
        metrics.sessions.labels("memory").set(in_memory)
        metrics.sessions.labels("disk").set(len(sessions) - in_memory)
        pool = self.llm.pool
        metrics.pool.labels("reserved").set(pool.reserved)
        metrics.pool.labels("marks").set(pool.held_by_marks)
        metrics.pool.labels("prefixes").set(self.llm.prefixes.nbytes)
        metrics.pool.labels("limit").set(pool.limit or 0)

    def close(self) -> None:
        """Let what runs end, and write what is to be written."""
        self.scheduler.stop(patience=1.0)
        self.keeper.close()


class State:
    """The server's state: it listens while the model is still being loaded.

    Args:
        config: the server's.
        load: loads the model.
        name: under which clients know it.
    """

    def __init__(self, config: ServerConfig, load: Callable[[], LLM], name: str) -> None:
        self.config = config
        self.name = name
        self.metrics = Metrics()
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._load = load
        self._ready: Ready | None = None
        self._loaded = threading.Event()

    def start(self) -> None:
        """Begin to load."""
        threading.Thread(target=self._run, name="load", daemon=True).start()

    def _run(self) -> None:
        try:
            self._ready = Ready(self._load(), self.name, self.config, self.metrics)
        except BaseException as error:
            self.failure = error
            self.on_failure()
        finally:
            self._loaded.set()

    @property
    def is_ready(self) -> bool:
        """Whether the model has been loaded."""
        return self._ready is not None

    @property
    def ready(self) -> Ready:
        """The model.

        Raises:
            ApiError: 503 while it is being loaded.
        """
        if self._ready is None:
            raise ApiError(503, "the model is being loaded: try again in a moment", code="loading", retry_after=1)
        return self._ready

    def close(self) -> None:
        """Stop."""
        self._loaded.wait(2.0)
        if self._ready is not None:
            self._ready.close()


def ready(request: Request) -> Ready:
    """A route's dependency: the model."""
    state: State = request.app.state.anchorstream
    return state.ready
