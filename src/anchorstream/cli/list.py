"""`anchorstream list`: the models that have names, and which of them are here."""

from __future__ import annotations

import typer

from anchorstream.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_models)


def list_models(as_json: options.AsJson = False) -> None:
    """List the models that can be named, and where the pulled ones lie."""
    import json

    from anchorstream.formats import hub

    here = hub.pulled()
    rows = [
        {"name": name, "about": source.about, "bytes": source.size, "path": str(here[name]) if name in here else None}
        for name, source in hub.ALIASES.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for name, source in hub.ALIASES.items():
        print(f"{name:<16} {source.size / 1e6:5.0f} MB  {source.about}  {here.get(name, 'not pulled yet')}")
