"""Pictures that can be read without the paper. The only home of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anchorstream.errors import MissingExtraError, StorageError
from anchorstream.evaluation.perplexity import Scores


def _figure(title: str, x: str, y: str) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError(
            "pictures need the extra 'eval': pip install 'anchorstream[eval]', or leave them out with --no-picture"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
    return path


def perplexity(path: Path, runs: Sequence[Scores], *, model: str, trained_context: int) -> Path:
    """Running perplexity against length, one line a run; the model's trained length is marked."""
    figure, axes = _figure(
        f"Perplexity of {model} as a text streams in (lower is better)",
        "tokens read",
        "perplexity of all tokens so far",
    )
    for run in runs:
        lengths, values = run.running()
        if len(lengths):
            keep = np.unique(np.geomspace(1, len(lengths), 2000).astype(int)) - 1
            axes.plot(
                lengths[keep],
                values[keep],
                label=f"{run.name}: {run.perplexity:.2f}"
                + (f" (every {run.stride}th token)" if run.stride > 1 else ""),
            )
    axes.set_yscale("log")
    longest = max((run.done for run in runs), default=0)
    if longest > trained_context:
        axes.axvline(
            trained_context, color="grey", linestyle="--", label=f"the model's trained length, {trained_context:,}"
        )
    low = min((run.perplexity for run in runs if np.isfinite(run.perplexity)), default=1.0)
    # the first few tokens surprise any model: they would press all the rest together
    settled = [values[len(values) // 20 :].max() for _, values in (run.running() for run in runs) if len(values)]
    axes.set_ylim(low / 2, 2 * max(settled, default=1.0))
    axes.legend(title="method (sinks + window): perplexity at the end")
    return _save(figure, path)


def bars(path: Path, values: Mapping[str, float], *, title: str, x: str, y: str) -> Path:
    """One bar a setting, its value above it."""
    figure, axes = _figure(title, x, y)
    drawn = axes.bar(list(values), list(values.values()), label=y)
    axes.bar_label(drawn, fmt="%.2f")
    axes.legend()
    return _save(figure, path)


def accuracy(
    path: Path,
    rows: Sequence[Mapping[str, float]],
    *,
    title: str,
    x: str,
    mark: float | None = None,
    mark_label: str = "",
) -> Path:
    """Share of right answers against something, one point a bin."""
    figure, axes = _figure(title, x, "share of right answers")
    axes.plot([row["up_to"] for row in rows], [row["accuracy"] for row in rows], marker="o", label="accuracy")
    axes.set_ylim(-0.05, 1.05)
    if mark is not None:
        axes.axvline(mark, color="grey", linestyle="--", label=mark_label)
    axes.legend()
    return _save(figure, path)


def latency(path: Path, rows: Sequence[Mapping[str, float]], *, model: str) -> Path:
    """Time per token of each method against the cache size."""
    figure, axes = _figure(
        f"Time per token of {model} (lower is better)", "cache size in tokens", "milliseconds per token"
    )
    sizes = [row["cache_size"] for row in rows]
    for name, label in (
        ("recompute", "window, recomputed for every token"),
        ("dense", "dense, at 4 times the length"),
        ("streaming", "streaming"),
    ):
        axes.plot(sizes, [1000 * row[name] for row in rows], marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.legend()
    return _save(figure, path)


def long_run(
    path: Path, perplexities: Sequence[float], speeds: Sequence[float], memory: Sequence[int], *, block: int, model: str
) -> Path:
    """Perplexity, speed and memory per block of an endless stream."""
    figure, axes = _figure(
        f"{model}, one stream: perplexity, speed and memory stay",
        f"tokens read, in blocks of {block:,}",
        "value, relative to the median of its line",
    )
    places = block * np.arange(1, len(perplexities) + 1)
    for label, values in (("perplexity", perplexities), ("tokens per second", speeds), ("resident memory", memory)):
        if len(values):
            middle = float(np.median(values))
            axes.plot(places[: len(values)], np.asarray(values) / middle, label=f"{label} (median {middle:,.1f})")
    axes.axhline(1.5, color="grey", linestyle="--", label="1.5 times the median")
    axes.set_ylim(0, 2)
    axes.legend()
    return _save(figure, path)
