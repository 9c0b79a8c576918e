"""Options that several commands share, with their defaults read from the dataclasses they fill."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import typer

from anchorstream.config import COMPUTES, KV_DTYPES, METHODS, SamplingConfig, StreamConfig


def default(cls: type, name: str) -> Any:
    """The one default of a dataclass field."""
    return next(field.default for field in fields(cls) if field.name == name)


def _one_of(choices: tuple[str, ...]) -> str:
    return f"One of: {', '.join(choices)}."


Model = Annotated[str, typer.Option("--model", "-m", help="An alias (see `anchorstream list`) or a .gguf file.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="An alias (see `anchorstream list`) or a .gguf file.")
]
Method = Annotated[str, typer.Option(help=f"How the cache is kept. {_one_of(METHODS)}")]
CacheSize = Annotated[int, typer.Option(help="Earlier tokens that a token may attend to, anchors included.")]
NumSinks = Annotated[int, typer.Option(help="First tokens that are kept for ever as attention sinks.")]
KvDtype = Annotated[str, typer.Option(help=f"Precision of the cache. {_one_of(KV_DTYPES)}")]
Threads = Annotated[int | None, typer.Option(help="Threads; by default the physical cores that this process may use.")]
Compute = Annotated[str, typer.Option(help=f"Arithmetic. {_one_of(COMPUTES)}")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep only the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less likely than this times the likeliest.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 makes repetition less likely.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends a reply; may be given several times.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

METHOD: str = default(StreamConfig, "method")
CACHE_SIZE: int = default(StreamConfig, "cache_size")
NUM_SINKS: int = default(StreamConfig, "num_sinks")
KV_DTYPE: str = default(StreamConfig, "kv_dtype")
TEMPERATURE: float = default(SamplingConfig, "temperature")
TOP_K: int = default(SamplingConfig, "top_k")
TOP_P: float = default(SamplingConfig, "top_p")
MIN_P: float = default(SamplingConfig, "min_p")
REPETITION_PENALTY: float = default(SamplingConfig, "repetition_penalty")
