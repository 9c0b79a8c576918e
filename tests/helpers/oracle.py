"""A brute-force forward pass in float64, written from the papers alone: no cache, no chunks, no plan, no code of ours.

Every token's hidden states are computed as the method defines them. Because evicted tokens have left their mark in the
states of those that saw them, all tokens are computed in order, each over exactly the tokens that it may see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from helpers.tiny_model import TinyModel

Sees = Callable[[int], Sequence[int]]  # indices of the earlier tokens that a token attends to, in order


def streaming_sees(anchors: int, window: int) -> Sees:
    """Anchors and the last tokens."""
    return lambda t: [i for i in range(t) if i < anchors or i >= t - window]


def dense_sees(t: int) -> Sequence[int]:
    """All earlier tokens."""
    return range(t)


def rotate(x: np.ndarray, position: int, base: float, dim: int) -> np.ndarray:
    """Interleaved rotary pairs (2i, 2i+1), as a GGUF llama's weights expect; x (heads, head_size)."""
    angle = position * base ** (-np.arange(0, dim, 2) / dim)
    out = x.copy()
    even, odd = x[:, 0:dim:2], x[:, 1:dim:2]
    out[:, 0:dim:2] = even * np.cos(angle) - odd * np.sin(angle)
    out[:, 1:dim:2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """RMSNorm."""
    return x / np.sqrt((x**2).mean() + 1e-5) * weight


def forward(
    model: TinyModel,
    ids: Sequence[int],
    sees: Sees,
    *,
    bias: Callable[[int, int], float] | None = None,
) -> np.ndarray:
    """Logits after every token, float64 (n, vocab). Positions are slots: a token's place among those it sees.

    Args:
        model: its weights are taken as floats.
        ids: token ids.
        sees: which earlier tokens each attends to, by place in `ids`.
        bias: added to the score of token `t` for token `i`.
    """
    w = {name: weights.astype(np.float64) for name, weights in model.tensors().items()}
    heads, kv_heads, size = model.heads, model.kv_heads, model.head_size
    dim = model.rope_dim or size
    keys: list[list[np.ndarray]] = [[] for _ in range(model.layers)]
    values: list[list[np.ndarray]] = [[] for _ in range(model.layers)]
    logits = []
    for t, token in enumerate(ids):
        x = w["token_embd.weight"][token]
        for layer in range(model.layers):
            at = f"blk.{layer}."
            h = norm(x, w[at + "attn_norm.weight"])
            q, k, v = (w[f"{at}attn_{part}.weight"] @ h + w.get(f"{at}attn_{part}.bias", 0) for part in "qkv")
            keys[layer].append(k.reshape(kv_heads, size))
            values[layer].append(v.reshape(kv_heads, size))
            seen = [*sees(t), t]
            q = rotate(q.reshape(heads, size), len(seen) - 1, model.rope_base, dim)
            k_seen = np.stack([rotate(keys[layer][i], slot, model.rope_base, dim) for slot, i in enumerate(seen)])
            v_seen = np.stack([values[layer][i] for i in seen])
            mixed = []
            for head in range(heads):
                kv = head * kv_heads // heads
                scores = k_seen[:, kv] @ q[head] / np.sqrt(size)
                if bias is not None:
                    scores = scores + np.array([bias(t, i) for i in seen])
                weights = np.exp(scores - scores.max())
                mixed.append(weights @ v_seen[:, kv] / weights.sum())
            x = x + w[at + "attn_output.weight"] @ np.concatenate(mixed)
            h = norm(x, w[at + "ffn_norm.weight"])
            gate, up = w[at + "ffn_gate.weight"] @ h, w[at + "ffn_up.weight"] @ h
            x = x + w[at + "ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        head_weights = w["token_embd.weight" if model.tied else "output.weight"]
        logits.append(head_weights @ norm(x, w["output_norm.weight"]))
    return np.stack(logits)
