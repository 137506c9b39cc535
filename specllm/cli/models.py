"""`specllm models ...`: list, show, fit, pull, verify, path, add, make-draft, make-target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specllm.cli import options
from specllm.cli.envelope import emit
from specllm.cli.signals import interrupts_deferred
from specllm.errors import AnswerIsNo

app = typer.Typer(no_args_is_help=True, help="List, download, check and add models.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=0, help="0 takes the physical cores.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A model, a pair, a path, hub:owner/repo:file.gguf, or a name that list --found shows."
    ),
]


@app.command("list")
def list_(
    found: Annotated[
        bool, typer.Option("--found", help="Also show models that other tools left on this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """Show every model and pair by name. Installed ones are marked."""
    from specllm.app.models import list_models

    result = list_models(with_found=found).as_result()
    if json:
        return emit("models list", result)
    from specllm.ui.models import print_listing

    return print_listing(result)


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show what is known about one model."""
    from specllm.app.models import show_model

    result = show_model(name).as_result()
    if json:
        return emit("models show", result)
    from specllm.ui.models import print_details

    return print_details(result)


@app.command(cls=options.Command)
@options.spread
def fit(
    *,
    name: Name,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", metavar="MODEL", help="Beside this one instead of its own.")
    ] = None,
    drafting: options.DraftOptions,
    machine: options.MachineOptions,
    json: Json = False,
) -> None:
    """Say what a model or pair needs in memory. Nothing is loaded; where it is too much, says what to change."""
    draft, context, draft_layers = drafting.config(), machine.config(), machine.draft_layers()
    from specllm.app.memory.fit import fit_models

    found = fit_models(name, draft_model, context, draft, draft_layers)
    if json:
        emit("models fit", found.as_result(), is_ok=found.is_ok)
    else:
        from specllm.ui.fit import print_fit

        print_fit(found.as_result(), found.verdict())
    if not found.is_ok:
        raise AnswerIsNo(found.verdict(), found.hint())


@app.command()
def pull(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME..", help="Models, pairs (both models), or hub:owner/repo:file.gguf.")
    ],
    json: Json = False,
) -> None:
    """Download models and check their SHA-256. Resumes after an interruption."""
    from specllm.app.models import pull_models
    from specllm.ui.models import print_pulled
    from specllm.ui.progress import watch_progress

    with watch_progress() as progress:
        pulled = [one.as_result() for one in pull_models(names, progress)]
    if json:
        return emit("models pull", {"pulled": pulled})
    return print_pulled(pulled)


@app.command()
def verify(
    names: Annotated[list[str], typer.Argument(metavar="NAME..", help="Installed models or pairs.")],
    json: Json = False,
) -> None:
    """Check the SHA-256 of installed models."""
    from specllm.app.models import verify_models
    from specllm.ui.models import print_verified
    from specllm.ui.progress import watch_progress

    with watch_progress() as progress:
        verified = [one.as_result() for one in verify_models(names, progress)]
    if json:
        return emit("models verify", {"verified": verified})
    return print_verified(verified)


@app.command()
def path(name: Name, json: Json = False) -> None:
    """Print where an installed model lies."""
    from specllm.app.models import locate

    located = locate(name)
    if json:
        return emit("models path", {"name": located.name, "path": str(located.path)})
    from specllm.ui.models import print_path

    return print_path(located.path)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name it will have.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="The file; it stays where it is.")],
    json: Json = False,
) -> None:
    """Give a GGUF on this machine a name, in your own models.toml."""
    from specllm.app.models import add_model

    added = add_model(name, file)
    if json:
        return emit("models add", {"name": added.name, "path": str(added.path), "user_file": str(added.user_file)})
    from specllm.ui.models import print_added

    return print_added(added.name, added.user_file)


@app.command("make-draft", cls=options.Command)
def make_draft(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A small model of the target's family, or the target itself.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.gguf", help="Where to; by default among the models, as NAME-draft."),
    ] = None,
    file_type: Annotated[
        str,
        typer.Option("--type", metavar="auto|same|q4_0|iq4_nl|q4_k|q8_0", help="Its numbers; auto takes the fastest."),
    ] = "auto",
    vocab_top: Annotated[
        int | None,
        typer.Option("--vocab-top", metavar="N", min=0, help="Say only the N most frequent tokens; 0 is all.",
                     show_default="65536"),
    ] = None,
    vocab_from: Annotated[
        list[Path] | None,
        typer.Option("--vocab-from", metavar="PATH", help="Keep the tokens of this text first; may be repeated."),
    ] = None,
    threads: Threads = 0,
    json: Json = False,
) -> None:  # fmt: skip
    """Make a faster draft model of a GGUF at hand. Measured before and after; exit code 3 if nothing is gained."""
    with interrupts_deferred():
        from specllm.app.make_draft import DraftRequest
        from specllm.app.make_draft import make_draft as make
        from specllm.app.remade import types_of
        from specllm.ui.console import write_note

    request = DraftRequest(
        source=source, output=output, types=types_of(file_type), vocab_top=vocab_top,
        vocab_from=tuple(vocab_from or ()), threads=threads,
    )  # fmt: skip
    made = make(request, write_note).as_result()
    if json:
        return emit("models make-draft", made)
    from specllm.ui.models import print_made_draft

    return print_made_draft(made)


@app.command("make-target", cls=options.Command)
def make_target(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="The target, better in f16 or Q8_0 than in fewer bits.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.gguf", help="Where to; by default among the models, as NAME-target."),
    ] = None,
    file_type: Annotated[
        str, typer.Option("--type", metavar="auto|q4_0|iq4_nl|q4_k|q8_0", help="Its numbers; auto takes the fastest.")
    ] = "auto",
    threads: Threads = 0,
    json: Json = False,
) -> None:  # fmt: skip
    """Make a target that checks drafts faster. Measured before and after; exit code 3 if nothing is gained.

    It is another model than its source: in other numbers it says other texts.
    """
    with interrupts_deferred():
        from specllm.app.make_target import TargetRequest
        from specllm.app.make_target import make_target as make
        from specllm.app.remade import types_of
        from specllm.ui.console import write_note

    request = TargetRequest(source=source, output=output, types=types_of(file_type), threads=threads)
    made = make(request, write_note).as_result()
    if json:
        return emit("models make-target", made)
    from specllm.ui.models import print_made_target

    return print_made_target(made)
