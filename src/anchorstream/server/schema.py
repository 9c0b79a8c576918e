"""What requests may hold. A field that would change the answer and is not supported is refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from anchorstream.server.errors import bad
from anchorstream.server.settings import Overflow

_SESSION = r"^[A-Za-z0-9_.:-]{1,128}$"
_MOST_TOKENS = 1 << 31

SessionName = Annotated[
    str, Field(pattern=_SESSION, description="Names a conversation, for clients that send only what is new.")
]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: StrictStr


class ChatMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="allow")
    role: StrictStr
    content: StrictStr | list[TextPart] | None = None

    def pair(self, place: int) -> tuple[str, str]:
        """Role and text.

        Raises:
            ApiError: what is not supported in a message.
        """
        for name, value in (self.model_extra or {}).items():
            if name in ("name", "refusal", "annotations", "reasoning_content", "timestamp", "id"):
                continue
            if value not in (None, [], {}, ""):
                raise bad(f"{name} in a message is not supported", f"messages[{place}].{name}", "unsupported_parameter")
        if self.content is None:
            if self.role == "assistant":
                return self.role, ""
            raise bad("the message has no content", f"messages[{place}].content")
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return self.role, text


class StreamOptions(BaseModel):
    """Options of a streamed reply."""

    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool | None = False
    include_obfuscation: StrictBool | None = False


class JsonSchema(BaseModel):
    """A schema that the reply must follow."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    name: StrictStr | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """The form of the reply."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(BaseModel):
    """What chat and text completions share."""

    model_config = ConfigDict(extra="allow")
    model: StrictStr | None = Field(default=None, description="The model that /v1/models lists; may be left out.")
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=16)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=0, le=_MOST_TOKENS)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=0, le=_MOST_TOKENS)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: StrictInt | None = None
    n: Annotated[StrictInt, Field(ge=1, le=16)] | None = 1
    logit_bias: Annotated[dict[str, Annotated[Number, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = None
    ignore_eos: StrictBool | None = False
    user: StrictStr | None = None

    def options(self) -> dict[str, Any]:
        """Fields of SamplingConfig that the request sets."""
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        )
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.seed is not None:
            options["seed"] = self.seed % (1 << 63)
        if self.logit_bias:
            try:
                options["logit_bias"] = tuple((int(token), bias) for token, bias in self.logit_bias.items())
            except ValueError:
                raise bad("logit_bias must name token ids", "logit_bias") from None
        return options

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a streamed reply ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, le=_MOST_TOKENS)] | None = None
    logprobs: StrictBool | None = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    overflow: Overflow | None = Field(
        default=None, description="What happens when the conversation outgrows the cache."
    )
    session: SessionName | None = None


class TextRequest(Sampling):
    """POST /v1/completions."""

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(min_length=1, max_length=256)]
        | Annotated[list[StrictInt], Field(min_length=1)]
        | Annotated[list[Annotated[list[StrictInt], Field(min_length=1)]], Field(min_length=1, max_length=256)]
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = False
    best_of: Annotated[StrictInt, Field(ge=1, le=16)] | None = None
    suffix: StrictStr | None = None
    overflow: Overflow | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each prompt, as text or ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class TokenizeRequest(BaseModel):
    """POST /tokenize."""

    model_config = ConfigDict(extra="forbid")
    content: StrictStr
    special: StrictBool = Field(default=True, description="Whether control tokens spelled out become those tokens.")


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="forbid")
    tokens: list[StrictInt]


class ForkRequest(BaseModel):
    """POST /v1/sessions/{id}/fork."""

    model_config = ConfigDict(extra="forbid")
    id: SessionName | None = None


# Fields of OpenAI's interface that do not change what is answered.
_HARMLESS = frozenset(
    {
        "metadata",
        "store",
        "parallel_tool_calls",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "cache_prompt",
    }
)
# Fields that do, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
}


def refuse_unknown(request: Sampling) -> None:
    """A 400 that names a field which would be ignored although it might change the answer.

    Raises:
        ApiError.
    """
    for name, value in (request.model_extra or {}).items():
        if name in _HARMLESS or value is None or value in _NEUTRAL.get(name, ()):
            continue
        raise bad(f"{name} is not supported; leave it out", name, "unsupported_parameter")
