"""The command `anchorstream`: puts the commands together and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys

import typer

from anchorstream.cli import chat, generate, info, pull, rm
from anchorstream.cli import list as list_
from anchorstream.cli.exit_codes import INTERRUPTED, OK, exit_code
from anchorstream.errors import AnchorstreamError

app = typer.Typer(
    name="anchorstream",
    help="Endless streams from any chat model, at constant memory and constant time per token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (chat, generate, pull, list_, rm, info):
    command.register(app)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from anchorstream import __version__

        print(f"anchorstream {__version__}")
        raise typer.Exit


def main() -> None:
    """Run, and exit with the code that `exit_codes` gives."""
    # numpy's BLAS would start threads that spin beside ours, and no command multiplies matrices in numpy
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """The exit code of the command line `arguments` (None: the process's own)."""
    try:
        app(arguments, standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK
    except AnchorstreamError as error:
        print(f"anchorstream: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; keep Python from complaining when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return OK
