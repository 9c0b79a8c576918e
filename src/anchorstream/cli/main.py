"""The command `anchorstream`: puts the commands together and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys

import typer

from anchorstream.cli import bench, chat, evaluate, generate, info, pull, rm, serve
from anchorstream.cli import list as list_
from anchorstream.cli.exit_codes import FAILED, INTERRUPTED, OK, exit_code
from anchorstream.errors import AnchorstreamError, OutOfMemoryError

app = typer.Typer(
    name="anchorstream",
    help="Endless streams from any chat model, at constant memory and constant time per token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (chat, serve, generate, pull, list_, rm, info, evaluate, bench):
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
    code = run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or FAILED
    os._exit(code)  # the system takes a model back at once; Python would take it apart piece by piece, for 40 ms


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
    except OSError as error:
        print(f"anchorstream: {error.strerror or error}", file=sys.stderr)
        return FAILED
    except MemoryError:
        print(
            "anchorstream: the machine has no memory left; a smaller --cache-size or model would fit", file=sys.stderr
        )
        return exit_code(OutOfMemoryError())
    return OK
