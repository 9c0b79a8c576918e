"""`anchorstream serve`: an OpenAI-compatible server whose conversations never have to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    model: options.ModelArgument = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is open to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="0 takes any that is free.")] = 8080,
    api_key: Annotated[
        str | None, typer.Option(help="What clients must send.", envvar="ANCHORSTREAM_API_KEY", show_envvar=True)
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file that holds the key.")] = None,
    sessions: Annotated[
        Path | None, typer.Option(help="A folder for conversations; by default one in your data folder.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep conversations over a restart.")] = True,
    max_sessions: Annotated[int, typer.Option(help="Conversations that are kept.")] = 1000,
    overflow: Annotated[
        str, typer.Option(help="A conversation longer than the cache: 'stream' goes on, 'error' refuses.")
    ] = "stream",
    parallel: Annotated[int, typer.Option(help="Conversations that are computed at the same time.")] = 8,
    queue: Annotated[int, typer.Option(help="Requests that may wait beside them.")] = 64,
    cache_mb: Annotated[
        int | None, typer.Option(help="Memory for all conversations; by default half of what is free.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a reply, where a request does not say.")] = 512,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    num_sinks: options.NumSinks = options.NUM_SINKS,
    kv_dtype: options.KvDtype = options.KV_DTYPE,
    cors: Annotated[
        list[str] | None, typer.Option(help="A web page's origin that may use the server; '*' for all.")
    ] = None,
    threads: options.Threads = None,
    compute: options.Compute = "int8",
) -> None:
    """Serve the OpenAI API and a page to chat on, until Ctrl-C."""
    import sys

    from anchorstream.cli.console import load
    from anchorstream.cli.serve_options import model_name, read_key, sessions_folder
    from anchorstream.config import StreamConfig
    from anchorstream.errors import MissingExtraError
    from anchorstream.kernels import native
    from anchorstream.server.settings import ServerConfig

    key = read_key(api_key, api_key_file)
    config = ServerConfig(
        host=host,
        port=port,
        api_key=key,
        folder=sessions_folder(sessions) if keep else None,
        stream=StreamConfig(cache_size=cache_size, num_sinks=num_sinks, kv_dtype=kv_dtype, whole_turns=True),  # type: ignore[arg-type]
        overflow=overflow,  # type: ignore[arg-type]
        parallel=parallel,
        queue=queue,
        cache_bytes=None if cache_mb is None else cache_mb << 20,
        max_sessions=max_sessions,
        max_tokens=max_tokens,
        cors_origins=tuple(cors or ()),
    )
    try:
        from anchorstream.server.run import serve as run
    except ImportError as error:
        raise MissingExtraError(
            f'the server needs the extra "serve": pip install "anchorstream[serve]" ({error.name} is missing)'
        ) from None
    if not config.is_loopback and key is None:
        print(f"anchorstream: anyone who reaches {host} can use this server; --api-key would close it", file=sys.stderr)
    free = native.available_memory()
    limit = config.cache_bytes or (free // 2 if free else None)

    def announce(address: str) -> None:
        print(f"anchorstream serves {model_name(model)} at {address} (OpenAI API under {address}/v1)", flush=True)

    run(
        config,
        lambda: load(model, threads=threads, compute=compute, cache_bytes=limit),
        model_name(model),
        announce=announce,
    )
