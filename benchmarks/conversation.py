"""Twenty rounds of conversation on anchorstream and its peers, in the way of SwiftInfer's benchmark, beside prefill and decode.

Run: python benchmarks/conversation.py [--outputs 512,1024] [--prompts 20] [--rounds 1] [--only NAME,NAME] [--out FILE]

The same prompts and lengths for all: every prompt is answered with a fixed number of tokens, and the figure is tokens
made per second of wall time, prefill included. Runs take turns; the last line that is printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import core
import setup_peers
from anchorstream.errors import AnchorstreamError
from anchorstream.evaluation import machine
from anchorstream.formats.gguf import open_gguf
from anchorstream.text.chat_template import CHATML, ChatTemplate
from anchorstream.text.tokenizer import TextTokenizer
from anchorstream.text.turns import TurnTexts, tokenize_parts

NAMES = {**core.NAMES, "transformers": "transformers, dense (PyTorch)"}
PROMPTS = Path(__file__).with_name("prompts.txt")


def main() -> int:
    """Run what is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", default="512,1024", help="tokens of each answer")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="peers to run, separated by commas")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    model = setup_peers.default_model()
    prompts = prompt_ids(model, arguments.prompts)
    wanted = arguments.only.split(",") if arguments.only else list(NAMES)
    if unknown := [name for name in wanted if name not in NAMES]:
        sys.exit(f"there is no peer {unknown[0]!r}; known are: {', '.join(NAMES)}")
    peers, versions = core.start_peers({name: NAMES[name] for name in wanted}, str(model), arguments.threads)
    figures: dict[str, dict[str, float]] = {name: {} for name in peers}
    for output in [int(n) for n in arguments.outputs.split(",")]:
        seconds: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(arguments.rounds):
            for name, peer in peers.items():
                try:
                    seconds[name].append(peer("converse", prompts=prompts, output=output))
                except RuntimeError as error:
                    print(f"{NAMES[name]} fails: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
                    continue
                print(f"{output} tokens an answer: {NAMES[name]} took {seconds[name][-1]:.1f} s", flush=True)
        for name, values in seconds.items():
            if values:
                figures[name][str(output)] = len(prompts) * output / statistics.median(values)
    engine = peers[core.OURS]("describe")
    for peer in peers.values():
        peer.close()
    report(figures, versions)
    result = {
        "benchmark": "conversation",
        **machine.describe(),
        "threads": arguments.threads,
        "prompts": len(prompts),
        "engine": engine,
        "versions": versions,
        "figures": figures,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


def prompt_ids(model: Path, count: int) -> list[list[int]]:
    """The prompts as turns of the model's chat template."""
    vocabulary = open_gguf(model).vocabulary
    tokenizer = TextTokenizer(vocabulary)
    try:
        texts = TurnTexts(ChatTemplate(vocabulary.chat_template or CHATML), None)
    except AnchorstreamError as error:
        sys.exit(str(error))
    lines = PROMPTS.read_text().splitlines()[:count]
    opened = [texts.opening([{"role": "user", "content": line}], first=i == 0) for i, line in enumerate(lines)]
    return [
        tokenize_parts(tokenizer, [*texts.pinned, *parts] if i == 0 else parts)[0] for i, parts in enumerate(opened)
    ]


def report(figures: dict[str, dict[str, float]], versions: dict[str, str]) -> None:
    """A table for people."""
    ours: dict[str, Any] = figures[core.OURS]
    print(f"\n{'':36}" + "".join(f"{output + ' tokens':>16}{'ours is':>10}" for output in ours))
    for name, own in figures.items():
        cells = ""
        for output, speed in ours.items():
            value = f"{own[output]:,.1f} t/s" if output in own else "failed"
            cells += f"{value:>16}{f'{speed / own[output]:.1f} x' if output in own and name != core.OURS else '':>10}"
        print(f"{NAMES[name] + ' ' + versions[name]:36}{cells}")


if __name__ == "__main__":
    sys.exit(main())
