"""Runs several perplexity measurements one after the other, with a live table; a break keeps what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from anchorstream.cli.console import Stopped, interruptible
from anchorstream.cli.evaluate.common import live
from anchorstream.evaluation.perplexity import Scores, measure

COLUMNS = ("sinks + window", "perplexity", "tokens", "tokens/s", "sampled")


def row(run: Scores) -> tuple[str, ...]:
    """A line of the table."""
    speed = f"{run.done / run.seconds:,.0f}" if run.seconds else ""
    return (
        run.name,
        f"{run.perplexity:.3f}",
        f"{run.done:,}",
        speed,
        "all" if run.stride == 1 else f"every {run.stride}th token",
    )


def measure_all(llm: Any, ids: Any, runs: Sequence[Scores]) -> tuple[list[Scores], bool]:
    """The runs that have measured something, and whether Ctrl-C broke them off."""
    measured: list[Scores] = []
    with interruptible() as stopped, live(COLUMNS) as update:
        try:
            for run in runs:
                measured.append(run)

                def progress(done: int, perplexity: float, run: Scores = run) -> None:
                    update([row(each) for each in measured], run.name, done, len(ids))
                    if stopped():
                        raise Stopped

                measure(lambda config: llm.stream(**asdict(config)), ids, run, progress=progress)
        except Stopped:
            return [run for run in measured if run.done], True
    return measured, False
