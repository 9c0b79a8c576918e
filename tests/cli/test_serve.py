"""`anchorstream serve`: what it refuses before it listens, and what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from anchorstream.cli.main import run
from helpers.served_process import ServedProcess
from helpers.tiny_model import TinyModel

Tiny = Callable[[TinyModel], Path]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--port", "99999"], "port must be at most 65535"),
        (["--overflow", "maybe"], "overflow must be one of stream, error"),
        (["--parallel", "0"], "parallel must be a whole number of at least 1"),
        (["--cache-size", "3"], "leaves no window"),
        (["--api-key", " "], "API key is empty"),
        (["--api-key-file", "/nowhere"], "cannot be read from /nowhere"),
        (["--api-key-file", "/dev/null"], "holds no API key"),
        (["--api-key", "a", "--api-key-file", "b"], "not both"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    assert run(["serve", *options]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "anchorstream.server.run", raising=False)
    assert run(["serve"]) == 8
    assert 'pip install "anchorstream[serve]"' in capsys.readouterr().err


@pytest.mark.parametrize(("model", "code"), [("no-such-model", 3), (__file__, 4)])
def test_a_model_that_cannot_be_loaded_ends_it(tmp_path: Path, model: str, code: int) -> None:
    command = [sys.executable, "-m", "anchorstream", "serve", model, "--port", "0", "--sessions", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert "anchorstream:" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_in_use(tiny: Tiny, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "anchorstream", "serve", str(tiny(TinyModel())), "--port", port, "--no-keep"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_key_comes_from_a_file_or_the_environment(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    monkeypatch.setenv("ANCHORSTREAM_API_KEY", "from-environment")
    server = ServedProcess(tiny(TinyModel()), tmp_path / "s")
    try:
        headers = {"Authorization": "Bearer from-environment"}
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
    finally:
        server.close()
    monkeypatch.delenv("ANCHORSTREAM_API_KEY")
    server = ServedProcess(tiny(TinyModel()), tmp_path / "s", "--api-key-file", str(file))
    try:
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 401
        headers = {"Authorization": "Bearer from-file"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
    finally:
        server.close()


def test_open_to_the_network_without_a_key_warns(tiny: Tiny, tmp_path: Path) -> None:
    server = ServedProcess(tiny(TinyModel()), tmp_path / "s", "--host", "0.0.0.0")
    server.process.terminate()
    _, said = server.process.communicate(timeout=20)
    assert "anyone who reaches 0.0.0.0 can use this server" in said
    server = ServedProcess(tiny(TinyModel()), tmp_path / "s")
    server.process.terminate()
    _, said = server.process.communicate(timeout=20)
    assert said == ""
