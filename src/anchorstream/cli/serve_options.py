"""Where `serve` finds its key, its folder and its model's name."""

from __future__ import annotations

from pathlib import Path

from anchorstream.errors import ConfigError


def read_key(key: str | None, file: Path | None) -> str | None:
    """The API key, from an option, the environment or a file.

    Raises:
        ConfigError: both, a file that cannot be read, or an empty one.
    """
    if file is None:
        return key
    if key is not None:
        raise ConfigError("give --api-key or --api-key-file, not both")
    try:
        found = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the API key cannot be read from {file}: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not found:
        raise ConfigError(f"{file} holds no API key")
    return found


def sessions_folder(folder: Path | None) -> Path:
    """Where conversations are kept."""
    if folder is not None:
        return folder
    from platformdirs import user_data_path

    return user_data_path("anchorstream", appauthor=False) / "sessions"


def model_name(model: str) -> str:
    """The name under which clients know a model: its alias, or its file without folder and ending."""
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name or model
