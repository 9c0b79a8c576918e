"""Writes docs/results.md from the JSON files in benchmarks/results.  Run: python benchmarks/report.py"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "results.md"
NAMES = {
    "anchorstream": "anchorstream",
    "llama": "llama.cpp (llama-cpp-python)",
    "openvino": "OpenVINO GenAI",
    "attention_sinks": "attention-sinks on PyTorch",
    "transformers": "transformers, dense",
}
HEAD = """\
# Results

Written by `python benchmarks/report.py` from the JSON files in benchmarks/results, each of which is the output of the command that
its section names. Speeds are medians of interleaved rounds on one machine, all peers with the same file and threads.
"""


def main() -> int:
    """Write the page."""
    sections = [HEAD]
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        writer = WRITERS.get(result.get("benchmark"))
        if writer is None:
            print(f"{path.name} is left out: there is no section for {result.get('benchmark')!r}", file=sys.stderr)
            continue
        sections.append(writer(result))
    PAGE.write_text("\n".join(sections))
    print(PAGE)
    return 0


def where(result: dict[str, Any]) -> str:
    """The machine, in one line."""
    engine = result.get("engine", {})
    return (
        f"{result['processor']}, {result['cores']} cores, {engine.get('instruction_set', '')}, {result['threads']} threads, "
        f"Python {result['python']}, commit {result['commit']}, {result['date']}."
    )


def core(result: dict[str, Any]) -> str:
    """The core against its peers."""
    figures = result["figures"]
    ours = figures["anchorstream"]
    lines = [
        f"## The core on {result['processor']}\n",
        f"`python benchmarks/core.py`. {where(result)}\n",
        "| | prefill of 512, tokens/s | ours is | decode at a full cache, tokens/s | ours is | start to token, s | peak memory, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, own in figures.items():
        ratios = ["", ""] if own is ours else [f"{ours[what] / own[what]:.2f} x" for what in ("prefill", "decode")]
        start = f"{own['start_up']:.2f}" if "start_up" in own else ""
        lines.append(
            f"| {NAMES[name]} {result['versions'][name]} | {own['prefill']:,.0f} | {ratios[0]} | {own['decode']:,.0f} | {ratios[1]} "
            f"| {start} | {own['peak_memory_full_cache'] / 1e6:,.0f} |"
        )
    lines.append(
        f"\nOne step touches {ours['bytes_per_token'] / 1e6:.1f} MB (weights and cache); the machine reads "
        f"{ours['bandwidth'] / 1e9:.1f} GB/s, "
        f"so that {ours['bandwidth'] / ours['bytes_per_token']:,.0f} tokens/s would be the limit: we reach "
        f"**{ours['share_of_bandwidth']:.0%}** of it."
    )
    if "peak_memory_at_100000" in ours:
        change = ours["seconds_per_token_at_100000"] / ours["seconds_per_token_at_2000"] - 1
        growth = (ours["peak_memory_at_100000"] - ours["peak_memory_at_10000"]) / 1e6
        lines.append(
            f"Time per token at a stream's length of 100,000 against 2,000: **{change:+.1%}**. Peak memory at 100,000 against 10,000: "
            f"**{growth:+.1f} MB**."
        )
    return "\n".join(lines) + "\n"


def perplexity(result: dict[str, Any]) -> str:
    """Perplexities over a book."""
    lines = [
        "## Perplexity\n",
        f"`{result['command']}`: {result['text']}, {result['tokens']:,} tokens, the first left out. {where(result)}\n",
        "| method | f32 | int8 |",
        "| --- | ---: | ---: |",
    ]
    for method, own in result["figures"].items():
        lines.append(f"| {method} | {own['f32']:.2f} | {own['int8']:.2f} |")
    return "\n".join(lines) + "\n"


WRITERS: dict[Any, Callable[[dict[str, Any]], str]] = {"core": core, "perplexity": perplexity}

if __name__ == "__main__":
    sys.exit(main())
