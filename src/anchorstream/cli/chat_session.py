"""The loop behind `anchorstream chat`: reads turns and commands, shows replies as they are made."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from anchorstream.cli.console import PromptProgress, Stopped, interruptible
from anchorstream.config import SamplingConfig, make
from anchorstream.errors import AnchorstreamError, ConfigError, InputError
from anchorstream.stream.generation import Limits
from anchorstream.text.utf8 import decode

_FENCE = '"""'
_HELP = """\
/info               the cache, the stream's length and the speed
/set                the settings; /set NAME VALUE changes one (temperature, top_p, max_tokens, seed, ...)
/set system TEXT    another system prompt; the chat begins anew
/again              another answer to the last message
/undo               take the last turn back
/clear              forget all turns; the system prompt stays
/bye                leave (Ctrl-D too)
/?                  this list
\"\"\"                 begins and ends a message of several lines
Ctrl-C              stops a reply, not the chat"""


class ChatSession:
    """One chat on a terminal or a pipe.

    Args:
        llm: the loaded model.
        system: the system prompt, or None.
        stream: options of the stream.
        settings: of the replies: `max_tokens` and fields of SamplingConfig.
    """

    def __init__(self, llm: Any, *, system: str | None, stream: dict[str, Any], settings: dict[str, Any]) -> None:
        self._llm = llm
        self._stream = stream
        self._check(settings)
        self._settings = settings
        self._chat = llm.chat(system, **stream)
        self._tokens = 0
        self._seconds = 0.0

    def run(self, source: TextIO) -> None:
        """Until the input ends or the user leaves."""
        terminal = source.isatty()
        if terminal:
            self._greet()
        for message in _messages(source, terminal):
            if message.startswith("/"):
                if not self._command(message):
                    break
            elif message.strip():
                self._reply(message)

    def _greet(self) -> None:
        import readline  # noqa: F401  - gives input() line editing and a history

        config = self._chat.stream.config
        print(
            f"{self._llm.spec.name}: this chat has no end, and stays as fast and as small as it begins.\n"
            f"Endless and steady, not a longer memory: the model sees the system prompt ({self._chat.num_pinned} tokens) "
            f"and the last {config.window} tokens.\n"
            f"/? lists the commands."
        )

    def _reply(self, message: str) -> None:
        with interruptible() as stopped:
            begin = time.perf_counter()
            try:
                for piece in self._chat.send(message, progress=PromptProgress(stopped), **self._settings):
                    print(piece, end="", flush=True)
                    if stopped():
                        break
            except Stopped:
                pass
            except AnchorstreamError as error:
                print(f"anchorstream: {error}", file=sys.stderr)
                return
            print("\n", flush=True)
        if self._chat.last_reply:
            self._tokens += self._chat.last_reply.count
            self._seconds += time.perf_counter() - begin

    def _command(self, line: str) -> bool:
        """Obey a command; False to leave."""
        name, _, rest = line.strip().partition(" ")
        if name in ("/bye", "/exit", "/quit"):
            return False
        try:
            if name in ("/?", "/help"):
                print(_HELP)
            elif name == "/clear":
                self._chat.clear()
                print("The chat begins anew; the system prompt stays.")
            elif name == "/again":
                self._reply(self._chat.undo())
            elif name == "/undo":
                print(f"Taken back: {self._chat.undo()}")
            elif name == "/info":
                self._info()
            elif name == "/set":
                self._set(rest.strip())
            else:
                print(f"There is no command {name}; /? lists them.")
        except AnchorstreamError as error:
            print(f"anchorstream: {error}", file=sys.stderr)
        return True

    def _info(self) -> None:
        stream = self._chat.stream
        config, held = stream.config, stream.cached_indices
        anchors = min(len(held), config.num_anchors)
        speed = f"{self._tokens / self._seconds:.0f} tokens/s" if self._seconds else "no reply yet"
        print(
            f"model     {self._llm.spec.name}\n"
            f"cache     {len(held)} of {config.cache_size} tokens: {anchors} anchors, {len(held) - anchors} in the window; "
            f"{stream.nbytes / 1e6:.1f} MB\n"
            f"stream    {stream.length:,} tokens in {self._chat.num_turns} turns, {stream.length - len(held):,} of them evicted; "
            f"it may grow without bound\n"
            f"speed     {speed}"
        )

    def _set(self, text: str) -> None:
        name, _, value = text.removeprefix("parameter ").partition(" ")
        value = value.strip()
        if not name:
            system = "the model's own" if self._chat.system is None else self._chat.system
            print("\n".join(f"{key:<20} {value}" for key, value in {**self._settings, "system": system}.items()))
        elif name == "system":
            self._chat = self._llm.chat(value.strip('"') or None, **self._stream)
            print("The chat begins anew with this system prompt.")
        elif name in self._settings:
            changed = {**self._settings, name: _parse(name, value)}
            self._check(changed)
            self._settings = changed
            print(f"{name} is {changed[name]}")
        else:
            raise ConfigError(f"there is no setting {name!r}; there are: system, {', '.join(self._settings)}")

    def _check(self, settings: dict[str, Any]) -> None:
        sampling = dict(settings)
        Limits.make(sampling.pop("max_tokens"), ())
        make(SamplingConfig, sampling)


def _parse(name: str, value: str) -> int | float | None:
    if name == "seed" and value.lower() in ("none", ""):
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{name} must be a number, not {value!r}") from None


def _messages(source: TextIO, terminal: bool) -> Iterator[str]:
    """What the user says: a line, or several between fences."""
    inside = False
    lines = _lines(source, terminal, lambda: "... " if inside else ">>> ")
    for line in lines:
        if not line.lstrip().startswith(_FENCE):
            yield line
            continue
        text, inside = line.lstrip()[len(_FENCE) :], True
        while not text.rstrip().endswith(_FENCE):
            more = next(lines, None)
            if more is None:
                break
            text += "\n" + more
        inside = False
        yield text.rstrip().removesuffix(_FENCE).strip("\n")


def _lines(source: TextIO, terminal: bool, prompt: Callable[[], str]) -> Iterator[str]:
    while True:
        if not terminal:
            raw = source.buffer.readline() if hasattr(source, "buffer") else source.readline().encode()
            if not raw:
                return
            try:
                yield decode(raw, "a line of standard input").rstrip("\r\n")
            except InputError as error:
                print(f"anchorstream: {error}; the line is left out", file=sys.stderr)
            continue
        try:
            yield input(prompt())
        except EOFError:
            print()
            return
        except UnicodeDecodeError:
            print("anchorstream: that was not UTF-8 text; the line is left out", file=sys.stderr)
        except KeyboardInterrupt:
            print("\n/bye or Ctrl-D leaves.")
