"""`anchorstream chat`: talk to a model for as long as you like."""

from __future__ import annotations

from typing import Annotated

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat")(chat)


def chat(
    model: options.ModelArgument = "smollm2-135m",
    system: Annotated[str | None, typer.Option(help="The system prompt; it is pinned and never forgotten.")] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Tokens of a reply at most; -1: no limit.")
    ] = 512,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    num_sinks: options.NumSinks = options.NUM_SINKS,
    kv_dtype: options.KvDtype = options.KV_DTYPE,
    temperature: options.Temperature = options.TEMPERATURE,
    top_k: options.TopK = options.TOP_K,
    top_p: options.TopP = options.TOP_P,
    min_p: options.MinP = options.MIN_P,
    repetition_penalty: options.RepetitionPenalty = options.REPETITION_PENALTY,
    seed: options.Seed = None,
    threads: options.Threads = None,
    compute: options.Compute = "int8",
) -> None:
    """Chat without end, at constant speed and memory. With piped input each line is a turn."""
    import sys

    from anchorstream.cli.chat_session import ChatSession
    from anchorstream.cli.console import load

    llm = load(model, threads=threads, compute=compute)
    session = ChatSession(
        llm,
        system=system,
        stream={"cache_size": cache_size, "num_sinks": num_sinks, "kv_dtype": kv_dtype},
        settings={
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
        },
    )
    session.run(sys.stdin)
