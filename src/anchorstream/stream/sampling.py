"""From logits to the next token. Knows nothing of streams or text.

Order: penalties, logit bias, temperature, top-k, top-p, min-p, as in Hugging Face transformers. No step sorts
the vocabulary: only the tokens that can still be chosen are sorted, so that sampling costs a fraction of a percent of
a model's step.
"""

from __future__ import annotations

import random

import numpy as np

from anchorstream.config import SamplingConfig
from anchorstream.errors import ConfigError, ModelFileError


class Sampler:
    """Chooses tokens by one SamplingConfig. Holds the random generator.

    Args:
        config: how to choose.
        vocab_size: how many logits there are.

    Raises:
        ConfigError: `logit_bias` names an id that is not in the vocabulary, or a bias that is no number.
    """

    def __init__(self, config: SamplingConfig, vocab_size: int) -> None:
        self._config = config
        self._random = random.Random(config.seed)  # one number a token: numpy.random would only cost its import
        ids = np.array([i for i, _ in config.logit_bias], np.int64)
        biases = np.array([bias for _, bias in config.logit_bias], np.float32)
        if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
            raise ConfigError(f"logit_bias names token ids {ids.min()} to {ids.max()}; ids are 0 to {vocab_size - 1}")
        if np.isnan(biases).any():
            raise ConfigError("logit_bias has a bias that is not a number")
        self._bias_ids, self._biases = ids, biases
        self._counts: dict[int, int] = {}  # how often this reply holds each token, where a penalty wants to know

    @property
    def looks_back(self) -> int:
        """How many of the last tokens `choose` wants to see."""
        return self._config.penalty_last_n if self._config.repetition_penalty != 1.0 else 0

    def choose(self, logits: np.ndarray, recent: np.ndarray, allowed: np.ndarray | None = None) -> int:
        """The next token's id.

        Args:
            logits: float32 (vocab,), not changed.
            recent: int (n,), the last `looks_back` ids of the stream.
            allowed: bool (vocab,), which tokens may come, if a grammar says so; or None.

        Raises:
            ModelFileError: the logits are not numbers.
        """
        logits = self._adjusted(logits, recent)
        if allowed is not None:
            logits = np.where(allowed, logits, np.float32(-np.inf))
        best = int(logits.argmax())  # the place of a nan, if there is one
        if not np.isfinite(logits[best]):
            raise ModelFileError("the model's logits are not numbers: its weights are damaged")
        chosen = best
        if self._config.temperature != 0 and self._config.top_k != 1:
            ids, weights = self._candidates(logits, logits[best])
            cumulative = np.cumsum(weights)
            place = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
            chosen = int(ids[min(place, len(ids) - 1)])
        if self._counting:
            self._counts[chosen] = self._counts.get(chosen, 0) + 1
        return chosen

    @property
    def _counting(self) -> bool:
        return bool(self._config.presence_penalty or self._config.frequency_penalty)

    def _adjusted(self, logits: np.ndarray, recent: np.ndarray) -> np.ndarray:
        """Penalties and bias: repetition by Keskar et al. (arXiv 1909.05858), presence and frequency as OpenAI defines them."""
        config = self._config
        penalty = config.repetition_penalty
        if penalty == 1.0 and not len(self._bias_ids) and not self._counts:
            return logits
        logits = logits.copy()
        if penalty != 1.0 and len(recent):
            seen = np.unique(recent)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            held = np.fromiter(self._counts, np.int64)
            counts = np.fromiter(self._counts.values(), np.float32)
            logits[held] -= np.float32(config.presence_penalty) + np.float32(config.frequency_penalty) * counts
        np.add.at(logits, self._bias_ids, self._biases)
        return logits

    def _candidates(self, logits: np.ndarray, most: np.floating) -> tuple[np.ndarray, np.ndarray]:
        """Ids that may be chosen, likeliest first, and their probabilities up to a common factor, float64."""
        config = self._config
        weights = np.exp((logits - most) * np.float32(1 / max(config.temperature, 1e-6)))  # the likeliest has weight 1
        if config.top_p >= 1 and config.top_k == 0 and config.min_p == 0:
            return np.arange(len(weights)), weights.astype(np.float64)
        ids = self._likeliest(weights)
        kept = weights[ids].astype(np.float64)
        if config.top_k:
            kept = kept[: config.top_k]
        if config.top_p < 1:
            cumulative = np.cumsum(kept)
            total = cumulative[-1] if config.top_k else float(weights.sum(dtype=np.float64))
            kept = kept[: 1 + int(np.searchsorted(cumulative, config.top_p * total))]
        if config.min_p:
            kept = kept[kept >= config.min_p]
        return ids[: len(kept)], kept

    def _likeliest(self, weights: np.ndarray) -> np.ndarray:
        """Enough of the likeliest ids for top-k, top-p and min-p, sorted by weight."""
        config = self._config
        top_k = min(config.top_k, len(weights))
        if config.top_k:
            mass = 0.0  # top-p counts within the k likeliest
        else:
            mass = config.top_p * float(weights.sum(dtype=np.float64)) if config.top_p < 1 else np.inf
        threshold = 0.01
        while True:
            threshold = threshold if threshold > 1e-12 else -1.0
            if config.min_p and not top_k and (threshold <= config.min_p or threshold < 0):
                threshold = min(config.min_p, 1.0) * (1 - 1e-6)  # nothing below can be chosen
                final = True
            else:
                final = threshold < 0
            ids = np.flatnonzero(weights >= threshold)
            if final or (len(ids) >= top_k and float(weights[ids].sum(dtype=np.float64)) >= mass):
                return ids[np.argsort(-weights[ids], kind="stable")]
            threshold *= 0.01
