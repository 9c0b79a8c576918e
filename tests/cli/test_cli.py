"""The command line, in process: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import anchorstream
from anchorstream import errors
from anchorstream.cli import exit_codes
from anchorstream.cli.main import run
from anchorstream.formats import hub
from helpers.tiny_model import TinyModel

Tiny = Callable[[TinyModel], Path]


class Input(io.TextIOWrapper):
    """Piped standard input."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def model(tiny: Tiny) -> str:
    return str(tiny(TinyModel()))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    return lambda data: monkeypatch.setattr(sys, "stdin", Input(data))


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("chat", "generate", "pull", "list", "rm", "info"):
        assert command in out
    assert run(["--version"]) == 0
    assert anchorstream.__version__ in capsys.readouterr().out


def test_help_is_instant() -> None:
    begin = time.perf_counter()
    code = (
        "import sys; from anchorstream.cli.main import run; run(['--help']); "
        "print([m for m in ('numpy', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.perf_counter() - begin < 5


def test_generate_repeats_with_a_seed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "the cat", "--model", model, "--max-tokens", "20", "--seed", "3", "--ignore-end"]
    assert run(command) == 0
    first = capsys.readouterr().out
    assert run(command) == 0
    assert capsys.readouterr().out == first != ""


def test_generate_as_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "the cat", "--model", model, "-n", "5", "--ignore-end", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["generated_tokens"] == 5
    assert facts["finish_reason"] == "length"
    assert facts["stream_length"] == facts["prompt_tokens"] + 5


def test_prompts_from_everywhere(
    model: str, tmp_path: Path, say: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt.txt").write_text("héllo 你好", encoding="utf-8-sig")
    outputs = []
    for source in (["héllo 你好"], ["--file", str(tmp_path / "prompt.txt")], ["-"], []):
        say("héllo 你好".encode())
        assert run(["generate", *source, "--model", model, "-n", "8", "--seed", "1"]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1


def test_a_prompt_far_longer_than_the_cache(
    model: str, say: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(b"word and word " * 20000)
    assert run(["generate", "--model", model, "-n", "3", "--cache-size", "64", "--json", "--ignore-end"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["prompt_tokens"] > 100_000
    assert facts["generated_tokens"] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["generate", "x", "--model", "nothing.gguf"], 3, "no model"),
        (["generate", "x", "--model", "smollm2-135M"], 3, "did you mean 'smollm2-135m'"),
        (["generate", "x", "--cache-size", "4"], 2, "at least 5"),
        (["generate", "x", "--method", "magic"], 2, "streaming, dense"),
        (["generate", "x", "--temperature", "-1"], 2, "temperature"),
        (["generate", "x", "--max-tokens", "-7"], 2, "max_tokens"),
        (["generate", "x", "--threads", "0"], 2, "threads"),
        (["generate", "x", "--compute", "f64"], 2, "int8"),
        (["generate", "x", "--stop", ""], 2, "stop"),
        (["generate", ""], 2, "empty"),
        (["generate", "x", "--file", "y"], 2, "not both"),
        (["generate", "--file", "nothing.txt"], 2, "nothing.txt"),
        (["generate", "--bogus"], 2, "--bogus"),
        (["pull", "gpt-5"], 3, "gpt-5"),
        (["rm", "smollm"], 3, "smollm"),
        (["info", "nothing"], 3, "nothing"),
    ],
)
def test_bad_input_is_explained(
    arguments: list[str], code: int, says: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[0] == "generate" and "--model" not in arguments:
        arguments = [*arguments, "--model", model]
    assert run(arguments) == code
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_input_that_is_not_utf8(model: str, say: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]) -> None:
    say(b"abc\xff\xfe")
    assert run(["generate", "--model", model]) == 2
    assert "byte 3 is 0xff" in capsys.readouterr().err


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"hello, I am no model" * 10)
    assert run(["generate", "x", "--model", str(tmp_path / "x.gguf")]) == 4
    assert "not a GGUF file" in capsys.readouterr().err


def test_info(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", model]) == 0
    out = capsys.readouterr().out
    assert "unbounded" in out
    assert "instruction set" in out
    assert run(["info", model, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes_per_cached_token"] == 2 * 2 * 2 * 32 * 2  # keys and values, layers, kv heads, head size, f16
    assert facts["stream_length"] == "unbounded"
    assert run(["info", model, "--kv-dtype", "q4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_per_cached_token"] < facts["bytes_per_cached_token"] / 3
    assert run(["info", model, "--method", "dense", "--json"]) == 0
    assert "512" in json.loads(capsys.readouterr().out)["stream_length"]


def test_list(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.CACHE_VARIABLE, str(tmp_path))
    assert run(["list"]) == 0
    assert "not pulled yet" in capsys.readouterr().out
    assert run(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["path"] is None


def test_a_piped_chat(
    default_model_path: Path, say: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(
        b"Hello!\n/info\n/set temperature 0\n/set\n/set temperature hot\n/set colour 3\n/nonsense\n/?\n"
        b'"""first line\nsecond line"""\n\n/set system Be brief.\n/clear\nHi.\n/bye\nnever read\n'
    )
    assert run(["chat", str(default_model_path), "--max-tokens", "12", "--seed", "1"]) == 0
    said = capsys.readouterr()
    for words in (
        "it may grow without bound",
        "temperature is 0",
        "max_tokens           12",
        "no command /nonsense",
        "Ctrl-C",
    ):
        assert words in said.out
    assert "temperature must be a number" in said.err
    assert "no setting 'colour'" in said.err
    assert "never read" not in said.out


def test_a_chat_survives_bad_lines(
    default_model_path: Path, say: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(b"Hello\xff\nHello\n")
    assert run(["chat", str(default_model_path), "--max-tokens", "5"]) == 0
    said = capsys.readouterr()
    assert "not UTF-8" in said.err
    assert said.out.strip()


def test_ctrl_c_stops_a_reply_and_not_the_chat(default_model_path: Path) -> None:
    """A real process, a real signal: the reply ends, the next line is answered."""
    import signal

    command = [
        sys.executable,
        "-m",
        "anchorstream",
        "chat",
        str(default_model_path),
        "--max-tokens",
        "-1",
        "--temperature",
        "0",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"Repeat the word sun for ever: sun sun sun sun sun\n")
        process.stdin.flush()
        assert process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"/info\n/bye\n")
        process.stdin.close()
        rest = process.stdout.read().decode()
        assert process.wait(30) == 0
    assert "1 turns" in rest


def test_ctrl_c_ends_generate_with_130(default_model_path: Path) -> None:
    import signal

    command = [
        sys.executable,
        "-m",
        "anchorstream",
        "generate",
        "Hello",
        "--max-tokens",
        "-1",
        "--model",
        str(default_model_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_said(model: str) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "anchorstream", "generate", "x", "--model", model, "--ignore-end"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_error_has_an_exit_code() -> None:
    ours = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AnchorstreamError)
    ]
    for kind in ours:
        assert exit_codes.exit_code(kind("x")) not in (exit_codes.OK, exit_codes.INTERRUPTED)
