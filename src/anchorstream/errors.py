"""Every error that a user can cause.

Each message says what was wrong, with which value, and what would be right. `assert` is kept for our own
invariants. This module imports nothing of ours.
"""

from __future__ import annotations


class AnchorstreamError(Exception):
    """The root of all errors that anchorstream raises on purpose."""


class ConfigError(AnchorstreamError, ValueError):
    """A setting that cannot work: an unknown key, a value out of range, two that contradict each other."""


class InputError(AnchorstreamError, ValueError):
    """Bad input to a stream: a token id out of range, an empty prompt, text that is not UTF-8."""


class ModelFileError(AnchorstreamError, ValueError):
    """A model file that is missing, truncated, corrupt or hostile."""


class UnsupportedModelError(ModelFileError):
    """A sound file of a kind that this version cannot run: its architecture, quantisation or tokenizer is named."""


class ModelNotFoundError(AnchorstreamError, LookupError):
    """No such alias, file or folder."""


class DownloadError(AnchorstreamError, OSError):
    """A model could not be fetched: network, disk space, permissions or a wrong checksum."""


class TemplateError(AnchorstreamError, ValueError):
    """A chat template that does not parse, raises, or asks for what the sandbox forbids."""


class OutOfMemoryError(AnchorstreamError, MemoryError):
    """The cache that was asked for does not fit in this machine's memory; said before allocating."""


class MissingExtraError(AnchorstreamError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


class SnapshotError(AnchorstreamError, ValueError):
    """A saved stream that cannot be restored: of another model or version, damaged, or no saved stream at all."""


class StorageError(AnchorstreamError, OSError):
    """A file could not be written or read: a full disk, a missing folder, no permission."""


class ClosedError(AnchorstreamError, RuntimeError):
    """The stream or model has been closed."""
