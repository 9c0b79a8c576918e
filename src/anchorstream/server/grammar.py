"""Replies that must follow a JSON schema. The one home of the library llguidance."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from anchorstream.errors import MissingExtraError
from anchorstream.server.errors import bad
from anchorstream.text.tokenizer import TextTokenizer


class Grammars:
    """Makes constraints for one vocabulary."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: Any = None

    def json(self, schema: dict[str, Any] | None) -> JsonConstraint:
        """A constraint to a schema; None: any JSON object.

        Raises:
            ApiError: a schema that is none, or that asks for what the library does not know.
            MissingExtraError: the library is not installed.
        """
        try:
            from llguidance import LLMatcher
        except ImportError:
            raise MissingExtraError(
                'response_format needs the extra "serve": pip install "anchorstream[serve]"'
            ) from None
        if self._made is None:
            self._made = self._make()
        try:
            # whitespace is bounded: a small model would go on with it for ever
            options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            source = {**(schema or {"type": "object"}), "x-guidance": options}
            matcher = LLMatcher(self._made, LLMatcher.grammar_from_json_schema(json.dumps(source)))
        except Exception as error:  # the library raises plain exceptions
            raise bad(f"the schema cannot be followed: {error}", "response_format") from None
        if matcher.is_error():
            raise bad(f"the schema cannot be followed: {matcher.get_error()}", "response_format")
        return JsonConstraint(matcher, self._tokenizer.size)

    def _make(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        tokenizer = self._tokenizer

        class Vocabulary:
            eos_token_id = min(tokenizer.end_ids, default=0)
            bos_token_id = tokenizer.bos
            tokens = tuple(tokenizer.token_bytes(i) for i in range(tokenizer.size))
            special_token_ids = tokenizer.special_ids

            def __call__(self, text: bytes) -> list[int]:
                return tokenizer.tokenize(text.decode(errors="replace"), special=False)

        return LLTokenizer(TokenizerWrapper(Vocabulary()), eos_token=sorted(tokenizer.end_ids))


class JsonConstraint:
    """See `anchorstream.stream.generation.Constraint`."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._size = vocab_size

    def allowed(self) -> np.ndarray:
        """Which tokens may come next, bool (vocab,)."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(mask, bitorder="little")[: self._size].astype(bool)

    def accept(self, token: int) -> bool:
        """Take note of a token; whether the reply is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
