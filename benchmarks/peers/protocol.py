"""How a benchmark talks to a peer in another environment: one line of JSON each way. Standard library only.

An adapter is a class whose methods are the commands. `serve` runs in the peer's interpreter; `Peer` runs in ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


class Adapter:
    """What every adapter can say of its own process."""

    def memory(self) -> int:
        """Resident bytes."""
        return _status("VmRSS")

    def peak_memory(self) -> int:
        """Peak resident bytes."""
        return _status("VmHWM")


def serve(adapter: Adapter) -> None:
    """Answer commands until the input ends. What libraries print goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": getattr(adapter, request.pop("do"))(**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"the system does not tell {key}")


class Peer:
    """A running adapter."""

    def __init__(self, python: Path, script: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        # the error stream is read in the background, lest a talkative library blocks
        import threading

        self._said: list[str] = []
        threading.Thread(target=lambda: self._said.extend(self._process.stderr or ()), daemon=True).start()

    def __call__(self, do: str, **arguments: Any) -> Any:
        """Run one command and give its value."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the peer has ended: " + "".join(self._said[-5:])) from None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer has ended with {self._process.wait()}: " + "".join(self._said[-5:]))
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
