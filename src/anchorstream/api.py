"""The front door: `load` a model, then open streams and chats on it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any

from anchorstream.cache import snapshot
from anchorstream.cache.banks import Pool
from anchorstream.config import KvDtype, StreamConfig, choice, make
from anchorstream.engine.base import Engine
from anchorstream.errors import AnchorstreamError, ConfigError, InputError, TemplateError
from anchorstream.formats import hub
from anchorstream.formats.gguf import open_gguf
from anchorstream.formats.weights import ModelFile
from anchorstream.kernels import native
from anchorstream.models.spec import ModelSpec
from anchorstream.stream.prefix import Prefix, Prefixes
from anchorstream.stream.stream import Stream
from anchorstream.text.tokenizer import TextTokenizer

ENGINES = ("swift", "reference")


def load(
    model: str | Path = hub.DEFAULT_MODEL,
    *,
    threads: int | None = None,
    compute: str = "int8",
    engine: str = "swift",
    cache_bytes: int | None = None,
    progress: hub.Progress | None = None,
) -> LLM:
    """Load a model.

    Args:
        model: an alias (pulled if need be), a .gguf file, or a folder that holds one.
        threads: how many threads compute; None: the physical cores that this process may use.
        compute: `int8` (fast) or `f32` (everything in float32, for checking).
        engine: `swift` (the compiled core) or `reference` (numpy; slow, for tests).
        cache_bytes: what the caches of all streams may take together; None: what the machine has free.
        progress: called with bytes so far and bytes in all while a model is pulled.

    Raises:
        ModelNotFoundError, DownloadError, ModelFileError, UnsupportedModelError, ConfigError.
    """
    path = hub.resolve(model, progress=progress)
    with _no_garbage_collection():
        file = open_gguf(path)
        tokenizer = TextTokenizer(file.vocabulary)
        # while the core, which needs no Python, packs the weights
        beside = Thread(target=_prepare, args=(tokenizer,), daemon=True)
        beside.start()
        made = _make_engine(engine, file, threads, compute)
        beside.join()
    return LLM(file, made, tokenizer, cache_bytes=cache_bytes)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A vocabulary makes a hundred thousand small objects at once, none of them garbage: looking through them again and
    again would take a tenth of the time to load."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _prepare(tokenizer: TextTokenizer) -> None:
    with suppress(AnchorstreamError):  # it will be raised again where the tokenizer is used
        tokenizer.prepare()


def _make_engine(name: str, file: ModelFile, threads: int | None, compute: str) -> Engine:
    choice("load", "engine", name, ENGINES)
    if name == "reference":
        from anchorstream.engine.reference import ReferenceEngine

        return ReferenceEngine(file)
    from anchorstream.engine.swift import SwiftEngine

    return SwiftEngine(file, threads=threads, compute=compute)


class LLM:
    """A loaded model. Any number of streams may be open on it; one thread at a time may use them."""

    def __init__(
        self, file: ModelFile, engine: Engine, tokenizer: TextTokenizer, *, cache_bytes: int | None = None
    ) -> None:
        if cache_bytes is not None and cache_bytes < 1:
            raise ConfigError(f"cache_bytes must be at least 1, not {cache_bytes}")
        self.pool = Pool(cache_bytes, lambda: native.available_memory())
        self.prefixes = Prefixes()
        self._file = file
        self._engine = engine
        self.tokenizer = tokenizer

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        return self._file.spec

    @property
    def engine(self) -> Engine:
        """What computes."""
        return self._engine

    @property
    def path(self) -> Path:
        """The model's file."""
        return self._file.path

    @property
    def quantization(self) -> str:
        """How the file's weights are stored, for people."""
        return self._file.quantization

    @cached_property
    def chat_template(self) -> Any:
        """The model's chat template, compiled.

        Raises:
            TemplateError: the model has none, or one that does not parse.
        """
        from anchorstream.text.chat_template import CHATML, ChatTemplate

        vocabulary = self._file.vocabulary
        source = vocabulary.chat_template
        if source is None:
            if "<|im_start|>" not in vocabulary.tokens:
                raise TemplateError(f"{self._file.path} has no chat template: it is no chat model; use generate")
            source = CHATML
        piece = self.tokenizer.piece
        return ChatTemplate(source, bos=piece(vocabulary.bos), eos=piece(vocabulary.eos))

    def stream(self, *, prefix: Prefix | None = None, **options: Any) -> Stream:
        """Open a stream.

        Args:
            prefix: what it begins with, at no cost; its tokens are pinned.
            options: fields of StreamConfig: method, cache_size, num_sinks, ...

        Raises:
            ConfigError: an unknown or impossible option.
            OutOfMemoryError: the cache would not fit.
        """
        if prefix is None:
            return self.open(make(StreamConfig, options))
        return prefix.open(options)

    def prefix(self, text: str | Sequence[int], *, kv_dtype: KvDtype = "auto") -> Prefix:
        """Compute a text once, to begin any number of streams with it at no cost: a system prompt, a user's profile.

        Args:
            text: text, or token ids.
            kv_dtype: precision of the streams that will begin with it.

        Raises:
            InputError: an empty text, or ids out of range.
        """
        if isinstance(text, str):
            ids = self.tokenizer.with_bos(self.tokenizer.tokenize(text))
        else:
            ids = self.tokenizer.check_ids(text).tolist()
        if not ids:
            raise InputError("a prefix must not be empty")
        config = StreamConfig(num_sinks=0, num_pinned=len(ids), cache_size=len(ids) + 1, kv_dtype=kv_dtype)
        stream = self.open(config)
        stream.feed(ids)
        return Prefix(stream)

    def chat(self, system: str | None = None, **options: Any) -> Any:
        """Open a chat whose system prompt is pinned.

        Args:
            system: the system prompt; None: the model's own.
            options: fields of StreamConfig; `whole_turns` is on unless it is set or the method is not `streaming`.

        Returns:
            A `Chat`.
        """
        from anchorstream.stream.chat import Chat

        options.setdefault("whole_turns", options.get("method", "streaming") == "streaming")
        config = make(StreamConfig, options)
        return Chat(self._open_pinned, self.tokenizer, self.chat_template, system=system, config=config)

    def restore(self, path: str | Path) -> Stream:
        """Continue a stream that `Stream.save` has written.

        Raises:
            StorageError: there is no such file, or it cannot be read.
            SnapshotError: it belongs to another model or version, is damaged, or is no saved stream.
            OutOfMemoryError: its cache would not fit.
        """
        return self.restored(snapshot.read(Path(path), self._file.fingerprint))

    def tokenize(self, text: str) -> list[int]:
        """Ids of `text`, without the beginning-of-stream token."""
        return self.tokenizer.tokenize(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids."""
        return self.tokenizer.detokenize(ids)

    def open(self, config: StreamConfig) -> Stream:
        """An empty stream.

        Raises:
            OutOfMemoryError: the cache would not fit.
        """
        return Stream(self._engine, self.tokenizer, config, pool=self.pool, fingerprint=self._file.fingerprint)

    def restored(self, saved: snapshot.Snapshot) -> Stream:
        """The stream that a snapshot was taken from.

        Raises:
            SnapshotError: its parts do not fit together.
            OutOfMemoryError: its cache would not fit.
        """
        return Stream.restored(self._engine, self.tokenizer, saved, pool=self.pool)

    @property
    def fingerprint(self) -> str:
        """Names the model in saved streams."""
        return self._file.fingerprint

    def _open_pinned(self, config: StreamConfig, ids: list[int]) -> Stream:
        """A stream that has consumed `ids`, which it pins; chats with the same system prompt share its banks."""
        shared = config.method == "streaming" and len(ids) >= max(config.num_sinks, 1)
        stream = self.prefixes.open(config, ids) if shared else None
        if stream is None:
            stream = self.open(config)
            if ids:
                stream.feed(ids)
            if shared:
                self.prefixes.keep(stream, ids)
        return stream
