"""Ours against Hugging Face transformers in float32: logits, token ids, chat templates, rotary frequencies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anchorstream
from anchorstream.models.spec import RopeSpec
from anchorstream.text.tokenizer import TextTokenizer
from helpers.tiny_model import TinyModel

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parent.parent / "data"
PAGE = (DATA / "page.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hugging_face(default_model_path: Path) -> Any:
    """The default model in float32."""
    folder, name = default_model_path.parent, default_model_path.name
    return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def their_tokenizer(default_model_path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(default_model_path.parent, gguf_file=default_model_path.name)


@pytest.fixture(scope="module")
def truth(hugging_face: Any, llm: anchorstream.LLM) -> tuple[np.ndarray, np.ndarray]:
    """256 ids and transformers' logits after each."""
    ids = np.array(llm.tokenize(PAGE)[:256], np.int32)
    with torch.inference_mode():
        return ids, hugging_face(torch.tensor(ids[None].astype(np.int64))).logits[0].numpy()


@pytest.mark.parametrize("engine", ["reference", "swift"])
def test_logits_of_the_default_model(
    engine: str, default_model_path: Path, truth: tuple[np.ndarray, np.ndarray]
) -> None:
    ids, logits = truth
    stream = anchorstream.load(default_model_path, engine=engine, compute="f32").stream(method="dense")
    worst = 0.0
    for token, row in zip(ids, logits, strict=True):
        stream.feed([token])
        worst = max(worst, float(np.abs(stream.logits - row).max()))
    print(f"{engine}: {worst:.1e}")
    assert worst <= 1e-3


def test_the_golden_file_is_what_transformers_says(truth: tuple[np.ndarray, np.ndarray]) -> None:
    """The default test run has no transformers; it compares with this file. Written here if it is not there."""
    path, (ids, logits) = DATA / "golden_logits.npz", truth
    places = np.arange(15, 256, 16)
    columns = np.unique(
        np.concatenate([np.argsort(-logits[places])[:, :20].ravel(), np.arange(0, logits.shape[1], 997)])
    )
    if not path.exists():
        np.savez_compressed(
            path, ids=ids, places=places, columns=columns.astype(np.int32), logits=logits[places][:, columns]
        )
    with np.load(path) as golden:
        assert np.array_equal(golden["ids"], ids)
        assert np.abs(golden["logits"] - logits[golden["places"]][:, golden["columns"]]).max() < 1e-3


def test_ids_of_a_page(llm: anchorstream.LLM, their_tokenizer: Any) -> None:
    # transformers forgets the model's rule that digits stand alone when it reads a GGUF file; the vocabulary alone gives
    # the same result but for these numerals
    page = PAGE.replace("½", "").replace("²", "")
    assert llm.tokenize(page) == their_tokenizer(page, add_special_tokens=False)["input_ids"]
    for line in page.splitlines(keepends=True):
        assert llm.tokenize(line) == their_tokenizer(line, add_special_tokens=False)["input_ids"], line
    assert llm.detokenize(llm.tokenize(PAGE)) == PAGE


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_chat_templates(llm: anchorstream.LLM, their_tokenizer: Any, system: str | None) -> None:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "  x "},
    ]
    theirs = their_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert llm.chat_template.render(messages, add_generation_prompt=True) == theirs


@pytest.mark.parametrize(("pre", "kind"), [("gpt-2", "GPT2Tokenizer"), ("qwen2", "Qwen2Tokenizer")])
def test_pre_tokenizers(llm: anchorstream.LLM, pre: str, kind: str) -> None:
    """The default vocabulary cut by other families' rules, in our hands and in transformers'."""
    from dataclasses import replace

    vocabulary = replace(llm.tokenizer._vocabulary, pre=pre)
    ids = {piece: i for i, piece in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    theirs = getattr(transformers, kind)(vocab=ids, merges=merges)
    text = PAGE.replace("<|im_start|>", "").replace("<|im_end|>", "") + " e\u0301 12345678"
    found = TextTokenizer(vocabulary).tokenize(text)
    assert found == theirs(text, add_special_tokens=False)["input_ids"]


def test_the_pre_tokenizer_of_llama_3() -> None:
    from tokenizers import Regex, pre_tokenizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    from anchorstream.text import tokenizer as ours

    pattern = TikTokenConverter(vocab_file="x").pattern
    theirs = pre_tokenizers.Split(Regex(pattern), "isolated")
    alphabet = dict(zip(range(256), ours._byte_alphabet(), strict=True))
    expected = ["".join(alphabet[b] for b in piece.encode()) for piece, _ in theirs.pre_tokenize_str(PAGE)]
    assert [piece for piece, _ in ours._PRE_TOKENIZERS["llama-bpe"]().pre_tokenize_str(PAGE)] == expected


def test_sentencepiece(tmp_path: Path) -> None:
    """Our tokenizer for SentencePiece vocabularies against the library itself."""
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(PAGE * 3, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), vocab_size=600, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    from anchorstream.formats.weights import Vocabulary

    size = model.get_piece_size()
    kinds = [
        2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in range(size)
    ]
    tokenizer = TextTokenizer(
        Vocabulary(
            kind="spm", pre="", tokens=[model.id_to_piece(i) for i in range(size)], types=np.array(kinds, np.int32),
            scores=np.array([model.get_score(i) for i in range(size)], np.float32), merges=[], bos=1, eos=2, unk=0, pad=None,
            eot=None, add_bos=True, add_eos=False, add_space_prefix=True, chat_template=None,
        )
    )  # fmt: skip
    for line in PAGE.replace("<|im_start|>", "").replace("<|im_end|>", "").splitlines():
        if line:
            assert tokenizer.tokenize(line) == model.encode(line), line
            assert tokenizer.detokenize(tokenizer.tokenize(line)) == line


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    ],
    ids=lambda s: s["rope_type"],
)
def test_rotary_frequencies(scaling: dict[str, Any]) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=1024,
        num_attention_heads=16,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500000.0, **scaling},
    )
    kind = scaling["rope_type"]
    if kind == "default":
        theirs, factor = 500000.0 ** -(np.arange(0, 64, 2) / 64), 1.0
    else:
        found, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        theirs = found.numpy()
    ours = RopeSpec(
        base=500000.0,
        dim=64,
        scaling="none" if kind == "default" else kind,
        factor=scaling.get("factor", 1.0),
        original_context=scaling.get("original_max_position_embeddings", 0),
    )
    assert np.allclose(ours.inverse_frequencies(), theirs, rtol=2e-6)
    assert ours.magnitude == pytest.approx(factor)


@pytest.mark.parametrize(
    "model",
    [TinyModel(heads=4, kv_heads=1, head_size=64, tied=False), TinyModel(heads=6, kv_heads=3, head_size=32, hidden=96)],
    ids=["untied", "grouped"],
)
def test_tiny_models(tiny: Callable[[TinyModel], Path], model: TinyModel) -> None:
    """Another shape, read by transformers from the same file."""
    path = tiny(model)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    ids = np.random.default_rng(0).integers(3, 200, 60)
    with torch.inference_mode():
        logits = theirs(torch.tensor(ids[None])).logits[0].numpy()
    stream = anchorstream.load(path, compute="f32").stream(method="dense")
    for token, row in zip(ids, logits, strict=True):
        stream.feed([token])
        assert np.abs(stream.logits - row).max() < 2e-3
