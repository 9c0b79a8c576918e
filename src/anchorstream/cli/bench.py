"""`anchorstream bench`: how fast a model runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    model: options.ModelArgument = "smollm2-135m",
    text: Annotated[
        Path | None, typer.Option(help="A text to run on; by default random tokens, which cost the same.")
    ] = None,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    prompt: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens made in a round.")] = 128,
    rounds: Annotated[int, typer.Option(help="Rounds; medians are shown.")] = 5,
    threads: options.Threads = None,
    compute: options.Compute = "int8",
    as_json: options.AsJson = False,
) -> None:
    """Prefill and decode speed, time to first token and between tokens, memory, share of the bandwidth limit."""
    import json

    import numpy as np

    from anchorstream.cli.console import load
    from anchorstream.errors import ConfigError
    from anchorstream.evaluation import results, speed, texts

    for name, value in (("prompt", prompt), ("tokens", tokens), ("rounds", rounds)):
        if value < 1:
            raise ConfigError(f"--{name} must be at least 1, not {value}")
    llm = load(model, threads=threads, compute=compute)
    count = max(cache_size + 64, prompt)
    if text:
        ids = texts.token_ids(llm.tokenizer, texts.read_files([text]), count)
    else:
        ids = np.random.default_rng(0).integers(0, llm.spec.vocab_size, count).astype(np.int32)
    figures = speed.measure(llm, ids, cache_size=cache_size, prompt=prompt, tokens=tokens, rounds=rounds)
    result = results.describe(
        llm, "bench", cache_size=cache_size, prompt=prompt, tokens=tokens, rounds=rounds, figures=figures
    )
    if as_json:
        print(json.dumps(result))
        return
    f = figures
    limit = f["read_bandwidth"] / f["bytes_per_token"]
    rows = (
        ("prefill", f"{f['prefill_tokens_per_second']:,.0f} tokens/s ({prompt} tokens into an empty stream)"),
        ("prefill, full cache", f"{f['prefill_at_full_cache_tokens_per_second']:,.0f} tokens/s"),
        ("decode, full cache", f"{f['decode_tokens_per_second']:,.0f} tokens/s (cache of {cache_size:,})"),
        ("first token", f"{1000 * f['time_to_first_token']:.0f} ms after a prompt of {prompt}"),
        (
            "between tokens",
            f"{1000 * f['between_tokens_p50']:.2f} ms (p50), {1000 * f['between_tokens_p99']:.2f} ms (p99)",
        ),
        ("peak memory", f"{f['peak_memory_bytes'] / 1e6:,.0f} MB"),
        (
            "bandwidth",
            f"{f['read_bandwidth'] / 1e9:.1f} GB/s would give {limit:,.0f} tokens/s: {f['share_of_bandwidth']:.0%} reached",
        ),
        (
            "machine",
            f"{result['processor']}, {result['engine']['instruction_set']}, {result['engine']['threads']} threads",
        ),
    )
    for name, said in rows:
        print(f"{name:<20} {said}")
