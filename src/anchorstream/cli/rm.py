"""`anchorstream rm`: delete a pulled model."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rm")(rm)


def rm(model: Annotated[str, typer.Argument(help="An alias (see `anchorstream list`).")]) -> None:
    """Delete a pulled model from the cache."""
    from anchorstream.formats import hub

    print(f"removed {model}: {hub.remove(model) / 1e6:.0f} MB are free again")
