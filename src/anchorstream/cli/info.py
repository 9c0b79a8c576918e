"""`anchorstream info`: what a model is, and what this machine makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("info")(info)


def info(
    model: options.ModelArgument = "smollm2-135m",
    method: options.Method = options.METHOD,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    kv_dtype: options.KvDtype = options.KV_DTYPE,
    threads: options.Threads = None,
    stream: Annotated[
        Path | None, typer.Option(help="Show a saved stream instead: what it holds, bank by bank.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a model, the machine's instruction set, the size of the cache, and how long a stream may be."""
    import json

    if stream is not None:
        from anchorstream.cli.stream_picture import show

        show(stream, as_json=as_json)
        return
    from anchorstream.config import StreamConfig
    from anchorstream.formats import hub
    from anchorstream.formats.gguf import open_gguf
    from anchorstream.kernels import native

    config = StreamConfig(method=method, cache_size=cache_size, kv_dtype=kv_dtype)  # type: ignore[arg-type]
    path = hub.resolve(model)
    file = open_gguf(path)
    spec = file.spec
    precision = "f16" if kv_dtype == "auto" else kv_dtype
    per_token = native.kv_bytes_per_token(precision, spec.num_layers, spec.num_kv_heads, spec.head_size)
    dense = config.method == "dense"
    facts = {
        "model": spec.name,
        "file": str(path),
        "architecture": spec.architecture,
        "quantization": file.quantization,
        "file_bytes": path.stat().st_size,
        "layers": spec.num_layers,
        "heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size,
        "vocabulary": spec.vocab_size,
        "trained_context": spec.trained_context,
        "instruction_set": native.instruction_set(),
        "instruction_sets": native.instruction_sets(),
        "threads": threads or native.usable_cores(),
        "method": config.method,
        "bytes_per_cached_token": per_token,
        "cache_bytes": None if dense else per_token * config.cache_size,
        "stream_length": f"{spec.trained_context} (dense fails beyond the trained context)" if dense else "unbounded",
    }
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    cache = (
        "grows with the stream"
        if dense
        else f"{per_token * config.cache_size / 1e6:.1f} MB for {config.cache_size} tokens"
    )
    rows = {
        "model": f"{spec.name} ({spec.architecture}, {file.quantization}, {path.stat().st_size / 1e6:.0f} MB)",
        "file": path,
        "shape": f"{spec.num_layers} layers, {spec.num_heads} heads over {spec.num_kv_heads} kv heads of {spec.head_size}",
        "vocabulary": f"{spec.vocab_size:,} tokens",
        "trained context": f"{spec.trained_context:,} tokens",
        "instruction set": f"{facts['instruction_set']} (this machine can run {', '.join(native.instruction_sets())})",
        "threads": facts["threads"],
        "method": config.method,
        "cache": f"{per_token:,} bytes a token; {cache}",
        "stream length": facts["stream_length"],
    }
    for name, value in rows.items():
        print(f"{name:<16} {value}")
