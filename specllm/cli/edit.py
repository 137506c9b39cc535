"""`specllm edit`: an instruction to a diff, and the diff to a file once somebody said yes."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllm.cli import envelope, options
from specllm.cli.edit_apply import Decided, decide, diff_of, name_kept, text_kept
from specllm.cli.editor import interrupts_ignored
from specllm.cli.prompt import STDIN, read_prompt
from specllm.cli.signals import interrupts_deferred
from specllm.cli.template import TemplateOptions
from specllm.errors import AnswerIsNo, ConfigError, SpecllmError

if TYPE_CHECKING:
    from specllm.app.edit.use_case import Edit, EditRequest, Task
    from specllm.app.generate import Answer

_request = functools.partial(typer.Option, rich_help_panel="Request")
_output = functools.partial(typer.Option, rich_help_panel="Output")


@dataclass(frozen=True, kw_only=True)
class EditOptions(TemplateOptions):
    """Which part, and what else to read."""

    lines: Annotated[str | None, _request("--lines", metavar="A:B", help="Edit these lines only, counted from 1.")] = (
        None
    )
    symbol: Annotated[
        str | None,
        _request("--symbol", metavar="NAME", help="Edit one Python function, class or variable: name, Class.name."),
    ] = None  # fmt: skip
    context: Annotated[
        list[Path] | None,
        _request("--context", metavar="FILE", help="Read this file too; may be repeated."),
    ] = None
    encoding: Annotated[
        str | None, _request("--encoding", metavar="NAME", help="The file's encoding, where it cannot be told.")
    ] = None
    max_tokens: Annotated[
        int | None,
        _request("--max-tokens", "-n", metavar="N",
                 help="Most tokens to generate; by default enough for the text as it is, with room to grow."),
    ] = None  # fmt: skip
    raw: Annotated[bool, _request("--raw", help="No chat template.")] = False
    prompt_variant: Annotated[str | None, _request("--prompt-variant", hidden=True)] = None


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    """What becomes of the new text, and what is shown."""

    yes: Annotated[bool, _output("--yes", "-y", help="Apply without asking.")] = False
    dry_run: Annotated[bool, _output("--dry-run", help="Show the diff, apply nothing.")] = False
    destination: Annotated[
        Path | None, _output("--output", "-o", metavar="FILE", help="Write the new text there instead.")
    ] = None
    undo: Annotated[bool, _output("--undo", help="Take back the last edit (of FILE, if named).")] = False
    force: Annotated[bool, _output("--force", help="Undo although the file changed since.")] = False
    as_json: Annotated[bool, _output("--json", help="Exactly one JSON document on stdout; asks nothing.")] = False
    stats: Annotated[bool, _output("--stats", help="Print a table of all figures.")] = False
    trace: Annotated[Path | None, _output("--trace", metavar="FILE", help="Write one JSON line per round.")] = None
    quiet: Annotated[bool, _output("--quiet", "-q", help="No status line and no stats line.")] = False


@options.spread
def edit(
    *,
    call: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The file to edit.", show_default=False)] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="INSTRUCTION", help="What to change; - reads it from stdin.")
    ] = None,
    region: EditOptions,
    models: options.ModelOptions,
    drafting: options.DraftOptions,
    sampling: options.SamplingOptions,
    machine: options.MachineOptions,
    applying: ApplyOptions,
) -> None:
    """Edit a file by instruction. Shows the diff, asks, and writes all or nothing. Exit code 3 if nothing changed."""
    if applying.undo:
        _require_only_undo(call)
        _undo(file, words or [], applying)
        return
    if file is None:
        raise ConfigError("there is no file to edit", 'use specllm edit FILE "what to change"')
    draft, context, draft_layers = drafting.config(), machine.config(), machine.draft_layers()
    values: dict[str, Any] = {"variant": region.prompt_variant} if region.prompt_variant else {}
    chosen = sampling.chosen()
    words = words or []
    instruction = read_prompt(words, None, reads_pipe=bool(words), may_be_empty=True, is_quiet=applying.quiet)
    with interrupts_deferred():
        from specllm.app.edit.use_case import EditRequest, prepare
    request = EditRequest(
        path=file, instruction=instruction, lines=region.lines, symbol=region.symbol,
        contexts=tuple(region.context or ()), encoding=region.encoding, max_tokens=region.max_tokens, is_raw=region.raw,
        template_vars=region.variables(),
        target=models.model, draft_model=models.draft_model, sampling=chosen, context=context, draft=draft,
        draft_gpu_layers=draft_layers, trace=applying.trace, **values,
    )  # fmt: skip
    task = prepare(request)
    _run(task, applying, _checked_destination(request, applying))


def _checked_destination(request: EditRequest, applying: ApplyOptions) -> bytes | None:
    """What the file to be written holds now, where that is another than the edited one; None where there is none.

    Raises ConfigError: nobody should wait for an edit that cannot be written.
    """
    from specllm.app.apply import require_replaceable, require_writable_folder
    from specllm.app.edit.history import open_history, read_replaced

    if applying.force:
        raise ConfigError("--force belongs to --undo", "leave it out")
    destination = applying.destination
    if applying.yes and applying.dry_run:
        raise ConfigError("--yes and --dry-run contradict each other", "use one of them")
    if destination is not None:
        if str(destination) == STDIN:
            raise ConfigError("--output takes a file, and - is none", "use --dry-run for the diff on stdout")
        if os.path.realpath(destination) == os.path.realpath(request.path):
            raise ConfigError("--output names the file itself", "use --yes")
        if destination.exists():
            if not destination.is_file():  # a rename would put a file in the place of a device
                raise ConfigError(f"{destination} is a folder or a device", "name a file")
            if not applying.yes:
                raise ConfigError(f"{destination} is there already", "name another file, or pass --yes to replace it")
            require_replaceable(destination)
            open_history()
            return read_replaced(destination)
        require_writable_folder(destination)
    elif not applying.dry_run:
        require_replaceable(request.path)
        open_history()
    return None


def _run(task: Task, applying: ApplyOptions, replaced: bytes | None) -> None:
    with interrupts_deferred():
        from specllm.app.edit.use_case import answering, conclude, reply_of
        from specllm.ui.console import harmless, write_note
        from specllm.ui.generate import AnswerView, closing_lines, print_stats_table

    answer: Answer | None = None
    try:
        with AnswerView(has_text=False, has_status=not applying.quiet) as view, answering(task, view.notice) as answer:
            view.stream(answer)
        if answer.finish_reason == "interrupted":
            raise KeyboardInterrupt  # unlike half an answer, half an edit is nothing to keep
        if applying.stats:
            print_stats_table(answer)
        new = conclude(task, answer)
        if applying.yes and new.is_changed:
            _require_no_doubts(new)
    except SpecllmError as error:
        if answer is not None and answer.text:
            reply = reply_of(task, answer)
            is_kept = name_kept(error, "reply", reply.encode(), as_json=applying.as_json, reply=reply)
            if not applying.as_json and (sys.stderr.isatty() or not is_kept):
                print(harmless(reply), file=sys.stderr, flush=True)
        raise
    if not applying.quiet and not applying.as_json:
        for line in closing_lines(answer):
            write_note(line)
    decided = decide(new, (*task.warnings, *new.warnings), applying, replaced)
    if applying.as_json:
        with text_kept(decided.edit):
            _emit(task, answer, decided, applying)
    if not new.is_changed:
        raise AnswerIsNo("the model changed nothing", task.hint_if_unchanged)


def _require_no_doubts(new: Edit) -> None:
    """Raises AnswerIsNo for an edit that nobody should apply without a look."""
    if new.doubts:
        raise AnswerIsNo(
            f"this edit was not applied: {'; '.join(new.doubts)}",
            "leave out --yes to look at it and decide, or say more exactly what to change",
        )


def _emit(task: Task, answer: Answer, decided: Decided, applying: ApplyOptions) -> None:
    edit = decided.edit
    result = answer.result()
    envelope.emit(
        "edit",
        {
            "path": edit.name,
            "diff": diff_of(edit),
            "is_changed": edit.is_changed,
            "applied": decided.is_applied,
            "output": str(applying.destination) if decided.is_written else None,
            "encoding": edit.file.encoding,
            "first_line": task.region.first + 1 if task.region else None,
            "last_line": task.region.last if task.region else None,
            "warnings": [*task.warnings, *edit.warnings],
            **{name: value for name, value in result.items() if name != "text"},
        },
        host=answer.host(),
        models=answer.plan.models(),
        params=answer.plan.params(),
        is_ok=edit.is_changed,
    )


_UNDO_TAKES = {"file", "words", "undo", "force", "dry_run", "yes", "as_json", "quiet", "verbose", "debug"}


def _require_only_undo(call: typer.Context) -> None:
    """Raises ConfigError for an option on the command line that says nothing about what is taken back."""
    for option in call.command.params:
        source = call.get_parameter_source(option.name or "")
        if option.name not in _UNDO_TAKES and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--undo does nothing with {option.opts[0]}", "leave it out")


def _undo(file: Path | None, words: list[str], applying: ApplyOptions) -> None:
    from specllm.app.edit.history import last_edit, undo_edit
    from specllm.ui.console import write_note

    if words:
        raise ConfigError("--undo takes a file and no instruction", "leave the instruction out")
    if applying.yes and applying.dry_run:
        raise ConfigError("--yes and --dry-run contradict each other", "use one of them")
    if applying.dry_run:
        entry = last_edit(file, is_forced=applying.force)
    else:
        with interrupts_ignored():
            entry = undo_edit(file, is_forced=applying.force)
    if applying.as_json:
        result = {"path": str(entry.path), "undone": not applying.dry_run, "edited_at": entry.at}
        envelope.emit("edit", result)
        return
    what = "would restore" if applying.dry_run else "restored"
    write_note(f"{what} {entry.path} as it was before the edit of {entry.at}")
