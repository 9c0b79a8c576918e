"""Runs the server until it is told to stop."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from anchorstream.api import LLM
from anchorstream.errors import AnchorstreamError
from anchorstream.server.app import make_app
from anchorstream.server.settings import ServerConfig
from anchorstream.server.state import State

_PATIENCE = 3  # seconds that running replies have when the server is told to stop


def serve(config: ServerConfig, load: Callable[[], LLM], name: str, *, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; what runs is finished or kept, and the server gone within five seconds.

    Args:
        config: of the server.
        load: loads the model, while the server already listens.
        name: under which clients know it.
        announce: told where the server is, when it listens.

    Raises:
        AnchorstreamError: the model cannot be loaded, the sessions' folder cannot be used, or the address is taken.
    """
    set_up_log()
    state = State(config, load, name)
    server = _Server(
        uvicorn.Config(
            make_app(state),
            host=config.host,
            port=config.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_PATIENCE,
            timeout_keep_alive=75,
            h11_max_incomplete_event_size=1 << 16,
            server_header=False,
        )
    )

    def give_up() -> None:
        server.should_exit = True

    state.on_failure = give_up
    bound = _listen(config.host, config.port)
    port = bound.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    announce(f"http://{host}:{port}")
    server.run(sockets=[bound])
    if state.failure is not None:
        raise state.failure


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise AnchorstreamError(f"{host}, port {port}, cannot be listened at: {reason}; name another --port") from None


class _Server(uvicorn.Server):
    """Ends with success when it is told to stop: uvicorn's own would send itself the signal once more."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


class _Line(logging.Formatter):
    """One JSON object a line. A conversation's text is never logged."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up_log(level: int = logging.WARNING) -> None:
    """Log lines of JSON to the error stream."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    for name in ("anchorstream", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
