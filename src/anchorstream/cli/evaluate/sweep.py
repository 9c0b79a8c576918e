"""One perplexity for each of several settings: table, JSON and a picture of bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anchorstream.cli.console import load
from anchorstream.cli.evaluate import common
from anchorstream.cli.evaluate.runs import measure_all
from anchorstream.evaluation import plots, results
from anchorstream.evaluation.perplexity import Scores


def sweep(
    name: str,
    runs: Sequence[Scores],
    model: str,
    threads: int | None,
    compute: str,
    text: Sequence[Path] | None,
    dataset: str | None,
    tokens: int,
    out: Path,
    picture: bool,
    as_json: bool,
    title: str,
) -> None:
    """Measure the runs and write what came out."""
    llm = load(model, threads=threads, compute=compute)
    ids = common.read_ids(llm, text, dataset, tokens)
    measured, broken = measure_all(llm, ids, runs)
    source = [path.name for path in text] if text else [dataset]
    result = results.describe(llm, name, text=source, tokens=tokens, runs={run.name: run.facts() for run in measured})
    path = results.write(out, name, result, {run.name: run.nll[: run.done] for run in measured})
    drawn = None
    if picture and measured:
        values = {run.name: run.perplexity for run in measured}
        drawn = plots.bars(
            out / f"{name}.png",
            values,
            title=f"{title}: perplexity of {llm.spec.name} over {tokens:,} tokens (lower is better)",
            x="sinks + window, in tokens",
            y="perplexity",
        )
    common.finish(result, path, as_json=as_json, broken=broken, picture=drawn)
