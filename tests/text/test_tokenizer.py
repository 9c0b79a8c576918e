"""Cutting text and putting it together again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorstream
from anchorstream.errors import InputError, UnsupportedModelError
from anchorstream.formats.weights import Vocabulary
from anchorstream.text.tokenizer import IncrementalText, TextTokenizer
from helpers.tiny_model import SPECIALS, byte_alphabet

# Ids that transformers gives for the default model's file (tests/text/test_against_transformers.py checks more).
KNOWN = {
    "Hello, world!": [19556, 28, 905, 17],
    "1234": [33, 34, 35, 36],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
}


def spm(pieces: list[str], scores: list[float], *, prefix: bool = True) -> TextTokenizer:
    """A SentencePiece-style vocabulary with all bytes."""
    byte_pieces = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_pieces, *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return TextTokenizer(
        Vocabulary(
            kind="spm",
            pre="",
            tokens=tokens,
            types=np.array(types, np.int32),
            scores=np.array([0.0] * 259 + scores, np.float32),
            merges=[],
            bos=1,
            eos=2,
            unk=0,
            pad=None,
            eot=None,
            add_bos=True,
            add_eos=False,
            add_space_prefix=prefix,
            chat_template=None,
        )
    )


@pytest.mark.parametrize("text", KNOWN)
def test_known_ids(llm: anchorstream.LLM, text: str) -> None:
    assert llm.tokenize(text) == KNOWN[text]
    assert llm.detokenize(KNOWN[text]) == text


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tiny_llm: anchorstream.LLM, text: str) -> None:
    assert tiny_llm.detokenize(tiny_llm.tokenize(text)) == text


def test_control_tokens_can_be_read_as_plain_text(llm: anchorstream.LLM) -> None:
    assert llm.tokenizer.tokenize("<|im_end|>") == [2]
    plain = llm.tokenizer.tokenize("<|im_end|>", special=False)
    assert 2 not in plain
    assert llm.detokenize(plain) == "<|im_end|>"
    assert llm.tokenizer.tokenize("<|im_end|>") == [2]


def test_lone_surrogates_are_refused(llm: anchorstream.LLM) -> None:
    with pytest.raises(InputError, match="character 2"):
        llm.tokenize("ab\ud800")


@pytest.mark.parametrize("ids", [[-1], [49152], [1, 2, 99999]])
def test_ids_out_of_range_are_named(llm: anchorstream.LLM, ids: list[int]) -> None:
    for call in (llm.detokenize, llm.tokenizer.check_ids):
        with pytest.raises(InputError, match=str(ids[-1])):
            call(ids)


@pytest.mark.parametrize("ids", [[1.5], ["a"], [[1, 2]], [None]])
def test_ids_that_are_no_numbers(llm: anchorstream.LLM, ids: list[object]) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        llm.tokenizer.check_ids(ids)


@pytest.mark.parametrize("text", ["日本語のテキスト", "👩‍👩‍👧‍👦🎉", "a\u0301é", "Ωμέγα", "plain"])
def test_incremental_text_never_shows_half_a_character(llm: anchorstream.LLM, text: str) -> None:
    incremental, shown = IncrementalText(llm.tokenizer), ""
    for token in llm.tokenize(text):
        shown += incremental.push(token)
        assert text.startswith(shown)
    assert shown == text


def test_an_unfinished_character_is_never_shown(llm: anchorstream.LLM) -> None:
    incremental = IncrementalText(llm.tokenizer)
    assert "".join(incremental.push(token) for token in llm.tokenize("好")[:-1]) == ""


def test_end_ids(llm: anchorstream.LLM) -> None:
    assert llm.tokenizer.end_ids == {0, 2}  # <|endoftext|> and <|im_end|>


def test_sentencepiece_joins_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = spm(["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "abc"], [-9, -9, -9, -9, -2, -1, -5, -6, -3])
    ids = tokenizer.tokenize("abc")
    # bc has the best score and is joined first, then abc; nothing joins ▁ with it, though ▁a would have come first
    assert [tokenizer.piece(i) for i in ids] == ["▁", "abc"]
    assert tokenizer.detokenize(ids) == "abc"
    emoji = tokenizer.tokenize("😀")
    assert [tokenizer.piece(i) for i in emoji][-4:] == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert tokenizer.detokenize(emoji) == "😀"
    assert tokenizer.adds_bos


def test_sentencepiece_without_a_prefix() -> None:
    tokenizer = spm(["▁", "a"], [-1, -1], prefix=False)
    assert [tokenizer.piece(i) for i in tokenizer.tokenize("a a")] == ["a", "▁", "a"]


def test_a_broken_byte_token_is_named() -> None:
    tokenizer = spm([], [])
    tokenizer._vocabulary.tokens[3] = "<0xZZ>"
    with pytest.raises(UnsupportedModelError, match="0xZZ"):
        tokenizer.token_bytes(3)


def test_the_tiny_vocabulary_is_what_its_helper_says(tiny_llm: anchorstream.LLM) -> None:
    alphabet = byte_alphabet()
    assert tiny_llm.tokenizer.token_bytes(len(SPECIALS) + 10) == b"\n"
    assert tiny_llm.tokenizer.piece(len(SPECIALS) + ord("A")) == alphabet[ord("A")] == "A"
