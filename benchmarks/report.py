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
        f"{result['processor']}, {result['cores']} cores, {engine.get('instruction_set', '')}, {engine.get('threads')} threads, "
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


def banks(result: dict[str, Any]) -> str:
    """Quantised banks."""
    f = result["figures"]
    sizes, perplexities = f["bytes_per_token"], f["perplexity"]
    lines = [
        f"## Banks on {result['processor']}\n",
        f"`python benchmarks/banks.py`: {result['text']}, {result['tokens']:,} tokens. {where(result)}\n",
        "| precision of the window | bytes a token | f16 is | perplexity | against f16 | decode at 1,024, tokens/s | at 4,096 | f16 is |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, size in sizes.items():
        change = perplexities[kind] / perplexities["f16"] - 1
        small, large = f["decode"]["1024"], f["decode"]["4096"]
        lines.append(
            f"| {kind} | {size:,} | {sizes['f16'] / size:.2f} x | {perplexities[kind]:.3f} | {change:+.2%} | {small[kind]:,.0f} "
            f"| {large[kind]:,.0f} | {large['f16'] / large[kind]:.2f} x |"
        )
    lines.append(
        f"\nThe sinks stay in f16 for a reason: quantised to 4 bits as well they cost {perplexities['q4, sinks too']:.3f} instead of "
        f"{perplexities['q4']:.3f}, and alone, beside a window in f16, {perplexities['f16, but sinks in q4']:.3f} instead of "
        f"{perplexities['f16']:.3f}."
    )
    seconds = ", ".join(f"{name} {1000 * value:.2f} ms" for name, value in f["seconds"].items())
    lines.append(f"At a full cache of 1,024: {seconds}.")
    return "\n".join(lines) + "\n"


def conversation(result: dict[str, Any]) -> str:
    """Rounds of conversation against the peers."""
    figures = result["figures"]
    ours = figures["anchorstream"]
    lines = [
        f"## {result['prompts']} rounds of conversation on {result['processor']}\n",
        "`python benchmarks/conversation.py`: tokens made per second of wall time, prompts included, the same prompts and lengths for all. "
        f"{where(result)}\n",
        "| |" + "".join(f" answers of {output} tokens | ours is |" for output in ours),
        "| --- |" + " ---: | ---: |" * len(ours),
    ]
    for name, own in figures.items():
        cells = "".join(
            f" {own[output]:,.1f} | {'' if own is ours else f'{speed / own[output]:.1f} x'} |"
            if output in own
            else " | |"
            for output, speed in ours.items()
        )
        lines.append(f"| {NAMES[name]} {result['versions'][name]} |{cells}")
    return "\n".join(lines) + "\n"


def server(result: dict[str, Any]) -> str:
    """The server beside the bare core."""
    rows = [f"| {name} | {value:,.2f} |" for name, value in result["figures"].items()]
    lines = [
        f"## The server on {result['processor']}\n",
        f"`python benchmarks/server.py`: replies of {result['tokens']} tokens at a full cache, greedy, streamed to clients on the same "
        f"machine. Python {result['python']}, commit {result['commit']}, {result['date']}.\n",
        "| | |",
        "| --- | ---: |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def runs(title: str, command: str, picture: str) -> Callable[[dict[str, Any]], str]:
    """A writer for evaluations whose result is a perplexity a setting."""

    def write(result: dict[str, Any]) -> str:
        lines = [
            f"## {title}\n",
            f"`anchorstream eval {command}`: {', '.join(result['text'])}, {result['tokens']:,} tokens. {where(result)}\n",
            "| | perplexity | tokens/s | sampled |",
            "| --- | ---: | ---: | --- |",
        ]
        for name, own in result["runs"].items():
            sampled = "all" if own["stride"] == 1 else f"every {own['stride']}th token"
            lines.append(f"| {name} | {own['perplexity']:.2f} | {own['tokens_per_second']:,.0f} | {sampled} |")
        if any(own["stride"] > 1 for own in result["runs"].values()):
            common = ", ".join(f"{name} {value:.3f}" for name, value in result["on_common_tokens"].items())
            lines.append(f"\nOver just the sampled tokens: {common}.")
        lines.append(f"\n![{title}](img/{picture})")
        return "\n".join(lines) + "\n"

    return write


def streameval(result: dict[str, Any]) -> str:
    """Recall against distance."""
    lines = [
        "## StreamEval\n",
        f"`anchorstream eval streameval --lines {result['lines']}`: lines named by words, about {result['tokens_per_line']:.0f} tokens each, "
        f"cache of {result['stream']['cache_size']:,}. {where(result)}\n",
        "| lines back | about tokens back | queries | right |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for row in result["by_distance"]:
        tokens = row["up_to"] * result["tokens_per_line"]
        lines.append(f"| {row['up_to']} | {tokens:,.0f} | {row['queries']} | {row['accuracy']:.0%} |")
    lines.append("\n![Accuracy against distance](img/streameval-distance.png)")
    return "\n".join(lines) + "\n"


def latency(result: dict[str, Any]) -> str:
    """Time per token of the methods."""
    lines = [
        "## Time per token\n",
        f"`anchorstream eval latency`. Dense holds a stream of four times the cache's length. {where(result)}\n",
        "| cache | streaming, ms | dense, ms | recompute, ms | recompute / streaming | cache, MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['cache_size']:,} | {1000 * row['streaming']:.2f} | {1000 * row['dense']:.2f} | {1000 * row['recompute']:.1f} "
            f"| {row['recompute_over_streaming']:,.0f} x | {row['streaming_bytes'] / 1e6:.0f} |"
        )
    lines.append("\n![Time per token](img/latency.png)")
    return "\n".join(lines) + "\n"


def long(result: dict[str, Any]) -> str:
    """An endless run."""
    memory = result["memory"]
    speeds = sorted(result["speeds"])
    return (
        "## A stream of millions of tokens\n\n"
        f"`anchorstream eval long --tokens {result['tokens']}` over five novels, again and again. {where(result)}\n\n"
        f"Perplexity per {result['block']:,} tokens between {min(result['perplexities']):.1f} and {max(result['perplexities']):.1f}, at worst "
        f"{result['worst_over_median']:.2f} times the median. Median speed {speeds[len(speeds) // 2]:,.0f} tokens/s, on a machine that did "
        f"other work beside it. Resident memory {memory[0] / 1e6:,.0f} MB after the first block, {memory[len(memory) // 2] / 1e6:,.0f} MB in the "
        f"middle, {memory[-1] / 1e6:,.0f} MB at the end.\n\n![Perplexity, speed and memory](img/long.png)\n"
    )


WRITERS: dict[Any, Callable[[dict[str, Any]], str]] = {
    "core": core,
    "conversation": conversation,
    "server": server,
    "banks": banks,
    "perplexity": perplexity,
    "ppl": runs("Perplexity as a text streams in", "ppl", "ppl.png"),
    "sinks": runs("How many sinks", "sinks", "sinks.png"),
    "cache-size": runs("What a larger cache brings", "cache-size", "cache-size.png"),
    "streameval": streameval,
    "latency": latency,
    "long": long,
}

if __name__ == "__main__":
    sys.exit(main())
