"""What a figure must say about where it was measured."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from anchorstream import __version__


def describe() -> dict[str, object]:
    """Processor, cores, system, Python, commit and date."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "version": __version__,
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def peak_memory() -> int:
    """Peak resident bytes of this process."""
    return _status("VmHWM")


def trim() -> None:
    """Give memory that has been freed back to the system, where the C library knows how, so that `memory` tells what is held."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def memory() -> int:
    """Resident bytes of this process."""
    return _status("VmRSS")


def _status(key: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _commit() -> str:
    """Of the checkout that this package is installed from, if it is one."""
    import subprocess

    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
