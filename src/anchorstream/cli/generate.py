"""`anchorstream generate`: continue a text, for as long as one likes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate")(generate)


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; '-' or nothing reads standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the text from a file.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens to make; -1 runs until stopped.")] = 128,
    model: options.Model = "smollm2-135m",
    method: options.Method = options.METHOD,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    num_sinks: options.NumSinks = options.NUM_SINKS,
    kv_dtype: options.KvDtype = options.KV_DTYPE,
    temperature: options.Temperature = options.TEMPERATURE,
    top_k: options.TopK = options.TOP_K,
    top_p: options.TopP = options.TOP_P,
    min_p: options.MinP = options.MIN_P,
    repetition_penalty: options.RepetitionPenalty = options.REPETITION_PENALTY,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ignore_end: Annotated[
        bool | None, typer.Option(help="Go on over the model's end token; on with --max-tokens -1.")
    ] = None,
    threads: options.Threads = None,
    compute: options.Compute = "int8",
    as_json: options.AsJson = False,
) -> None:
    """Continue a text. A text longer than the cache just streams through."""
    import json
    import time

    from anchorstream.cli.console import PromptProgress, Stopped, interruptible, load
    from anchorstream.cli.exit_codes import INTERRUPTED
    from anchorstream.cli.text_input import read_prompt

    text = read_prompt(prompt, file)
    llm = load(model, threads=threads, compute=compute)
    stream = llm.stream(method=method, cache_size=cache_size, num_sinks=num_sinks, kv_dtype=kv_dtype)
    pieces: list[str] = []
    with interruptible() as stopped:
        begin = time.perf_counter()
        try:
            stream.feed(text, progress=PromptProgress(stopped))
        except Stopped:
            raise typer.Exit(INTERRUPTED) from None
        fed, read = stream.length, time.perf_counter()
        reply = stream.generation(
            max_tokens,
            stop=stop or (),
            ignore_end=max_tokens == -1 if ignore_end is None else ignore_end,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        for piece in stream.run(reply):
            if as_json:
                pieces.append(piece)
            else:
                print(piece, end="", flush=True)
            if stopped():
                break
        end = time.perf_counter()
    if as_json:
        facts = {
            "text": "".join(pieces),
            "finish_reason": reply.finish_reason or "interrupted",
            "prompt_tokens": fed,
            "generated_tokens": reply.count,
            "prompt_seconds": read - begin,
            "generated_seconds": end - read,
            "stream_length": stream.length,
        }
        print(json.dumps(facts))
    else:
        print(flush=True)
    if stopped():
        raise typer.Exit(INTERRUPTED)
