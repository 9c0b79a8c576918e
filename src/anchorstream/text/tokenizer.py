"""Text to token ids and back, straight from a model file's vocabulary. Knows nothing of models or streams.

Cutting text is the `tokenizers` library's work; turning ids back into text is a table of bytes, because a stream needs
it token by token and safe against characters that are split over tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import cached_property
from threading import Lock

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from anchorstream.errors import InputError, UnsupportedModelError
from anchorstream.formats.weights import Vocabulary

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_SPM_SPACE = "▁"

# Tokens that end a turn, under the names that model families give them.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
)

_GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_GPT4_SPLIT.format(digits=digits)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# The pre-tokenizers of byte-level BPE, by GGUF's names.
_PRE_TOKENIZERS = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split("{1,3}"),
    "qwen2": lambda: _split(""),
}


class TextTokenizer:
    """One model's vocabulary.

    Args:
        vocabulary: as a model file gives it.

    Raises:
        UnsupportedModelError: a pre-tokenizer that is not known.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.kind == "bpe" and vocabulary.pre not in _PRE_TOKENIZERS:
            raise UnsupportedModelError(
                f"the pre-tokenizer {vocabulary.pre!r} is not supported; supported are {', '.join(_PRE_TOKENIZERS)}"
            )
        self._vocabulary = vocabulary
        self._bytes: dict[int, bytes] = {}  # of the tokens that have been asked for
        self._lock = Lock()

    def prepare(self) -> TextTokenizer:
        """Build now what `tokenize` needs, rather than at the first text."""
        assert self._tokenizer is not None
        return self

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        return len(self._vocabulary.tokens)

    @property
    def bos(self) -> int | None:
        """The id of the beginning-of-stream token, if there is one."""
        return self._vocabulary.bos

    @property
    def adds_bos(self) -> bool:
        """Whether a stream of this model begins with `bos`."""
        return self._vocabulary.add_bos and self._vocabulary.bos is not None

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply: end of sequence and end of turn."""
        vocabulary = self._vocabulary
        named = {i for i in self.special_ids if vocabulary.tokens[i] in _END_OF_TURN}
        return frozenset(named | {i for i in (vocabulary.eos, vocabulary.eot) if i is not None})

    @cached_property
    def control_pieces(self) -> tuple[str, ...]:
        """How control tokens are spelled."""
        return tuple(piece for i in self.special_ids if (piece := self._vocabulary.tokens[i]))

    def piece(self, token_id: int | None) -> str:
        """How the file spells a token; "" for None."""
        return "" if token_id is None else self._vocabulary.tokens[token_id]

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, without bos or eos.

        Args:
            special: whether control tokens spelled out in the text (`<|im_end|>`) become those tokens; False reads
                them as plain text.

        Raises:
            InputError: text that cannot be written as UTF-8 (a lone surrogate).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not valid Unicode: {error.reason} at character {error.start}") from None
        with self._lock:  # a server cuts texts in several threads
            tokenizer = self._tokenizer
            tokenizer.encode_special_tokens = not special
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """`ids` as the beginning of a stream: with `bos` before them, where the model wants one and it is not there."""
        bos = self._vocabulary.bos
        return [bos, *ids] if self.adds_bos and bos is not None and ids[:1] != [bos] else ids

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InputError: an id that is not in the vocabulary.
        """
        text = b"".join(self.token_bytes(i) for i in ids).decode(errors="replace")
        return text[1:] if self._vocabulary.add_space_prefix and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        if not 0 <= token_id < self.size:
            raise InputError(f"token id {token_id} is not in the vocabulary: ids are 0 to {self.size - 1}")
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._spell(token_id)
        return found

    def check_ids(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """`ids` as int32 (n,).

        Raises:
            InputError: not whole numbers, not one-dimensional, or one that is not in the vocabulary.
        """
        array = np.asarray(ids)
        if array.size == 0:
            return np.empty(0, np.int32)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"token ids must be a sequence of whole numbers, not {array.dtype} of shape {array.shape}")
        bad = np.flatnonzero((array < 0) | (array >= self.size))
        if len(bad):
            raise InputError(
                f"token id {array[bad[0]]} at place {bad[0]} is not in the vocabulary: ids are 0 to {self.size - 1}"
            )
        return np.ascontiguousarray(array, np.int32)

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids of control tokens."""
        return np.flatnonzero(self._vocabulary.types == _CONTROL).tolist()

    def _spell(self, token_id: int) -> bytes:
        piece, kind = self._vocabulary.tokens[token_id], int(self._vocabulary.types[token_id])
        if self._vocabulary.kind == "spm":
            return _spm_byte(piece) if kind == _BYTE else piece.replace(_SPM_SPACE, " ").encode()
        if kind in (_CONTROL, _USER_DEFINED):
            return piece.encode()
        # a character outside the alphabet stands for itself
        return b"".join(bytes([_BYTE_OF[c]]) if c in _BYTE_OF else c.encode() for c in piece)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        vocabulary = self._vocabulary
        tokenizer = _spm_tokenizer(vocabulary) if vocabulary.kind == "spm" else _bpe_tokenizer(vocabulary)
        tokens = vocabulary.tokens
        defined = np.flatnonzero(vocabulary.types == _USER_DEFINED).tolist()
        tokenizer.add_tokens([AddedToken(tokens[i], normalized=False) for i in defined])
        tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in self.special_ids])
        return tokenizer


class IncrementalText:
    """Turns a stream's ids into text as they come: a character split over tokens appears when it is whole."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, maybe none. An unfinished character at the end is never shown."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet, extra = {byte: chr(byte) for byte in printable}, 256
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(extra)
            extra += 1
    return [alphabet[byte] for byte in range(256)]


_BYTE_OF = {char: byte for byte, char in enumerate(_byte_alphabet())}


def _spm_byte(piece: str) -> bytes:
    try:
        return bytes([int(piece.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError:
        raise UnsupportedModelError(f"the byte token {piece!r} is not of the form <0x00>") from None


def _bpe_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    ids = {piece: i for i, piece in enumerate(vocabulary.tokens)}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    try:
        model = models.BPE(ids, merges, ignore_merges=vocabulary.pre == "llama-bpe")
    except Exception as error:  # the library raises plain Exception
        raise UnsupportedModelError(f"the vocabulary does not fit its merges: {error}") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[vocabulary.pre]()
    if vocabulary.pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _spm_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece's BPE: the pair whose joined piece has the best score is joined first."""
    ids = {piece: i for i, piece in enumerate(vocabulary.tokens)}
    scores = vocabulary.scores
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, i in ids.items():
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        found = [(left, right) for left, right in splits if left in ids and right in ids]
        ranked.extend((-float(scores[i]), ids[left], ids[right], (left, right)) for left, right in found)
    merges = [pair for _, _, _, pair in sorted(ranked)]
    unknown = vocabulary.tokens[vocabulary.unk] if vocabulary.unk is not None else None
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend(_SPM_SPACE)] if vocabulary.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPM_SPACE)])
    return tokenizer
