"""How likely tokens were, for clients that ask."""

from __future__ import annotations

import numpy as np

from anchorstream.server.outbox import Chosen


def chosen(logits: np.ndarray, token: int, count: int) -> Chosen:
    """The log probability of `token`, and the `count` likeliest with theirs.

    Args:
        logits: float32 (vocab,).
    """
    wide = logits.astype(np.float64)
    most = wide.max()
    norm = most + np.log(np.exp(wide - most).sum())
    top: list[tuple[int, float]] = []
    if count:
        ids = np.argpartition(-wide, min(count, len(wide) - 1))[:count]
        ids = ids[np.argsort(-wide[ids], kind="stable")]
        top = [(int(i), float(wide[i] - norm)) for i in ids]
    return Chosen(token, float(wide[token] - norm), top)
