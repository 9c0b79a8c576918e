"""`anchorstream eval cache-size`: what a larger cache brings (StreamingLLM, table 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options
from anchorstream.cli.evaluate import common


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cache-size")(cache_size)


def cache_size(
    text: common.Text = None,
    dataset: common.Dataset = None,
    tokens: common.Tokens = 20_480,
    sizes: Annotated[
        str, typer.Option(help="Cache sizes, sinks included, separated by commas.")
    ] = "256,512,1024,2048,4096",
    num_sinks: options.NumSinks = options.NUM_SINKS,
    model: options.Model = "smollm2-135m",
    compute: options.Compute = "int8",
    threads: options.Threads = None,
    out: common.Out = Path("eval-cache-size"),
    picture: common.Picture = True,
    as_json: options.AsJson = False,
) -> None:
    """Perplexity with different cache sizes. A larger cache does not always help."""
    from anchorstream.cli.evaluate.sweep import sweep
    from anchorstream.evaluation import perplexity

    runs = perplexity.plan_cache_sizes(common.numbers(sizes, "--sizes"), num_sinks=num_sinks, tokens=tokens)
    sweep(
        "cache-size",
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
        f"Cache sizes, {num_sinks} sinks",
    )
