"""`anchorstream eval sinks`: how many sinks a model needs (StreamingLLM, table 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options
from anchorstream.cli.evaluate import common


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sinks")(sinks)


def sinks(
    text: common.Text = None,
    dataset: common.Dataset = None,
    tokens: common.Tokens = 20_480,
    counts: Annotated[str, typer.Option(help="Numbers of sinks, separated by commas.")] = "0,1,2,4,8",
    cache_size: options.CacheSize = options.CACHE_SIZE,
    model: options.Model = "smollm2-135m",
    compute: options.Compute = "int8",
    threads: options.Threads = None,
    out: common.Out = Path("eval-sinks"),
    picture: common.Picture = True,
    as_json: options.AsJson = False,
) -> None:
    """Perplexity with different numbers of sinks at one cache size."""
    from anchorstream.cli.evaluate.sweep import sweep
    from anchorstream.evaluation import perplexity

    runs = perplexity.plan_sinks(common.numbers(counts, "--counts"), cache_size=cache_size, tokens=tokens)
    sweep(
        "sinks",
        runs,
        model,
        threads,
        compute,
        text,
        dataset,
        tokens,
        out,
        picture,
        as_json,
        f"Attention sinks, cache of {cache_size:,} tokens",
    )
