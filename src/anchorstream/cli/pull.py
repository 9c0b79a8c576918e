"""`anchorstream pull`: fetch a model."""

from __future__ import annotations

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pull")(pull)


def pull(model: options.ModelArgument = "smollm2-135m") -> None:
    """Fetch a model into the cache, unless it is there."""
    from anchorstream.cli.console import pull_progress
    from anchorstream.formats import hub

    if model in hub.pulled():
        print(hub.pulled()[model])
        return
    with pull_progress(model) as progress:
        path = hub.pull(model, progress=progress)
    print(path)
