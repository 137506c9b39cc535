"""Stores on the disk: refreshed, shared, interrupted, removed. The tokenizers are llama.cpp's own."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from specllm.app.store import add as store_add
from specllm.app.store import stores
from specllm.app.store.file import StoreFile
from specllm.app.store.stores import existing_folder, list_stores, open_store, remove, stats, stores_dir
from specllm.errors import ConfigError, StorageError
from specllm.models.progress import NoProgress
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab
from specllm.runtime.vocab_digest import vocabulary_digest
from tests import synthetic
from tests.app.store.stores import TEXT, Add, continued, opened, tokens_of


def test_what_was_added_is_drafted_up_to_the_end_of_its_file(add: Add, project: Path, vocab: Vocab) -> None:
    added = add(project)
    assert (added.n_new, added.n_changed, added.n_unchanged, added.n_dropped) == (2, 0, 0, 0)
    begun = "def second(two):\n    ret"
    assert begun + continued(opened(vocab), vocab, begun) == TEXT[TEXT.index("def second") :]
    assert opened(vocab).n_tokens == added.n_tokens


def test_adding_again_takes_what_changed_and_drops_what_is_gone(add: Add, project: Path, vocab: Vocab) -> None:
    add(project)
    (project / "a.py").write_text(TEXT.replace("two * 2", "two * 3000"))
    (project / "b.py").unlink()
    (project / "c.py").write_text("import os\n")
    again = add()
    assert (again.n_new, again.n_changed, again.n_unchanged, again.n_dropped) == (1, 1, 0, 1)
    assert continued(opened(vocab), vocab, "    return two *") == " 3000\n"
    assert continued(opened(vocab), vocab, "class Other:\n  ") == ""
    (project / "c.py").write_text("import io\n")
    os.utime(project / "c.py", ns=(0, 0))  # as long as before, but not as old
    assert add().n_changed == 1
    unchanged = add(project)
    assert (unchanged.n_unchanged, unchanged.n_new, unchanged.n_dropped) == (2, 0, 0)
    (project / "c.py").write_text("password = '" + "tR4x9-kQ2m8Zp5vLw7b1'\n")
    assert add().n_dropped == 1


def test_a_second_folder_joins_the_first_and_one_inside_it_is_it(add: Add, project: Path, tmp_path: Path) -> None:
    (project / "inner").mkdir()
    other = tmp_path / "other.txt"
    other.write_text("some words\n")
    add(project / "inner")
    assert add(project, other).roots == (str(other), str(project))
    assert add(project / "inner").roots == (str(other), str(project))
    assert add().n_unchanged == 3


def test_what_is_no_text_too_large_or_secret_is_left_out_and_told(add: Add, project: Path) -> None:
    (project / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (project / "data.csv").write_text("1,2,3\n" * 200_000)
    (project / ".env").write_text("NAME=value\n")
    (project / "config.py").write_text("api_key = '" + "9f86d081884c7d659a2feaa0c55ad015'\n")
    added = add(project)
    names = {why: sorted(Path(path).name for path in paths) for why, paths in added.skipped.items()}
    assert names == {"binary": ["image.png"], "large": ["data.csv"], "secret": [".env", "config.py"]}
    assert added.n_new == 2


def test_what_cannot_be_read_is_left_out_and_told(
    add: Add, project: Path, vocab: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so this is played."""
    (project / "closed").mkdir()
    real = {"scandir": os.scandir, "access": os.access, "read": store_add.read_text_file}

    def scandir(folder: Path) -> object:
        if folder == project / "closed":
            raise PermissionError(13, "Permission denied")
        return real["scandir"](folder)

    def read(path: Path) -> object:
        if path == project / "a.py":
            raise ConfigError(f"cannot read {path}: Permission denied")
        return real["read"](path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "access", lambda path, mode: path not in (project / "closed", project / "a.py"))
    monkeypatch.setattr(store_add, "read_text_file", read)
    added = add(project)
    assert added.skipped == {"unreadable": [str(project / "a.py"), str(project / "closed")]}
    assert added.n_new == 1


def test_a_file_that_vanishes_meanwhile_is_not_in_the_store(
    add: Add, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store_add.read_text_file

    def read(path: Path) -> object:
        (project / "b.py").unlink(missing_ok=True)
        return real(path)

    monkeypatch.setattr(store_add, "read_text_file", read)
    added = add(project)
    assert (added.n_new, added.skipped) == (1, {})


def test_an_index_that_may_not_be_read_is_not_replaced(
    add: Add, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Path(add(project).path)
    before = index.read_bytes()
    real = Path.open

    def opened(path: Path, *arguments: object, **options: object) -> object:
        if path == index:
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(StorageError, match="cannot read"):
            add(project)
    assert index.read_bytes() == before


def test_only_the_owner_can_read_a_store(add: Add, project: Path) -> None:
    index = Path(add(project).path)
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700


def test_models_of_a_family_share_a_store_and_others_do_not(
    add: Add, project: Path, vocab: Vocab, close_draft_gguf: Path, tmp_path: Path
) -> None:
    add(project)
    assert add(model=close_draft_gguf).n_unchanged == 2
    stranger = synthetic.write_llama(tmp_path / "stranger.gguf", token_texts={300: "other"})
    weights = Weights(stranger, is_vocab_only=True)
    with pytest.raises(ConfigError, match="'mine' was added for the tokenizer of its name"):
        open_store("mine", weights.vocab, "its name")
    assert add(model=stranger).n_new == 2  # from the folders that were added for the other one
    assert open_store("mine", weights.vocab, "its name").n_tokens
    assert len(stats("mine").parts) == 2
    weights.close()


def test_padding_rows_are_no_part_of_a_vocabulary(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    import llama_cpp

    known = vocabulary_digest(vocab)
    attribute = llama_cpp.llama_vocab_get_attr
    unused = {vocab.n_tokens - 1, vocab.n_tokens - 2}
    monkeypatch.setattr(
        llama_cpp, "llama_vocab_get_attr", lambda handle, token: 2 if token in unused else attribute(handle, token)
    )
    shorter = vocabulary_digest(vocab)
    monkeypatch.setattr(vocab, "n_tokens", vocab.n_tokens - 1)
    assert vocabulary_digest(vocab) == shorter != known


def test_ctrl_c_while_adding_leaves_the_store_as_it_was(add: Add, project: Path) -> None:
    class Interrupting(NoProgress):
        def advance(self, n_bytes: int) -> None:
            raise KeyboardInterrupt

    index = Path(add(project).path)
    before = index.read_bytes()
    (project / "a.py").write_text("changed\n")
    with pytest.raises(KeyboardInterrupt):
        add(project, progress=Interrupting())
    assert index.read_bytes() == before
    assert {file.name for file in index.parent.iterdir()} == {index.name, "lock"}
    assert add(project).n_changed == 1


def test_a_store_has_a_largest_size(add: Add, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Path(add(project).path)
    before = index.read_bytes()
    monkeypatch.setattr(store_add, "MAX_TOKENS", 50)
    with pytest.raises(ConfigError, match="more than the 50 tokens"):
        add(project)
    assert index.read_bytes() == before


def test_adding_at_the_same_time_adds_both(add: Add, project: Path, tmp_path: Path) -> None:
    folders = []
    for number in range(4):
        folders.append(tmp_path / f"folder{number}")
        folders[-1].mkdir()
        (folders[-1] / "file.txt").write_text(f"words {number}\n" * 50)
    threads = [threading.Thread(target=add, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert add().roots == tuple(map(str, folders))
    assert add().n_unchanged == 4


def test_a_folder_that_cannot_be_made_is_told(add: Add, project: Path) -> None:
    stores_dir().parent.mkdir(parents=True)
    stores_dir().write_text("a file is in its place")
    with pytest.raises(StorageError, match="cannot write") as failure:
        add(project)
    assert "SPECLLM_STORES_DIR" in failure.value.hint


def test_progress_counts_every_byte_that_is_read(add: Add, project: Path) -> None:
    class Counting(NoProgress):
        total = done = 0

        def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
            self.total = total_bytes or 0

        def advance(self, n_bytes: int) -> None:
            self.done += n_bytes

    progress = Counting()
    add(project, progress=progress)
    assert progress.done == progress.total == sum(file.stat().st_size for file in project.iterdir())


@pytest.mark.parametrize("name", ["..", "a/b", "", "/etc", ".hidden/../x", "con"])
def test_a_name_never_leads_out_of_the_folder_of_stores(add: Add, project: Path, name: str) -> None:
    for call in (lambda: add(project, name=name), lambda: existing_folder(name), lambda: remove(name)):
        with pytest.raises(ConfigError, match="cannot be the name of a store"):
            call()


def test_nothing_to_add_is_told(add: Add, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing in the store 'mine' yet"):
        add()
    with pytest.raises(ConfigError, match="there is no"):
        add(tmp_path / "missing")
    assert list_stores() == []


# ---- answers ---------------------------------------------------------------------------------------------------


def test_an_answer_is_drafted_from_in_the_next_run(add: Add, project: Path, vocab: Vocab) -> None:
    add(project)
    answer = tokens_of(vocab, "the quick brown fox jumps")
    opened(vocab).remember(answer)
    opened(vocab).remember([])
    assert continued(opened(vocab), vocab, "the quick br") == "own fox jumps"
    assert continued(opened(vocab), vocab, "def second(two):\n") == "    return two * 2\n"
    add()
    assert continued(opened(vocab), vocab, "the quick br") == "own fox jumps"


def test_the_newest_answers_are_kept_each_once(
    add: Add, project: Path, vocab: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_ANSWER_TOKENS", 30)
    answers = Path(add(project).path).with_suffix(".answers")

    def kept() -> list[int]:
        return [int.from_bytes(one[:4], "big") for one in StoreFile(answers).encoded()]

    for first in (1, 2, 1):
        opened(vocab).remember([first] * 9)
    assert kept() == [2, 1]
    for first in (3, 4):
        opened(vocab).remember([first] * 9)
    assert kept() == [1, 3, 4]


# ---- the rest --------------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_told_with_those_that_are(add: Add, project: Path, vocab: Vocab) -> None:
    add(project)
    with pytest.raises(ConfigError, match="there is no store 'yours'; there are mine"):
        open_store("yours", vocab, "tiny")


def test_stats_say_what_is_there(add: Add, project: Path, vocab: Vocab) -> None:
    added = add(project)
    opened(vocab).remember([1, 2, 3])
    files, answers = sorted(stats("mine").parts, key=lambda part: part.kind, reverse=True)
    assert (files.kind, files.n_documents, files.n_tokens, files.roots) == ("files", 2, added.n_tokens, (str(project),))
    assert files.n_bytes == added.n_bytes
    assert (answers.kind, answers.n_documents, answers.n_tokens) == ("answers", 1, 3)
    assert [store.name for store in list_stores()] == ["mine"]


def test_removing_leaves_nothing_of_the_store_and_everything_else(add: Add, project: Path, vocab: Vocab) -> None:
    folder = Path(add(project).path).parent
    opened(vocab).remember([1, 2, 3])
    add(project, name="other")
    (folder / "notes").write_text("mine")
    remove("mine")
    assert [file.name for file in folder.iterdir()] == ["notes"]
    assert [store.name for store in list_stores()] == ["other"]
    assert not remove("other").exists()
    assert (project / "a.py").read_text() == TEXT


def test_an_answer_does_not_bring_a_removed_store_back(add: Add, project: Path, vocab: Vocab) -> None:
    add(project)
    store = opened(vocab)
    folder = remove("mine")
    store.remember([1, 2, 3])
    assert not folder.exists()
    assert store.drafter().propose(tokens_of(vocab, "def first(one)"), 4).tokens  # what was mapped stays
