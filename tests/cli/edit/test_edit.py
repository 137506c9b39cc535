"""`specllm edit` from the command line to the bytes of the file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import run
from tests.cli.edit.conftest import AFTER, BEFORE, DIFF, QUICK, Edit, untouched
from tests.synthetic import EOS, FIRST_BYTE, IM_END, write_llama


def test_without_a_terminal_the_diff_is_shown_and_nothing_applied(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "Fix", "add", reply=f"{AFTER}```")
    assert (result.code, result.stdout) == (0, DIFF)
    assert "nothing was applied: there is no terminal to ask on; pass --yes" in result.stderr
    assert result.stderr.startswith(f"{len(AFTER) + 4} tokens")
    assert untouched(folder)


def test_yes_applies_and_undo_takes_back(edit: Edit, folder: Path) -> None:
    file = folder / "t.py"
    file.chmod(0o755)
    result = edit("t.py", "--yes", "Fix add", reply=f"{AFTER}```")
    assert (result.code, result.stdout) == (0, DIFF)
    assert "edited t.py; specllm edit --undo takes it back" in result.stderr
    assert (file.read_text(), file.stat().st_mode & 0o777) == (AFTER, 0o755)
    assert edit("t.py", "--undo", "--dry-run").stderr.startswith("would restore")
    assert file.read_text() == AFTER
    undone = edit("--undo", "--json")
    assert undone.document["result"]["path"] == str(file)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (BEFORE, 0o755)
    assert edit("--undo").code == 2


def test_undo_refuses_a_file_that_changed_unless_forced(edit: Edit, folder: Path) -> None:
    edit("t.py", "--yes", "-q", "Fix add", reply=f"{AFTER}```")
    (folder / "t.py").write_text("mine")
    for rehearsal in ([], ["--dry-run"]):
        refused = edit("t.py", "--undo", *rehearsal)
        assert (refused.code, "pass --force" in refused.stderr) == (1, True)
    assert edit("t.py", "--undo", "--dry-run", "--force").stderr.startswith("would restore")
    assert edit("t.py", "--undo", "--force").code == 0
    assert untouched(folder)


def test_a_document_says_everything(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "--json", "--yes", "Fix add", reply=f"{AFTER}```\n\nI fixed it.")
    document = result.document
    assert (result.code, result.stderr, document["command"], document["ok"]) == (0, "", "edit", True)
    told: dict[str, Any] = document["result"]
    assert {name: told[name] for name in ("path", "diff", "is_changed", "applied", "output", "warnings")} == {
        "path": "t.py", "diff": DIFF, "is_changed": True, "applied": True, "output": None, "warnings": [],
    }  # fmt: skip
    assert told["finish_reason"] == "stop"
    assert told["stats"]["n_committed"] > len(AFTER)
    assert "n_prediction_accepted" in told["stats"]
    assert document["params"]["temperature"] == 0
    assert document["params"]["answer_start"] == "```python\n"
    assert (folder / "t.py").read_text() == AFTER


def test_json_without_yes_applies_nothing(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "--json", "Fix add", reply=f"{AFTER}```")
    assert (result.code, result.stderr, result.document["result"]["applied"]) == (0, "", False)
    assert untouched(folder)


def test_no_change_is_said_clearly(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "--yes", "Fix add", reply=f"{BEFORE}```")
    assert (result.code, result.stdout) == (3, "")
    assert "error: the model changed nothing\nhint: say more exactly" in result.stderr
    document = edit("t.py", "--json", "Fix add", reply=f"{BEFORE}```").document
    assert (document["ok"], document["result"]["is_changed"], document["result"]["diff"]) == (False, False, "")
    assert untouched(folder)


def test_output_goes_elsewhere(edit: Edit, folder: Path) -> None:
    first = edit("t.py", "-o", "new.py", "-q", "Fix add", reply=f"{AFTER}```")
    assert (first.code, first.stdout, first.stderr) == (0, DIFF, "wrote new.py\n")
    assert ((folder / "new.py").read_text(), (folder / "t.py").read_text()) == (AFTER, BEFORE)
    again = edit("t.py", "-o", "new.py", "Fix add")
    assert (again.code, "new.py is there already" in again.stderr) == (2, True)
    assert edit("t.py", "-o", "new.py", "-y", "-q", "Fix add", reply="x = 1\n```").code == 0
    assert (folder / "new.py").read_text() == "x = 1\n"


def test_a_new_output_is_as_private_as_the_file(edit: Edit, folder: Path) -> None:
    (folder / "t.py").chmod(0o700)
    assert edit("t.py", "-o", "new.py", "Fix add", reply=f"{AFTER}```").code == 0
    assert (folder / "new.py").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("old", "reply", "new"),
    [
        (b"a\r\nb\r\n", "a\nB\n```", b"a\r\nB\r\n"),
        (b"a\r\nb\nc", "a\nb\nC\n```", b"a\r\nb\nC"),
        (b"\ta\n\tb\n", "\ta\n\tc\n```", b"\ta\n\tc\n"),
        ("\ufeffä\n".encode(), "ö\n```", "\ufeffö\n".encode()),
        ("ä\n".encode("cp1252"), "ö\n```", "ö\n".encode("cp1252")),
        ("ä🌊\r\n".encode("utf-16"), "🌊鲸\n```", "🌊鲸\r\n".encode("utf-16")),
        ("🌊\n".encode(), "🌊👍🏽\n```", "🌊👍🏽\n".encode()),
        (b"", "x = 1\n```", b"x = 1\n"),
        (b"x", "y\n```", b"y"),
        (b"x\n\n", "y\n\n```", b"y\n\n"),
        (b"<|im_end|>\n", "<|im_end|>!\n```", b"<|im_end|>!\n"),
    ],
)
def test_the_file_keeps_its_ways(edit: Edit, folder: Path, old: bytes, reply: str, new: bytes) -> None:
    (folder / "a file.txt").write_bytes(old)
    result = edit("a file.txt", "--yes", "Do it", reply=reply)
    assert result.code == 0, result
    assert (folder / "a file.txt").read_bytes() == new
    assert edit("--undo").code == 0
    assert (folder / "a file.txt").read_bytes() == old


def test_a_piped_diff_is_a_patch(edit: Edit, folder: Path) -> None:
    """In the file's own encoding, with its line ends, and what is said about a last newline."""
    if shutil.which("patch") is None:
        pytest.skip("patch is not installed")
    old, reply = "ä\r\nb\nlast".encode("cp1252"), "ö\nb\nnew\nlast\n```"
    (folder / "f.txt").write_bytes(old)
    diff = edit("f.txt", "Do it", reply=reply).stdout.encode("utf-8", "surrogateescape")
    assert edit("f.txt", "--yes", "Do it", reply=reply).code == 0
    new = (folder / "f.txt").read_bytes()
    (folder / "f.txt").write_bytes(old)
    subprocess.run(["patch", "--binary", "-p1"], input=diff, check=True, capture_output=True, cwd=folder)
    assert (folder / "f.txt").read_bytes() == new


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_a_patch_fits_names_with_spaces_and_a_byte_order_mark(edit: Edit, folder: Path, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    file = folder / "a 2020-01-01.txt"
    file.write_bytes(b"\xef\xbb\xbfa\nb\n")
    diff = edit(file.name, "Do it", reply="A\nb\n```").stdout
    assert edit(file.name, "--json", "Do it", reply="A\nb\n```").document["result"]["diff"] == diff
    command = ["patch", "--binary", "-p1"] if tool == "patch" else ["git", "apply"]
    subprocess.run(command, input=diff.encode(), check=True, capture_output=True, cwd=folder)
    assert file.read_bytes() == b"\xef\xbb\xbfA\nb\n"


def test_fences_in_the_file_end_nothing(edit: Edit, folder: Path) -> None:
    text = "# A\n\n```sh\nls\n```\n"
    (folder / "README.md").write_text(text)
    new = text.replace("ls", "ls -l") + "\n```\nmore\n```\n"
    assert edit("README.md", "--yes", "Use -l", reply=f"{new}````\nDone.").code == 0
    assert (folder / "README.md").read_text() == new
    longer = '"""\n````sh\nls\n````\n"""\n' + BEFORE  # begins as the fence that ends the block
    assert edit("t.py", "--yes", "Add an example", reply=f"{longer}```\nDone.").code == 0
    assert (folder / "t.py").read_text() == longer


def test_a_block_closed_with_three_backticks_is_read(edit: Edit, folder: Path) -> None:
    (folder / "README.md").write_text("# A\n\n```\nls\n```\n\nEnd.\n")
    result = edit("README.md", "Use -l", "--yes", reply="# A\n\n```\nls -l\n```\n\nEnd.\n```")
    assert (result.code, "warning" in result.stderr) == (0, False)
    assert (folder / "README.md").read_text() == "# A\n\n```\nls -l\n```\n\nEnd.\n"
    cut = edit("README.md", "Use -l", reply="# A\n\nls -l\n```")
    assert "warning: the old text's last line is missing: a fence inside the new text may have cut it" in cut.stderr


def test_a_text_that_a_fence_may_have_cut_is_told(edit: Edit, folder: Path) -> None:
    (folder / "t.js").write_text("let a = 1\nfunction f() {\n  return a\n}\n")
    documented = "let a = 1\n/**\n```\nf()\n```\n*/\nfunction f() {\n  return a\n}\n```\n"
    assert "may have cut it" in edit("t.js", "Document f", reply=documented).stderr
    for said in (
        "let a = 1\nfunction f() {\n  return a + 1\n}\n```\nDone.",
        "let a = 1\n```",
    ):  # whole; ended by itself
        assert "may have cut it" not in edit("t.js", "Add 1", reply=said).stderr


def test_an_empty_line_that_stays_empty_is_no_change(edit: Edit, folder: Path) -> None:
    for reply in ("```", "\n```", "\n \n```"):
        result = edit("t.py", "--lines", "3", "--yes", "Do it", reply=reply)
        assert (result.code, "changed nothing" in result.stderr) == (3, True)
    assert untouched(folder)
    (folder / "t.py").write_text("\n\n")
    assert edit("t.py", "--yes", "Do it", reply="```").code == 3


def test_line_ends_that_stay_are_explained(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "Be sure that f has exactly one final newline", reply=f"{BEFORE}```")
    assert (result.code, "stay as they are; run perl" in result.stderr) == (3, True)
    (folder / "wide.txt").write_bytes("a\n".encode("utf-16"))  # whose line feeds are more than a byte
    assert "hint: use your editor\n" in edit("wide.txt", "Convert to CRLF").stderr


def test_a_region_alone_changes(edit: Edit, folder: Path) -> None:
    for how in (("--lines", "2:2"), ("--symbol", "add")):
        reply = "    return a + b\n```" if how[0] == "--lines" else "def add(a, b):\n    return a + b\n```"
        result = edit("t.py", *how, "Fix it", reply=reply)
        assert (result.code, result.stdout) == (0, DIFF)
    flat = edit("t.py", "--lines", "2", "Fix it", reply="return a + b\n```")
    assert flat.stdout == DIFF
    assert "warning: the new lines came without their indentation" in flat.stderr
    gone = edit("t.py", "--lines", "1:4", "--json", "Remove add", reply="```").document["result"]
    assert "they are deleted" in gone["warnings"][0]
    assert (gone["first_line"], gone["last_line"]) == (1, 4)
    last = edit("t.py", "--lines", "6:6", "--yes", "Swap", reply="    return b * a\n```")
    assert last.code == 0
    assert (folder / "t.py").read_text() == BEFORE.replace("a * b", "b * a")


def test_warnings_are_told(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "Fix add", reply="def add(a, b:\n    return a + b\n```")
    assert result.code == 0
    assert "warning: the new text does not parse: line 1" in result.stderr
    assert "warning: the new text has 2 lines instead of 6" in result.stderr


def test_a_model_without_a_template_gets_the_prompt_as_it_is(edit: Edit, folder: Path, synthetic_models: Path) -> None:
    model = write_llama(synthetic_models / "no_template.gguf", chat_template=None)
    result = edit("t.py", "--json", "-m", str(model), "Fix add", reply=f"{AFTER}```")
    assert result.code == 0
    assert result.document["result"]["diff"] == DIFF
    assert result.document["params"]["is_raw"] is True


@pytest.mark.parametrize("variant", ["plain", "changes-first"])
def test_variants_that_begin_freely_are_read_as_well(edit: Edit, variant: str) -> None:
    reply = f" add must add.\n\n```python\n{AFTER}```"
    assert edit("t.py", "--prompt-variant", variant, "Fix add", reply=reply).stdout == DIFF


def test_drafts_from_the_file_do_not_change_the_edit(edit: Edit, folder: Path) -> None:
    (folder / "w.txt").write_text("🌊鲸\n鱼🌊\n")  # in the vocabulary these are the bytes that the model says
    plain = edit("w.txt", "Do it", reply="🌊鲸\n鱼鱼\n```").stdout
    for drafter in ("reference", "lookup"):
        told = edit("w.txt", "-d", drafter, "-k", "8", "--json", "Do it", reply="🌊鲸\n鱼鱼\n```").document["result"]
        assert told["diff"] == plain
        assert told["stats"]["n_accepted"] > 0


def test_the_instruction_may_be_piped_in(llama_gguf: Path, folder: Path) -> None:
    """And the real command ends a real answer: a model that says `x` for ever has no code block that ends."""
    always = ("--logit-bias", f"{FIRST_BYTE + ord('x')}=100")
    never = [word for token in (EOS, IM_END) for word in ("--logit-bias", f"{token}=-inf")]
    # The longer default wording does not fit the 256 tokens of this model.
    wording = ("--prompt-variant", "fence")
    arguments = ("edit", "t.py", "-", "-m", str(llama_gguf), *QUICK, *wording, "-n", "5", *always, *never)
    root = str(Path(__file__).parents[3])
    result = run(*arguments, stdin="Make it\nall x", cwd=folder, env={"PYTHONPATH": root})
    assert result.code == 1
    assert "cut after 5 tokens" in result.stderr


def test_another_output_encoding_spoils_nothing(folder: Path, llama_gguf: Path, tmp_path: Path) -> None:
    (folder / "w.txt").write_text("🌊\n")
    (tmp_path / "reply").write_text("🌊🌊\n```")
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.edit.says", str(tmp_path / "reply"), "edit", "w.txt", "More", "-m", str(llama_gguf),
         *QUICK],
        env={**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONPATH": root}, cwd=folder, capture_output=True,
        stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    assert done.stdout.decode().endswith("-🌊\n+🌊🌊\n")
    assert "nothing was applied" in done.stderr.decode("cp1252")


@pytest.mark.parametrize("old", ["ሰላም ለዓለም\n" * 8, "दुनिया\n" * 8, "x = 1234567890\n" * 8, "🌊\n" * 40])
def test_a_new_text_as_long_as_the_old_one_always_fits(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    """However many tokens a vocabulary makes of a script that it hardly knows: here one of every byte."""
    monkeypatch.setattr("specllm.app.edit.use_case.GROWTH_TOKENS", 8)
    (folder / "f.txt").write_text(old)
    result = edit("f.txt", "--yes", "-c", "2048", "End it", reply=f"{old}.\n```")
    assert (result.code, (folder / "f.txt").read_text()) == (0, f"{old}.\n"), result.stderr
