"""Every knob of a stream and of sampling, each with its one default. Imports only errors.

The command line reads its defaults from these dataclasses, so that a default lives in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from anchorstream.errors import ConfigError

Method = Literal["streaming", "dense", "window", "recompute"]
KvDtype = Literal["auto", "f16", "f32", "q8", "q4"]
Compute = Literal["int8", "f32"]

METHODS: tuple[str, ...] = get_args(Method)
KV_DTYPES: tuple[str, ...] = get_args(KvDtype)
COMPUTES: tuple[str, ...] = get_args(Compute)

T = TypeVar("T")


def make(cls: type[T], values: dict[str, Any]) -> T:
    """Build the dataclass `cls` from `values`; an unknown key is a ConfigError that names the nearest known one."""
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            from difflib import get_close_matches

            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
            raise ConfigError(f"unknown option {key!r} of {cls.__name__}: {hint}")
    return cls(**values)


def _check_int(owner: str, name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{owner}.{name} must be a whole number of at least {least}, not {value!r}")


def choice(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """A ConfigError where `value` is not one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{owner}.{name} must be one of {', '.join(choices)}, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """How a stream keeps its cache.

    Attributes:
        method: `streaming`, `dense`, `window` or `recompute` (DESIGN: "The four methods, exactly").
        cache_size: C, how many *earlier* tokens a token may attend to, anchors included. Ignored by `dense`.
        num_sinks: how many of the stream's first tokens are kept for ever as attention sinks.
        num_pinned: how many of the stream's first tokens are pinned as anchors (a system prompt). The anchors
            are the first `max(num_sinks, num_pinned)` tokens: the sinks are the beginning of the pinned text.
        attention_band_width: how many slots back within the window a token may look; None: the whole window.
            Anchors are always seen.
        kv_dtype: precision of cached keys and values; `auto` is f16 where arithmetic is int8 and f32 where it is f32.
            `q8` and `q4` keep the window in 8 or 4 bits; the anchors and the newest 64 tokens stay f16.
        whole_turns: the window begins only at the beginning of a turn, as long as half of the window remains.
    """

    method: Method = "streaming"
    cache_size: int = 1024
    num_sinks: int = 4
    num_pinned: int = 0
    attention_band_width: int | None = None
    kv_dtype: KvDtype = "auto"
    whole_turns: bool = False

    def __post_init__(self) -> None:
        owner = "StreamConfig"
        choice(owner, "method", self.method, METHODS)
        choice(owner, "kv_dtype", self.kv_dtype, KV_DTYPES)
        _check_int(owner, "cache_size", self.cache_size, 1)
        _check_int(owner, "num_sinks", self.num_sinks, 0)
        _check_int(owner, "num_pinned", self.num_pinned, 0)
        if self.attention_band_width is not None:
            _check_int(owner, "attention_band_width", self.attention_band_width, 1)
        if self.method == "streaming" and self.cache_size < self.num_anchors + 1:
            raise ConfigError(
                f"cache_size {self.cache_size} leaves no window beside {self.num_anchors} anchors: "
                f"it must be at least {self.num_anchors + 1}"
            )
        if self.method != "streaming":
            if self.num_pinned:
                raise ConfigError(f"num_pinned needs method 'streaming', not {self.method!r}")
            if self.whole_turns:
                raise ConfigError(f"whole_turns needs method 'streaming', not {self.method!r}")
        if self.method == "recompute" and self.attention_band_width is not None:
            raise ConfigError("attention_band_width does not go with method 'recompute'")

    @property
    def num_anchors(self) -> int:
        """A: tokens at the beginning of the stream that are never evicted (0 for methods without anchors)."""
        return max(self.num_sinks, self.num_pinned) if self.method == "streaming" else 0

    @property
    def window(self) -> int:
        """W = C - A: how many earlier tokens besides the anchors a token may attend to."""
        return self.cache_size - self.num_anchors

    def with_(self, **changes: Any) -> StreamConfig:
        """A copy with `changes`, checked again."""
        known = {field.name for field in fields(self)}
        for key in changes:
            if key not in known:
                make(StreamConfig, {key: changes[key]})
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How the next token is chosen from the logits.

    Attributes:
        temperature: 0 is greedy; otherwise the logits are divided by it.
        top_k: keep only the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities add up to at least this.
        min_p: drop tokens less likely than this times the likeliest.
        repetition_penalty: divides positive and multiplies negative logits of tokens among the last `penalty_last_n`.
        penalty_last_n: how many tokens back the repetition penalty looks.
        presence_penalty: taken off the logit of each token that this reply already holds.
        frequency_penalty: taken off it once for each time that this reply holds it.
        seed: of the generator; None draws one.
        logit_bias: added to the logit of each named token id, as pairs (id, bias).
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        owner = "SamplingConfig"
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ConfigError(f"{owner}.{name} must be a number from {low:g} to {high:g}, not {value!r}")
        _check_int(owner, "top_k", self.top_k, 0)
        _check_int(owner, "penalty_last_n", self.penalty_last_n, 0)
        if self.seed is not None:
            _check_int(owner, "seed", self.seed, 0)
