"""`anchorstream eval latency`: time per token of the methods at several cache sizes (StreamingLLM, figure 10)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options
from anchorstream.cli.evaluate import common


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("latency")(latency)


def latency(
    text: common.Text = None,
    dataset: common.Dataset = None,
    sizes: Annotated[str, typer.Option(help="Cache sizes, separated by commas.")] = "256,512,1024,2048,4096",
    rounds: Annotated[int, typer.Option(help="Rounds; medians are shown.")] = 3,
    model: options.Model = "smollm2-135m",
    compute: options.Compute = "int8",
    threads: options.Threads = None,
    out: common.Out = Path("eval-latency"),
    picture: common.Picture = True,
    as_json: options.AsJson = False,
) -> None:
    """Milliseconds per token and memory of recompute, dense (at 4 times the length) and streaming."""
    from anchorstream.cli.console import Stopped, interruptible, load
    from anchorstream.evaluation import latency as evaluation
    from anchorstream.evaluation import plots, results

    wanted = common.numbers(sizes, "--sizes")
    llm = load(model, threads=threads, compute=compute)
    ids = common.read_ids(llm, text, dataset, 4 * max(wanted), repeat=True)
    rows: list[evaluation.Row] = []
    columns = (
        "cache",
        "streaming ms",
        "dense ms",
        "recompute ms",
        "dense / streaming",
        "recompute / streaming",
        "cache MB",
        "dense MB",
    )
    broken = False
    with interruptible() as stopped, common.live(columns) as update:

        def done(row: evaluation.Row) -> None:
            rows.append(row)
            lines = [
                (
                    f"{r.cache_size:,}",
                    *(f"{1000 * t:.2f}" for t in (r.streaming, r.dense, r.recompute)),
                    f"{r.dense / r.streaming:.1f} x",
                    f"{r.recompute / r.streaming:,.0f} x",
                    f"{r.streaming_bytes / 1e6:.0f}",
                    f"{r.dense_bytes / 1e6:.0f}",
                )
                for r in rows
            ]
            update(lines, "cache sizes", len(rows), len(wanted))
            if stopped():
                raise Stopped

        try:
            evaluation.measure(llm, ids, wanted, rounds=rounds, done=done)
        except Stopped:
            broken = len(rows) < len(wanted)
    facts = [row.facts() for row in rows]
    result = results.describe(llm, "latency", rows=facts)
    path = results.write(out, "latency", result)
    drawn = plots.latency(out / "latency.png", facts, model=llm.spec.name) if picture and rows else None
    common.finish(result, path, as_json=as_json, broken=broken, picture=drawn)
