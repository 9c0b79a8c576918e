"""The one table from errors to exit codes."""

from __future__ import annotations

from anchorstream import errors

OK = 0
FAILED = 1
USAGE = 2  # also what typer exits with
INTERRUPTED = 130  # 128 + SIGINT, as shells expect

_TABLE: tuple[tuple[type[Exception], int], ...] = (
    (errors.ConfigError, USAGE),
    (errors.InputError, USAGE),
    (errors.ModelNotFoundError, 3),
    (errors.ModelFileError, 4),
    (errors.DownloadError, 5),
    (errors.OutOfMemoryError, 6),
    (errors.TemplateError, 7),
    (errors.MissingExtraError, 8),
    (errors.SnapshotError, 9),
    (errors.StorageError, 10),
    (errors.AnchorstreamError, FAILED),
)


def exit_code(error: Exception) -> int:
    """The exit code for an error of ours."""
    return next((code for kind, code in _TABLE if isinstance(error, kind)), FAILED)
