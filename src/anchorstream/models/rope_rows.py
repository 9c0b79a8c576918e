"""Row order of query and key matrices: files pair rotary dimensions in two ways, the engines in one."""

from __future__ import annotations

import numpy as np


def half_split_order(num_heads: int, head_size: int, rope_dim: int) -> np.ndarray:
    """Rows of a matrix that pairs dimensions (2i, 2i+1), reordered to pair (i, i + rope_dim/2), int64 (rows,).

    `matrix[half_split_order(...)]` is the reordered matrix. Scores do not change, for queries and keys move alike.
    """
    head = np.arange(head_size, dtype=np.int64)
    head[: rope_dim // 2] = np.arange(0, rope_dim, 2)
    head[rope_dim // 2 : rope_dim] = np.arange(1, rope_dim, 2)
    return (np.arange(num_heads, dtype=np.int64)[:, None] * head_size + head).reshape(-1)
