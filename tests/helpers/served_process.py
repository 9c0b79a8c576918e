"""The command `anchorstream serve` as a process, to be killed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx


class ServedProcess:
    """Started when made; waits until it is healthy."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "anchorstream", "serve", str(model), "--port", "0", "--sessions", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--threads", "1", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"at (\S+) ", self.process.stdout.readline())
        if found is None:
            self.process.wait(10)
            assert self.process.stderr is not None
            raise RuntimeError(self.process.stderr.read())
        self.url = found[1]
        end = time.monotonic() + 20
        while httpx.get(f"{self.url}/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def terminate(self) -> float:
        """Stop it gently; seconds that it took."""
        begin = time.monotonic()
        self.process.terminate()
        self.process.wait(20)
        seconds = time.monotonic() - begin
        self.close()
        return seconds

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
