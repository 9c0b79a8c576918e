"""Endless streams from any chat model, at constant memory and constant time per token."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The public names and where each lives. They are imported on first use, so that `anchorstream --help` is instant.
_HOMES = {
    "load": "anchorstream.api",
    "LLM": "anchorstream.api",
    "Stream": "anchorstream.stream.stream",
    "Chat": "anchorstream.stream.chat",
    "StreamConfig": "anchorstream.config",
    "SamplingConfig": "anchorstream.config",
    "ModelSpec": "anchorstream.models.spec",
    "AnchorstreamError": "anchorstream.errors",
}

__all__ = [
    "LLM",
    "AnchorstreamError",
    "Chat",
    "ModelSpec",
    "SamplingConfig",
    "Stream",
    "StreamConfig",
    "__version__",
    "load",
]

if TYPE_CHECKING:
    from anchorstream.api import LLM, load
    from anchorstream.config import SamplingConfig, StreamConfig
    from anchorstream.errors import AnchorstreamError
    from anchorstream.models.spec import ModelSpec
    from anchorstream.stream.chat import Chat
    from anchorstream.stream.stream import Stream


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anchorstream' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
