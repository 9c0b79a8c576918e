"""`anchorstream eval ppl`: perplexity of the methods over a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options
from anchorstream.cli.evaluate import common


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ppl")(ppl)


def ppl(
    text: common.Text = None,
    dataset: common.Dataset = None,
    tokens: common.Tokens = 20_480,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "dense,window,recompute,streaming",
    cache_size: options.CacheSize = options.CACHE_SIZE,
    num_sinks: options.NumSinks = options.NUM_SINKS,
    stride: Annotated[int, typer.Option(help="Score only every n-th token of recompute, which is slow; 1: all.")] = 64,
    model: options.Model = "smollm2-135m",
    compute: options.Compute = "int8",
    threads: options.Threads = None,
    out: common.Out = Path("eval-ppl"),
    picture: common.Picture = True,
    as_json: options.AsJson = False,
) -> None:
    """Perplexity against length: streaming stays, window without sinks and dense beyond the trained length fail."""
    import sys

    from anchorstream.cli.console import load
    from anchorstream.cli.evaluate.runs import measure_all
    from anchorstream.errors import ConfigError
    from anchorstream.evaluation import perplexity, plots, results

    if stride < 1:
        raise ConfigError(f"--stride must be at least 1, not {stride}")
    runs = perplexity.plan(methods.split(","), cache_size=cache_size, num_sinks=num_sinks, tokens=tokens, stride=stride)
    llm = load(model, threads=threads, compute=compute)
    ids = common.read_ids(llm, text, dataset, tokens)
    measured, broken = measure_all(llm, ids, runs)
    common_tokens = perplexity.on_common_tokens(measured)
    if any(run.stride > 1 for run in measured):
        said = ", ".join(f"{name} {value:.3f}" for name, value in common_tokens.items())
        print(f"over just the sampled tokens: {said}", file=sys.stderr)
    source = [path.name for path in text] if text else [dataset]
    facts = {run.name: run.facts() for run in measured}
    result = results.describe(llm, "ppl", text=source, tokens=tokens, runs=facts, on_common_tokens=common_tokens)
    path = results.write(out, "ppl", result, {run.name: run.nll[: run.done] for run in measured})
    drawn = None
    if picture and measured:
        drawn = plots.perplexity(
            out / "ppl.png", measured, model=llm.spec.name, trained_context=llm.spec.trained_context
        )
    common.finish(result, path, as_json=as_json, broken=broken, picture=drawn)
