"""What the evaluations share: options, the text, a live table, results on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from anchorstream.errors import ConfigError, InputError

Text = Annotated[list[Path] | None, typer.Option("--text", help="A text file in UTF-8; may be given several times.")]
Dataset = Annotated[
    str | None, typer.Option(help="A dataset instead of files: pg19 (needs a network and the extra 'eval').")
]
Tokens = Annotated[int, typer.Option(help="How many tokens of the text.")]
Out = Annotated[Path, typer.Option(help="Folder for the results: JSON, per-token values, picture.")]
Picture = Annotated[bool, typer.Option(help="Draw a picture (needs the extra 'eval').")]

_CHARACTERS_PER_TOKEN = 6  # more than any usual text has, so that enough of a dataset is read


def numbers(text: str, what: str) -> list[int]:
    """Whole numbers, separated by commas.

    Raises:
        ConfigError: something else.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{what} must be whole numbers separated by commas, not {text!r}") from None
    return found


def read_ids(
    llm: Any, text: Sequence[Path] | None, dataset: str | None, tokens: int | None, *, repeat: bool = False
) -> Any:
    """The text's ids."""
    from anchorstream.evaluation import texts

    if tokens is not None and tokens < 2:
        raise ConfigError(f"--tokens must be at least 2, not {tokens}")
    if bool(text) == bool(dataset):
        raise InputError("give a text with --text, or a dataset with --dataset")
    content = (
        texts.read_files(text) if text else texts.read_dataset(dataset or "", _CHARACTERS_PER_TOKEN * (tokens or 0))
    )
    return texts.token_ids(llm.tokenizer, content, tokens, repeat=repeat)


@contextmanager
def live(columns: Sequence[str]) -> Iterator[Callable[[Sequence[Sequence[str]], str, int, int], None]]:
    """A table that grows and a progress bar with the time left, on the error stream.

    Yields a function to be called with the rows so far, what is being done, and how much of it is done and in all.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )
    task = bar.add_task("", total=1)
    described = ""

    def table(rows: Sequence[Sequence[str]]) -> Table:
        drawn = Table(*columns)
        for row in rows:
            drawn.add_row(*row)
        return drawn

    with Live(table([]), console=console, refresh_per_second=4, transient=False) as screen:

        def update(rows: Sequence[Sequence[str]], doing: str, done: int, total: int) -> None:
            nonlocal described
            if doing != described:  # the time left is that of what is being done now
                described = doing
                bar.reset(task, description=doing, total=total)
            bar.update(task, completed=done, total=total)
            screen.update(Group(table(rows), bar) if done < total else table(rows))

        yield update


def finish(result: dict[str, Any], path: Path, *, as_json: bool, broken: bool, picture: Path | None = None) -> None:
    """Say where the results are; exit with the code for a break if there was one."""
    import json

    from anchorstream.cli.exit_codes import INTERRUPTED

    if as_json:
        print(json.dumps(result))
    print(f"written: {path}" + (f", {picture}" if picture else ""), file=sys.stderr)
    if broken:
        print("stopped by Ctrl-C: what was measured until then has been kept", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
