"""What becomes of an edit: shown, asked about, applied or written elsewhere; what cannot be used or written is kept."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specllm.cli import envelope
from specllm.cli.editor import edit_in_editor, interrupts_ignored
from specllm.errors import ConfigError, SpecllmError, StorageError

if TYPE_CHECKING:
    from specllm.app.edit.use_case import Edit
    from specllm.cli.edit import ApplyOptions


@dataclass(frozen=True)
class Decided:
    edit: Edit
    is_applied: bool = False
    is_written: bool = False  # to --output


def decide(new: Edit, warnings: Sequence[str], applying: ApplyOptions, replaced: bytes | None) -> Decided:
    """Shows the edit with the warnings and writes it where that is wanted; with --json only the latter.

    `replaced` is what the file of --output held at the beginning; None where there was none.
    """
    from specllm.ui.console import write_note
    from specllm.ui.edit import draw_diff

    needs_yes = new.is_changed and not (applying.yes or applying.dry_run or applying.destination)
    if needs_yes and not applying.as_json and sys.stdin.isatty() and sys.stdout.isatty():
        return _ask(new, warnings)
    if not applying.as_json:
        _warn(warnings, new.doubts)
    with text_kept(new, as_json=applying.as_json):
        try:
            decided = _write(new, applying, replaced, (lambda text: None) if applying.as_json else write_note)
        finally:  # also where it cannot be written: generating it took its time
            if not applying.as_json:
                draw_diff(new.name, new.before, new.after, encoding=new.file.encoding, mark=new.mark)
    if needs_yes and not applying.as_json:
        write_note("nothing was applied: there is no terminal to ask on; pass --yes to apply")
    return decided


def _write(new: Edit, applying: ApplyOptions, replaced: bytes | None, say: Callable[[str], None]) -> Decided:
    """Applies the edit, or writes its text to --output, if the options say so."""
    if not new.is_changed or applying.dry_run:
        return Decided(new)
    if applying.destination is not None:
        from specllm.app.apply import write_beside
        from specllm.app.edit.history import apply_edit

        with interrupts_ignored():
            if replaced is None:
                write_beside(applying.destination, new.data, like=new.file.path)
            else:
                apply_edit(applying.destination, replaced, new.data)
        way_back = "" if replaced is None else f"; specllm edit --undo {applying.destination} takes it back"
        say(f"wrote {applying.destination}{way_back}")
        return Decided(new, is_written=True)
    return _apply(new, say) if applying.yes else Decided(new)


def _apply(new: Edit, say: Callable[[str], None]) -> Decided:
    from specllm.app.edit.history import apply_edit

    with interrupts_ignored():  # it is whole either way, and what is said afterwards should be true
        apply_edit(new.file.path, new.file.data, new.data)
    say(f"edited {new.name}; specllm edit --undo takes it back")
    return Decided(new, is_applied=True)


def _ask(new: Edit, warnings: Sequence[str]) -> Decided:
    """Shows the edit and asks until there is a yes or a no; `e` changes what is asked about."""
    from specllm.ui.console import write_error, write_note
    from specllm.ui.edit import ask_to_apply, draw_diff

    draw_diff(new.name, new.before, new.after)
    _warn(warnings, new.doubts)  # behind the diff, which may be longer than the screen
    draft = new.data
    while True:
        answer = ask_to_apply()
        if answer == "y":
            with text_kept(new):
                return _apply(new, write_note)
        if answer == "n":
            write_note("nothing was applied")
            return Decided(new)
        try:
            draft = edit_in_editor(draft, new.file.path.name)
            try:
                new = new.rewritten(draft)
            except ConfigError as error:  # another `e` opens it again
                name_kept(error, "new text", draft, as_json=False)
                raise
        except SpecllmError as error:
            write_error(error.message, error.hint)
            continue
        draw_diff(new.name, new.before, new.after)
        _warn(new.warnings, new.doubts)
        if not new.is_changed:
            write_note("nothing is left to apply")
            return Decided(new)


def _warn(warnings: Sequence[str], doubts: Sequence[str]) -> None:
    """The doubts last, and in red where there is colour."""
    from specllm.ui.console import write_warning

    for warning in warnings:
        if warning not in doubts:
            write_warning(warning)
    for doubt in doubts:
        write_warning(doubt, is_loud=True)


def diff_of(edit: Edit) -> str:
    """A patch, with a byte order mark where the file has one."""
    from specllm.ui.edit import unified_diff

    return unified_diff(edit.name, edit.mark + edit.before, edit.mark + edit.after)


@contextlib.contextmanager
def text_kept(new: Edit, *, as_json: bool = False) -> Iterator[None]:
    """What fails inside says where the new text is kept; with --json its document has the diff."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:  # from standard output; all else has errors of its own
        failure = StorageError(f"cannot write the output: {error.strerror}", "send it to a place with free space")
        name_kept(failure, "new text", new.data, as_json=as_json, diff=diff_of(new))
        raise failure from None
    except SpecllmError as error:
        name_kept(error, "new text", new.data, as_json=as_json, diff=diff_of(new))
        raise


def name_kept(error: SpecllmError, what: str, data: bytes, *, as_json: bool, **details: object) -> bool:
    """Keeps `data` and says so in the error's hint; with --json in its document, which has `details` too.

    False where it cannot be kept. The last one of each kind, `what` it is, stays.
    """
    from specllm.app.edit.history import keep

    file = keep(what, data)
    if file is not None:
        error.hint = f"{error.hint}; the {what} is kept in {file}"
    if as_json:
        kept_in = str(file) if file else None
        envelope.emit_error("edit", type(error).__name__, error.message, error.hint, **details, kept_in=kept_in)
    return file is not None
