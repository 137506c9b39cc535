"""A file is replaced whole or not at all, wherever the process dies, and what was replaced can be had back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specllm.app.apply import (
    digest_of,
    is_partial_of,
    partial_prefix,
    replace_file,
    require_replaceable,
    require_writable_folder,
    write_beside,
)
from specllm.app.edit.history import Entry, apply_edit, keep, last_edit, open_history, undo_edit
from specllm.errors import ConfigError, StorageError

OLD, NEW = b"old\r\ntext" * 999, b"new text\n" * 1234
MODE = 0o2750

# For every line "edit|undo PATH NEW N" a child process that dies by SIGKILL just before its N-th call that touches a file;
# answers with how it ended.
DYING = """
import os, signal, sys
from pathlib import Path
from specllm.app import apply
from specllm.app.edit import history

n_calls = 0

def dying(call, n):
    def wrapped(*arguments, **options):
        global n_calls
        n_calls += 1
        if n_calls == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapped

for line in sys.stdin:
    what, path, new, n = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        for name in ("open", "fdopen", "fsync", "replace", "chmod", "chown", "utime", "unlink", "mkdir", "close"):
            setattr(os, name, dying(getattr(os, name), int(n)))
        path = Path(path)
        if what == "edit":
            history.apply_edit(path, path.read_bytes(), Path(new).read_bytes())
        else:
            history.undo_edit(path)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def die() -> Iterator[Callable[..., int]]:
    """Calls one of the two in a process that dies at a step; its exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:

        def die(*words: object) -> int:
            assert process.stdin
            assert process.stdout
            process.stdin.write("\t".join(map(str, words)) + "\n")
            return int(process.stdout.readline())

        yield die


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "a file.py"
    path.parent.mkdir()
    path.write_bytes(OLD)
    path.chmod(MODE)
    return path


def neighbours(file: Path) -> set[str]:
    return {other.name for other in file.parent.iterdir() if not is_partial_of(other.name, file.name)} - {file.name}


def partials(file: Path) -> list[Path]:
    return [other for other in file.parent.iterdir() if is_partial_of(other.name, file.name)]


def is_whole(file: Path) -> bytes:
    """Its bytes, once it is sure that they are one version, with the file's mode, and nothing strange beside it."""
    data = file.read_bytes()
    assert data in (OLD, NEW)
    assert stat.S_IMODE(file.stat().st_mode) == MODE
    assert neighbours(file) == set()
    return data


@pytest.mark.parametrize("what", ["edit", "undo"])
def test_kill_at_any_step_leaves_one_whole_version(
    die: Callable[..., int], file: Path, tmp_path: Path, what: str
) -> None:
    """And the next edit and undo work as if nothing had been."""
    new = tmp_path / "new"
    new.write_bytes(NEW)
    seen = []
    for n in range(1, 100):
        file.write_bytes(OLD)
        if what == "undo":
            apply_edit(file, OLD, NEW)
        code = die(what, file, new, n)
        data = is_whole(file)
        seen.append(data)
        for partial in partials(file):
            os.utime(partial, (0, 0))  # long ago: nobody writes it any more
        if data == NEW:
            assert undo_edit(file).before == OLD
        else:
            with pytest.raises(ConfigError, match="no edit"):
                undo_edit(file)
        assert is_whole(file) == OLD
        apply_edit(file, OLD, NEW)
        assert is_whole(file) == NEW
        undo_edit(file)
        assert is_whole(file) == OLD
        assert partials(file) == []
        if code == 0:
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("it never came to its end")
    assert n > 15
    assert set(seen) == {OLD, NEW}
    assert seen == sorted(seen, key=lambda data: data == seen[-1])  # the rename is one moment


@pytest.mark.parametrize("call", ["fsync", "replace", "fdopen"])
def test_an_error_at_any_step_leaves_the_old_file_and_no_history(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    entries = set(open_history().iterdir())

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match=r"old text cannot be kept for --undo: .*No space left"):
            apply_edit(file, OLD, NEW)
    assert is_whole(file) == OLD
    assert {entry.name for entry in open_history().iterdir()} <= {entry.name for entry in entries} | {"lock"}


@pytest.mark.parametrize(("number", "step"), [(13, "make {} writable"), (28, "check {} and the space on its disk")])
def test_what_stops_a_write_names_the_step(file: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StorageError) as raised:
        replace_file(file, NEW, expected=None)
    assert raised.value.hint == step.format(file.parent)
    assert is_whole(file) == OLD


def test_a_file_that_changed_meanwhile_is_left_alone(file: Path) -> None:
    file.write_bytes(b"somebody else was here")
    with pytest.raises(StorageError, match="changed meanwhile"):
        apply_edit(file, OLD, NEW)
    assert file.read_bytes() == b"somebody else was here"
    assert neighbours(file) == set()
    with pytest.raises(ConfigError):
        last_edit(file)


def test_the_digest_is_compared_right_before_the_rename(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        file.write_bytes(b"in the last moment")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="changed meanwhile"):
        replace_file(file, NEW, expected=digest_of(OLD))
    assert file.read_bytes() == b"in the last moment"


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(Path("folder") / file.name)
    apply_edit(link, OLD, NEW)
    assert link.is_symlink()
    assert is_whole(file) == NEW
    undo_edit(file)  # known by its real path
    assert is_whole(file) == OLD


def test_a_partial_file_is_removed_once_nobody_can_be_writing_it_and_never_followed(file: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    old, young, another = (file.with_name(partial_of(name)) for name in (file.name, file.name, "other"))
    for partial in (old, young, another):
        partial.symlink_to(victim)
    for partial in (old, another):
        os.utime(partial, (0, 0), follow_symlinks=False)
    apply_edit(file, OLD, NEW)
    assert file.read_bytes() == NEW
    assert [partial.is_symlink() for partial in (old, young, another)] == [False, True, True]
    assert victim.read_bytes() == b"precious"


def partial_of(name: str) -> str:
    """A name as `replace_file` makes them."""
    return f"{partial_prefix(name)}{os.urandom(4).hex()}.partial"


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    file = tmp_path / ("é" * 127)
    file.write_bytes(OLD)
    apply_edit(file, OLD, NEW)
    assert file.read_bytes() == NEW


def test_undo_goes_back_several_levels_and_knows_its_files(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for file in (a, b):
        file.write_bytes(b"0")
    apply_edit(a, b"0", b"1")
    apply_edit(b, b"0", b"1")
    apply_edit(a, b"1", b"2")
    assert undo_edit(b).path == b
    assert (a.read_bytes(), b.read_bytes()) == (b"2", b"0")
    assert undo_edit(None).path == a
    assert a.read_bytes() == b"1"
    assert undo_edit(a).path == a
    assert a.read_bytes() == b"0"
    for path in (a, b, None):
        with pytest.raises(ConfigError, match="no edit"):
            undo_edit(path)


def test_undo_leaves_a_file_that_changed_since_unless_forced(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    file.write_bytes(b"mine")
    with pytest.raises(StorageError, match="changed since"):
        undo_edit(file)
    assert file.read_bytes() == b"mine"
    undo_edit(file, is_forced=True)
    assert file.read_bytes() == OLD
    undo_edit(file)  # nothing is lost
    assert file.read_bytes() == b"mine"
    with pytest.raises(ConfigError):
        undo_edit(file)


def test_undo_of_a_file_that_is_gone_brings_it_back_if_forced(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    file.unlink()
    with pytest.raises(StorageError, match="is gone"):
        undo_edit(file)
    undo_edit(file, is_forced=True)
    assert is_whole(file) == OLD


@pytest.mark.parametrize("what", ["folder", "pipe", "unreadable"])
def test_undo_never_replaces_what_it_cannot_keep(file: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    apply_edit(file, OLD, NEW)
    if what == "unreadable":

        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", refuse)
        monkeypatch.setattr("specllm.app.edit.history._parsed", lambda entry: Entry(entry, file, OLD, "", MODE, ""))
    else:
        file.unlink()
        (os.mkdir if what == "folder" else os.mkfifo)(file)
    for is_forced in (False, True):
        with pytest.raises(StorageError, match="nothing was undone") as raised:
            undo_edit(file, is_forced=is_forced)
        assert "move it away" in raised.value.hint
    assert file.is_dir() == (what == "folder")
    assert neighbours(file) == set()


def test_undo_where_the_folder_is_gone_says_so(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    file.unlink()
    file.parent.rmdir()
    with pytest.raises(StorageError, match="No such file") as raised:
        undo_edit(file, is_forced=True)
    assert str(file.parent) in raised.value.hint


def test_the_last_text_alone_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (OLD, NEW):
        kept = keep("new text", text)
        assert kept is not None
        assert kept.read_bytes() == text
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    apply_edit(file, OLD, NEW)
    assert undo_edit(None).path == file  # it is no edit
    monkeypatch.setenv("SPECLLM_STATE_DIR", str(file))
    assert keep("new text", OLD) is None


def test_a_file_put_back_by_hand_needs_no_undo(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    file.write_bytes(OLD)
    with pytest.raises(ConfigError, match="no edit"):
        undo_edit(file)


def test_undo_without_a_file_never_goes_on_to_another_files_edit(tmp_path: Path) -> None:
    """The last edit's file holds again what it held before, by `git checkout` for example: nothing else was meant."""
    a, b = tmp_path / "a", tmp_path / "b"
    for file in (a, b):
        file.write_bytes(b"0")
        apply_edit(file, b"0", b"1")
    b.write_bytes(b"0")
    for undo in (last_edit, undo_edit, undo_edit):
        for is_forced in (False, True):
            with pytest.raises(StorageError, match="holds again what it held before") as raised:
                undo(None, is_forced=is_forced)
            assert str(b) in raised.value.message
            assert "--undo FILE" in raised.value.hint
    assert a.read_bytes() == b"1"
    assert undo_edit(a).path == a
    with pytest.raises(ConfigError, match="no edit"):
        undo_edit(b)
    with pytest.raises(ConfigError, match="no edit"):  # that one is over
        undo_edit(None)


def test_a_look_at_the_last_edit_deletes_nothing(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    apply_edit(file, NEW, OLD + NEW)
    file.write_bytes(NEW)
    entries = sorted(open_history().iterdir())
    for path in (file, None):
        for is_forced in (False, True):
            with contextlib.suppress(StorageError):
                last_edit(path, is_forced=is_forced)
    assert sorted(open_history().iterdir()) == entries


def test_two_writers_of_one_file_have_partial_files_of_their_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is about to rename: each writes what it was given, whole."""
    real, others = os.replace, [b"second" * 99999]

    def replace(source: str, target: str) -> None:
        if others:
            replace_file(file, others.pop(), expected=None)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    replace_file(file, NEW, expected=None)
    assert file.read_bytes() == NEW
    assert neighbours(file) == set()


def test_a_new_file_never_takes_the_place_of_one_that_appears(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = file.with_name("new")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        new.write_bytes(b"in the last moment")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="appeared meanwhile"):
        write_beside(new, NEW, like=file)
    assert new.read_bytes() == b"in the last moment"
    assert neighbours(file) == {"new"}


@pytest.mark.parametrize("has_folder", [True, False])
def test_what_is_gone_by_now_is_said(file: Path, has_folder: bool) -> None:
    file.unlink()
    if not has_folder:
        file.parent.rmdir()
    with pytest.raises(StorageError, match="is gone") as raised:
        apply_edit(file, OLD, NEW)
    assert "space" not in raised.value.message + raised.value.hint
    with pytest.raises(ConfigError, match="no edit"):
        last_edit(file)
    if not has_folder:
        with pytest.raises(StorageError, match="is gone") as raised:
            write_beside(file, NEW, like=file)
        assert "space" not in raised.value.message + raised.value.hint


def test_damaged_entries_are_passed_over(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    (entry,) = open_history().glob("*.json")
    for n, damage in enumerate([b"", b"{", b"[]", b"{}", b'{"path": 1, "before": "a"}', b"\xff"]):
        entry.with_name(f"{n + 900:08d}-{entry.name.partition('-')[2]}").write_bytes(damage)
    assert undo_edit(file).path == file
    assert is_whole(file) == OLD


def test_old_texts_are_for_this_user_alone(file: Path) -> None:
    apply_edit(file, OLD, NEW)
    folder = open_history()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(entry.stat().st_mode) for entry in folder.glob("*.json")] == [0o600]
    assert json.loads(next(folder.glob("*.json")).read_text())["path"] == str(file)


def test_what_cannot_be_replaced_is_known_before(file: Path) -> None:
    require_replaceable(file)
    file.chmod(0o444)
    with pytest.raises(ConfigError, match="read-only"):
        require_replaceable(file)
    with pytest.raises(ConfigError, match="no folder"):
        require_writable_folder(file.parent / "none" / "x")


@pytest.mark.skipif(os.getuid() != 0, reason="needs the superuser to become somebody else")
def test_a_folder_that_cannot_be_written_is_known_before(file: Path, tmp_path: Path) -> None:
    os.chmod(file, 0o666)
    for folder in (file.parent, *list(file.parents)[1:-1]):
        os.chmod(folder, 0o755)
    code = (
        "import os, sys; from pathlib import Path; from specllm.app.apply import require_replaceable\n"
        "from specllm.errors import ConfigError\n"
        "os.setuid(65534)\n"
        "try: require_replaceable(Path(sys.argv[1]))\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert "cannot be written" in done.stdout, done.stderr


def test_a_state_folder_that_cannot_be_made_is_an_error_with_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("SPECLLM_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(ConfigError, match="cannot keep old texts") as raised:
        open_history()
    assert "SPECLLM_STATE_DIR" in raised.value.hint
