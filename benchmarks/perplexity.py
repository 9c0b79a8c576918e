"""Perplexity of each method over a book, in float and in integer arithmetic.

Run: python benchmarks/perplexity.py [--text FILE] [--tokens 20480] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import anchorstream
import book
import setup_peers
from anchorstream.evaluation import machine

OPTIONS = {
    "streaming 4+1020": {"cache_size": 1024, "num_sinks": 4},
    "window 0+1024": {"method": "window", "cache_size": 1024},
    "dense": {"method": "dense"},
}


def main() -> int:
    """Print a line per run and JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=book.PATH)
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {name: {} for name in OPTIONS}
    for compute in ("f32", "int8"):
        llm = anchorstream.load(setup_peers.default_model(), compute=compute)
        ids = book.token_ids(llm.tokenizer, arguments.text, arguments.tokens)
        for name, options in OPTIONS.items():
            with llm.stream(**options) as stream:
                figures[name][compute] = float(np.exp(stream.score(ids)[1:].astype(np.float64).mean()))
            print(f"{compute:5} {name:18} {figures[name][compute]:.3f}", flush=True)
    result = {
        "benchmark": "perplexity",
        **machine.describe(),
        "command": "python benchmarks/perplexity.py",
        "text": arguments.text.name,
        "tokens": len(ids),
        "threads": llm.engine.describe()["threads"],
        "engine": llm.engine.describe(),
        "figures": figures,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
