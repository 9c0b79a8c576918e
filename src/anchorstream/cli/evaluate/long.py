"""`anchorstream eval long`: a stream of millions of tokens that a kill does not lose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options
from anchorstream.cli.evaluate import common


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("long")(long)


def long(
    text: common.Text = None,
    dataset: common.Dataset = None,
    tokens: common.Tokens = 4_000_000,
    block: Annotated[
        int, typer.Option(help="Tokens of a block, for each of which perplexity, speed and memory are told.")
    ] = 100_000,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    num_sinks: options.NumSinks = options.NUM_SINKS,
    every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    model: options.Model = "smollm2-135m",
    compute: options.Compute = "int8",
    threads: options.Threads = None,
    out: common.Out = Path("eval-long"),
    picture: common.Picture = True,
    as_json: options.AsJson = False,
) -> None:
    """Run one stream over a text that begins again where it ends. The same command goes on after a break."""
    import statistics

    from anchorstream.cli.console import Stopped, interruptible, load
    from anchorstream.errors import ConfigError
    from anchorstream.evaluation import long_run, plots, results

    if block < 1000:
        raise ConfigError(f"--block must be at least 1,000 tokens, not {block}")
    llm = load(model, threads=threads, compute=compute)
    ids = common.read_ids(llm, text, dataset, None)
    settings = {"cache_size": cache_size, "num_sinks": num_sinks}
    broken = False
    run = long_run.LongRun(tokens, block)
    with interruptible() as stopped, common.live(("tokens", "perplexity", "tokens/s", "resident MB")) as update:

        def progress(state: long_run.LongRun) -> None:
            nonlocal run
            run = state
            lines = zip(state.perplexities, state.speeds, state.memory, strict=True)
            rows = [
                (f"{(i + 1) * block:,}", f"{p:.2f}", f"{s:,.0f}", f"{m / 1e6:.1f}") for i, (p, s, m) in enumerate(lines)
            ]
            update(rows[-15:], "tokens", state.done, state.tokens)
            if picture and state.perplexities and state.done % block == 0:
                draw()
            if stopped():
                raise Stopped

        def draw() -> Path:
            return plots.long_run(
                out / "long.png", run.perplexities, run.speeds, run.memory, block=block, model=llm.spec.name
            )

        try:
            run = long_run.run(llm, ids, run, out, settings, every=every, progress=progress)
        except Stopped:
            broken = run.done < tokens
    worst = max(run.perplexities) / statistics.median(run.perplexities) if run.perplexities else None
    result = results.describe(
        llm,
        "long",
        tokens=run.done,
        block=block,
        stream=settings,
        perplexities=run.perplexities,
        speeds=run.speeds,
        memory=run.memory,
        worst_over_median=worst,
    )
    path = results.write(out, "long", result)
    common.finish(
        result, path, as_json=as_json, broken=broken, picture=draw() if picture and run.perplexities else None
    )
