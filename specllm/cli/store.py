"""`specllm store ...`: add, list, stats, rm, path."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specllm.cli.envelope import emit
from specllm.cli.signals import interrupts_deferred

DEFAULT = "default"

app = typer.Typer(no_args_is_help=True, help="Keep your files as token ids, to draft from: see --store.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The store.")]


@app.command()
def add(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH..", help="Files and folders; none: what was added before.")
    ] = None,
    store: Annotated[str, typer.Option("--store", metavar="NAME", help="The store.")] = DEFAULT,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Whose tokenizer; models of a family share it."),
    ] = None,
    json: Json = False,
) -> None:
    """Read text files into a store. Not what git ignores or looks like a secret; again, reads what changed."""
    with interrupts_deferred():
        from specllm.app.store.add import add_to_store
        from specllm.ui.progress import watch_progress
        from specllm.ui.store import note_added

    with watch_progress() as progress:
        result = add_to_store(store, paths or [], model, progress).as_result()
    if json:
        return emit("store add", result)
    return note_added(result)


@app.command("list")
def list_(json: Json = False) -> None:
    """Show all stores."""
    from specllm.app.store.stores import list_stores

    result = {"stores": [asdict(one) for one in list_stores()]}
    if json:
        return emit("store list", result)
    from specllm.ui.store import print_stores

    return print_stores(result["stores"])


@app.command()
def stats(name: Name = DEFAULT, json: Json = False) -> None:
    """Show what a store holds, and of which folders."""
    from specllm.app.store.stores import stats

    result = asdict(stats(name))
    if json:
        return emit("store stats", result)
    from specllm.ui.store import print_stats

    return print_stats(result)


@app.command()
def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The store.")],
    json: Json = False,
) -> None:
    """Delete a store with the answers in it. The files it was made from stay."""
    from specllm.app.store.stores import remove

    folder = remove(name)
    if json:
        return emit("store rm", {"name": name, "path": str(folder)})
    from specllm.ui.console import write_note

    return write_note(f"{name} is gone from {folder}")


@app.command()
def path(name: Name = DEFAULT, json: Json = False) -> None:
    """Print the folder of a store."""
    from specllm.app.store.stores import existing_folder

    folder = existing_folder(name)
    if json:
        return emit("store path", {"name": name, "path": str(folder)})
    from specllm.ui.models import print_path

    return print_path(folder)
