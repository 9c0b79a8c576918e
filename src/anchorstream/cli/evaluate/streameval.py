"""`anchorstream eval streameval`: does a stream find what it was told some lines ago (StreamingLLM, figure 9, table 7)?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options
from anchorstream.cli.evaluate import common


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("streameval")(streameval)


def streameval(
    lines: Annotated[int, typer.Option(help="Lines to feed.")] = 1000,
    distance: Annotated[int, typer.Option(help="How many lines back is asked for, against the stream's length.")] = 20,
    distances: Annotated[
        str, typer.Option(help="How many lines back is asked for, against one another.")
    ] = "10,20,30,40,50,60,80,100",
    method: options.Method = options.METHOD,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    num_sinks: options.NumSinks = options.NUM_SINKS,
    names: Annotated[
        str, typer.Option(help="How lines are named: words, or numbers as in the paper (too hard for small models).")
    ] = "words",
    seed: Annotated[int, typer.Option(help="Of the lines.")] = 0,
    model: options.Model = "smollm2-135m",
    compute: options.Compute = "int8",
    threads: options.Threads = None,
    out: common.Out = Path("eval-streameval"),
    picture: common.Picture = True,
    as_json: options.AsJson = False,
) -> None:
    """Accuracy against the stream's length, and against the distance of what is asked for.

    What has left the cache cannot be found: accuracy falls to 0 where the distance passes the cache.
    """
    from anchorstream.cli.console import Stopped, interruptible, load
    from anchorstream.errors import ConfigError
    from anchorstream.evaluation import plots, results
    from anchorstream.evaluation import streameval as evaluation

    asked = sorted({distance, *common.numbers(distances, "--distances")})
    if asked[0] < 1 or lines < 10:
        raise ConfigError(f"distances must be at least 1 and lines at least 10, not {asked[0]} and {lines}")
    llm = load(model, threads=threads, compute=compute)
    settings = {"method": method, "cache_size": cache_size, "num_sinks": num_sinks}
    per_line = len(llm.tokenize("".join(line.text for line in evaluation.lines(100, seed, names)))) / 100
    answers: list[evaluation.Answer] = []
    broken = False
    with interruptible() as stopped, common.live(("lines back", "about tokens back", "queries", "right")) as update:

        def rows() -> list[tuple[str, ...]]:
            by = evaluation.accuracy_by(answers, "distance", asked)
            return [
                (str(r["up_to"]), f"{r['up_to'] * per_line:,.0f}", str(r["queries"]), f"{r['accuracy']:.0%}")
                for r in by
            ]

        def progress(done: int, total: int) -> None:
            update(rows(), "lines", done, total)
            if stopped():
                raise Stopped

        try:
            for answer in evaluation.measure(
                llm, count=lines, distances=asked, options=settings, seed=seed, names=names, progress=progress
            ):
                answers.append(answer)
        except Stopped:
            broken = True
        update(rows(), "lines", lines, lines)
    longest = max((answer.tokens for answer in answers), default=0)
    bins = [max(1, longest * i // 10) for i in range(1, 11)]
    by_length = evaluation.accuracy_by([a for a in answers if a.distance == distance], "tokens", bins)
    by_distance = evaluation.accuracy_by(answers, "distance", asked)
    result = results.describe(
        llm,
        "streameval",
        lines=lines,
        distance=distance,
        seed=seed,
        names=names,
        stream=settings,
        tokens_per_line=per_line,
        by_length=by_length,
        by_distance=by_distance,
    )
    path = results.write(out, "streameval", result)
    if picture and answers:
        name = llm.spec.name
        plots.accuracy(
            out / "streameval-length.png",
            by_length,
            title=f"StreamEval of {name}: {distance} lines back, as the stream grows",
            x="tokens in the stream",
        )
        plots.accuracy(
            out / "streameval-distance.png",
            by_distance,
            title=f"StreamEval of {name}: how far back is asked for (what has left the cache is gone)",
            x="lines back",
            mark=cache_size / per_line,
            mark_label=f"the cache, {cache_size:,} tokens",
        )
    common.finish(result, path, as_json=as_json, broken=broken)
