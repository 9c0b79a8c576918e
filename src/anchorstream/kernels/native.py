"""Loads the compiled core and names the machine: its instruction sets, its cores, its read bandwidth.

The functions named like those of `kernels.reference` are single kernels, for tests and curiosity; the engine calls a
whole forward pass at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from anchorstream.errors import AnchorstreamError, ConfigError

__all__ = [
    "BANK_TOKENS",
    "available_memory",
    "core",
    "instruction_set",
    "instruction_sets",
    "kv_bytes_per_token",
    "read_bandwidth",
    "usable_cores",
]

try:
    import anchorstream.kernels._core as core
except ImportError as error:  # pragma: no cover - a broken installation
    raise AnchorstreamError(
        f"the compiled core of anchorstream cannot be loaded ({error}); install the package again with pip"
    ) from error

ISA_VARIABLE = "ANCHORSTREAM_ISA"
BANK_TOKENS = 64  # the core's kBankTokens: a cache grows by so many tokens


def instruction_sets() -> list[str]:
    """Instruction sets that this machine can run, best first; the last is `portable`."""
    return list(core.runnable())


def instruction_set() -> str:
    """The instruction set to use: the best, or the one that the environment variable ANCHORSTREAM_ISA names.

    Raises:
        ConfigError: the variable names none that this machine can run.
    """
    wanted = os.environ.get(ISA_VARIABLE, "")
    for name in instruction_sets():
        if name.startswith(wanted):
            return name
    raise ConfigError(f"{ISA_VARIABLE}={wanted!r}: this machine can run {', '.join(instruction_sets())}")


def usable_cores() -> int:
    """Physical cores that this process may use: its affinity, hyper-threads counted once, at most its CPU quota."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add((topology.joinpath("physical_package_id").read_text(), topology.joinpath("core_id").read_text()))
        except OSError:
            cores.add(("", str(cpu)))
    return max(1, min(len(cores), _quota() or len(cores)))


def _quota() -> int | None:
    """Whole processors that a control group grants, or None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def read_bandwidth(nbytes: int, threads: int, repeats: int = 20) -> float:
    """Bytes per second that `threads` threads read together from a buffer of `nbytes`; the best of `repeats` sweeps."""
    return float(core.read_bandwidth(nbytes, threads, repeats))


def kv_bytes_per_token(precision: str, layers: int, kv_heads: int, head_size: int) -> int:
    """Bytes that one token takes in a full bank, in all layers; precision is f16, f32, q8 or q4."""
    return int(core.bank_bytes(precision, layers, kv_heads, head_size)) // BANK_TOKENS


def available_memory() -> int | None:
    """Bytes that this process may still take: the machine's free memory, at most what its control group grants."""
    amounts = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts.append(int(line.split()[1]) << 10)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
            used = int(Path("/sys/fs/cgroup/memory.current").read_text()) - int(stat.get("inactive_file", 0))
            amounts.append(int(limit) - used)
    except (OSError, ValueError, IndexError):
        pass
    return max(0, min(amounts)) if amounts else None
