"""The core against its peers: prefill, decode at a full cache, start-up, memory, and steadiness.

Run: python benchmarks/core.py [--text FILE] [--rounds 5] [--out FILE]   (after benchmarks/setup_peers.py)

Every figure is the median of interleaved rounds; correctness is checked before speed is reported. The last line that is
printed is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import book
import setup_peers
from anchorstream.evaluation import machine
from anchorstream.formats.gguf import open_gguf
from anchorstream.text.tokenizer import TextTokenizer
from peers.protocol import Peer

HERE = Path(__file__).resolve().parent
OURS = "anchorstream"
NAMES = {OURS: OURS, "llama": "llama.cpp", "openvino": "OpenVINO GenAI", "attention_sinks": "attention-sinks (PyTorch)"}
CACHE, SINKS, PREFILL, STEPS = 1024, 4, 512, 32
SHORT, MIDDLE, LONG = 2_000, 10_000, 100_000

# The start of a llama-cpp-python process that makes one token.
LLAMA_ONE_TOKEN = (
    "import sys, llama_cpp\n"
    "llm = llama_cpp.Llama(sys.argv[1], n_ctx=1028, n_threads=2, verbose=False)\n"
    "print(llm('Once upon a time', max_tokens=1)['choices'][0]['text'])"
)


def main() -> int:
    """Run everything that can run here."""
    arguments = parse()
    model = str(setup_peers.default_model())
    ids = book.token_ids(TextTokenizer(open_gguf(Path(model)).vocabulary), arguments.text, LONG).tolist()
    peers, versions = start_peers(NAMES, model, arguments.threads)
    check(peers, ids)
    figures: dict[str, Any] = {name: {} for name in peers}
    for name, peer in peers.items():
        peer("fill", ids=ids[:CACHE])
        peer("decode", count=STEPS)  # warm
        figures[name]["peak_memory_full_cache"] = peer("peak_memory")
    tasks: dict[Any, Callable[[], float]] = {}
    for name, peer in peers.items():
        # another passage each time, for some peers remember the prompts that they have seen
        passages = itertools.cycle(range(0, LONG - PREFILL, PREFILL))
        tasks[name, "prefill"] = lambda peer=peer, at=passages: PREFILL / peer("prefill", ids=passage(ids, next(at)))
        tasks[name, "decode"] = lambda peer=peer: STEPS / peer("decode", count=STEPS)
    tasks[OURS, "bandwidth"] = lambda: bandwidth(arguments.threads)
    speeds = interleave(arguments.rounds, tasks)
    for (name, what), value in speeds.items():
        figures[name][what] = value
    for name in set(peers) - {OURS}:
        peers[name].close()
    traffic = peers[OURS]("traffic")
    figures[OURS]["bytes_per_token"] = traffic
    figures[OURS]["share_of_bandwidth"] = traffic * figures[OURS]["decode"] / figures[OURS]["bandwidth"]
    start_up(model, arguments.rounds, figures)
    if not arguments.quick:
        steadiness(peers[OURS], ids, arguments.rounds, figures[OURS])
    engine = peers[OURS]("describe")
    peers[OURS].close()
    report(figures, versions, engine, arguments)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=book.PATH, help="a text of at least 100,000 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="leave out the stream of 100,000 tokens")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    return parser.parse_args()


def start_peers(names: dict[str, str], model: str, threads: int) -> tuple[dict[str, Peer], dict[str, str]]:
    """Ours and whichever of the named peers are installed, with the model loaded; and their versions.

    Args:
        names: each peer's name for people.
    """
    peers = {OURS: Peer(Path(sys.executable), HERE / "peers" / "anchorstream_peer.py")}
    for name, said in names.items():
        if name == OURS:
            continue
        if not (setup_peers.PEERS / name / "installed").exists():
            print(f"{said} is skipped: it is not installed (python benchmarks/setup_peers.py {name})")
            continue
        peers[name] = Peer(setup_peers.python_of(name), HERE / "peers" / f"{name}_peer.py")
    return peers, {name: load(peer, model, threads) for name, peer in peers.items()}


def load(peer: Peer, model: str, threads: int) -> str:
    """Load the model into a peer; its version."""
    checkpoint = str(setup_peers.CHECKPOINT)
    return peer("load", model=model, checkpoint=checkpoint, threads=threads, cache_size=CACHE, num_sinks=SINKS)


def check(peers: dict[str, Peer], ids: list[int]) -> None:
    """Every peer must think the same token likeliest after the same text, or its speed is worth nothing."""
    best = {}
    for name, peer in peers.items():
        peer("fill", ids=ids[:200])
        if name == "llama":
            peer("prefill", ids=ids[:200])
        best[name] = peer("best_next")
    if len(set(best.values())) > 1:
        print(f"warning: the likeliest next token differs: {best}")
    else:
        print(f"all agree on the next token after 200: {best[OURS]}")


def passage(ids: list[int], begin: int) -> list[int]:
    """PREFILL tokens of the text."""
    return ids[begin : begin + PREFILL]


def interleave(rounds: int, tasks: dict[Any, Callable[[], float]]) -> dict[Any, float]:
    """The median of each task, run turn by turn."""
    values: dict[Any, list[float]] = {key: [] for key in tasks}
    for number in range(rounds + 1):
        for key, task in tasks.items():
            value = task()
            if number:  # the first round warms up
                values[key].append(value)
    return {key: statistics.median(found) for key, found in values.items()}


def bandwidth(threads: int) -> float:
    """Bytes per second that the machine reads, from as much memory as one step touches."""
    from anchorstream.kernels import native

    return native.read_bandwidth(120 << 20, threads, repeats=5)


def start_up(model: str, rounds: int, figures: dict[str, Any]) -> None:
    """From process start to the first token."""
    ours = [
        str(Path(sys.executable).with_name("anchorstream")),
        "generate",
        "Once upon a time",
        "--max-tokens",
        "1",
        "--model",
        model,
    ]
    tasks = {OURS: lambda: seconds(ours)}
    if "llama" in figures:
        theirs = [str(setup_peers.python_of("llama")), "-c", LLAMA_ONE_TOKEN, model]
        tasks["llama"] = lambda: seconds(theirs)
    for name, value in interleave(rounds, tasks).items():
        figures[name]["start_up"] = value


def seconds(command: list[str]) -> float:
    """How long a process takes."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    return time.perf_counter() - begin


def steadiness(ours: Peer, ids: list[int], rounds: int, figures: dict[str, Any]) -> None:
    """Time per token and peak memory as one stream grows."""
    young = Peer(Path(sys.executable), HERE / "peers" / "anchorstream_peer.py")
    load(young, str(setup_peers.default_model()), threads=2)
    young("fill", ids=ids[:SHORT])
    ours("fill", ids=ids[:MIDDLE])
    ours("decode", count=STEPS)
    peak = ours("peak_memory")
    ours("feed", ids=ids[MIDDLE:LONG])
    steps = 4 * STEPS
    times = interleave(
        2 * rounds + 1,
        {"young": lambda: young("decode", count=steps) / steps, "old": lambda: ours("decode", count=steps) / steps},
    )
    young.close()
    figures["seconds_per_token_at_2000"] = times["young"]
    figures["seconds_per_token_at_100000"] = times["old"]
    figures["peak_memory_at_10000"] = peak
    figures["peak_memory_at_100000"] = ours("peak_memory")


def report(
    figures: dict[str, Any], versions: dict[str, str], engine: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """A table for people, JSON for programs."""
    ours = figures[OURS]
    print(f"\n{'':28}{'prefill 512':>14}{'decode':>12}{'ours/theirs':>20}{'start-up':>11}{'memory':>10}")
    for name, own in figures.items():
        ratio = (
            "" if name == OURS else f"{ours['prefill'] / own['prefill']:.2f} x, {ours['decode'] / own['decode']:.2f} x"
        )
        begin = f"{own['start_up']:.2f} s" if "start_up" in own else ""
        print(
            f"{NAMES[name] + ' ' + versions[name]:28}{own['prefill']:>10,.0f} t/s{own['decode']:>8,.1f} t/s{ratio:>20}{begin:>11}"
            f"{own['peak_memory_full_cache'] / 1e6:>7,.0f} MB"
        )
    print(
        f"\n{ours['bytes_per_token'] / 1e6:.1f} MB a token at {ours['bandwidth'] / 1e9:.1f} GB/s would be "
        f"{ours['bandwidth'] / ours['bytes_per_token']:,.0f} t/s: we reach {ours['share_of_bandwidth']:.0%}"
    )
    if "peak_memory_at_100000" in ours:
        change = ours["seconds_per_token_at_100000"] / ours["seconds_per_token_at_2000"] - 1
        growth = ours["peak_memory_at_100000"] - ours["peak_memory_at_10000"]
        print(
            f"time per token at 100,000 against 2,000: {change:+.1%}; peak memory at 100,000 against 10,000: {growth / 1e6:+.1f} MB"
        )
    result = {
        "benchmark": "core",
        **machine.describe(),
        "threads": arguments.threads,
        "engine": engine,
        "versions": versions,
        "figures": figures,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
