"""A chat: turns in an endless stream, with the system prompt pinned. Endless and steady, not a longer memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anchorstream.config import StreamConfig
from anchorstream.errors import ConfigError, InputError
from anchorstream.stream.generation import Generation
from anchorstream.stream.marks import Mark
from anchorstream.stream.stream import Progress, Stream
from anchorstream.text.chat_template import ChatTemplate
from anchorstream.text.tokenizer import TextTokenizer
from anchorstream.text.turns import Part, TurnTexts, tokenize_parts

DEFAULT_REPLY_TOKENS = 512
_TURNS_TO_UNDO = 8


class Chat:
    """A conversation that never has to end. Made by `LLM.chat`.

    The system prompt is pinned as anchors. Each turn feeds only what is new, and the window begins at a turn's
    beginning, so that the model never sees half a turn.

    Args:
        open_stream: makes a stream from a StreamConfig, which has consumed the pinned ids.
        tokenizer: cuts text.
        template: the model's chat template.
        system: the system prompt; None: the template's own.
        config: of the stream; `num_pinned` is set by the chat.

    Raises:
        ConfigError: the pinned text takes more than half of the cache.
        TemplateError: the template cannot be streamed.
    """

    def __init__(
        self,
        open_stream: Callable[[StreamConfig, list[int]], Stream],
        tokenizer: TextTokenizer,
        template: ChatTemplate,
        *,
        system: str | None,
        config: StreamConfig,
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = TurnTexts(template, system)
        self._open_stream = open_stream
        self.system = system
        self._pinned = tokenizer.with_bos(tokenize_parts(tokenizer, self._texts.pinned)[0])
        self._config = pinning(config, len(self._pinned))
        self._stream: Stream | None = None
        self._generation: Generation | None = None
        self._turns: deque[tuple[Mark, str]] = deque(maxlen=_TURNS_TO_UNDO)
        self.num_turns = 0
        self.clear()

    @property
    def stream(self) -> Stream:
        """The stream underneath."""
        assert self._stream is not None
        return self._stream

    @property
    def num_pinned(self) -> int:
        """Tokens of the pinned text."""
        return len(self._pinned)

    @property
    def last_reply(self) -> Generation | None:
        """The last reply's state: `count` of tokens and `finish_reason`."""
        return self._generation

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        stream = self._open_stream(self._config, self._pinned)
        if self._stream is not None:
            self._stream.close()
        self._stream = stream
        self._turns.clear()
        self.num_turns = 0
        self._generation = None

    def undo(self) -> str:
        """Take the last turn back, at no cost; what the user had said in it. Up to eight turns can be taken back.

        Raises:
            InputError: there is no turn to take back, or the pool has needed its memory.
        """
        if not self._turns:
            raise InputError("there is no turn to take back")
        mark, message = self._turns[-1]
        self.stream.rewind(mark)
        self._turns.pop()[0].drop()
        self.num_turns -= 1
        self._generation = None
        return message

    def regenerate(self, **options: Any) -> Iterator[str]:
        """Answer the last message anew; options as for `send`."""
        return self.send(self.undo(), **options)

    def send(
        self,
        message: str,
        *,
        max_tokens: int | None = DEFAULT_REPLY_TOKENS,
        stop: str | Sequence[str] = (),
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Iterator[str]:
        """Say something and yield the reply as it is made.

        If the caller stops listening, the reply ends there and the turn is closed properly: the chat goes on.

        Args:
            message: what the user says, of any length.
            max_tokens: the reply's limit, so that a model that never ends its turn does not hold the chat.
            stop: texts that end the reply; they are not shown.
            progress: as in `Stream.feed`, for long messages.
            sampling: fields of SamplingConfig.

        Raises:
            InputError: an empty message, or one that is not valid Unicode. Nothing has been consumed.
            ConfigError: an unknown or impossible setting. Nothing has been consumed.
        """
        if not message.strip():
            raise InputError("the message is empty: say something")
        parts = self._texts.opening([{"role": "user", "content": message}], first=self.num_turns == 0)
        generation = self.stream.generation(max_tokens, stop=stop, **sampling)
        return self._turn(message, parts, generation, progress)

    def _turn(
        self, message: str, parts: list[Part], generation: Generation, progress: Progress | None
    ) -> Iterator[str]:
        stream = self.stream
        ids, turns = tokenize_parts(self._tokenizer, parts)
        self._turns.append((stream.mark(), message))
        for ahead in turns:
            stream.begin_turn(ahead)
        self.num_turns += 1
        stream.feed(ids, progress=progress)
        self._generation = generation
        yield from stream.run(generation)


def pinning(config: StreamConfig, num_pinned: int) -> StreamConfig:
    """`config` for a chat whose system prompt takes `num_pinned` tokens.

    Raises:
        ConfigError: more than half of the cache, so that a chat would hardly have a window.
    """
    if config.method != "streaming":
        return config
    if 2 * max(num_pinned, config.num_sinks) > config.cache_size:
        raise ConfigError(
            f"the system prompt takes {num_pinned} tokens, more than half of the cache of {config.cache_size}: "
            f"shorten it, or set cache_size to {2 * num_pinned} or more"
        )
    return config.with_(num_pinned=num_pinned)
