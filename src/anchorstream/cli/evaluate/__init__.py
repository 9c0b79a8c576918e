"""`anchorstream eval`: the paper's measurements, one file each."""

from __future__ import annotations

import typer

from anchorstream.cli.evaluate import cache_size, latency, long, ppl, sinks, streameval


def register(app: typer.Typer) -> None:
    """Add the command and its subcommands."""
    evaluations = typer.Typer(
        name="eval",
        help="Measure a model: perplexity, sinks, cache sizes, recall, latency, endless runs.",
        no_args_is_help=True,
    )
    for command in (ppl, sinks, cache_size, streameval, latency, long):
        command.register(evaluations)
    app.add_typer(evaluations)
