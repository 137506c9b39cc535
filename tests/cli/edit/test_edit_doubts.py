"""What a model does to a file that nobody asked for: put back, told, or with --yes not applied."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from tests.cli.edit.conftest import AFTER, BEFORE, Edit, untouched
from tests.synthetic import IM_START

METHODS = [
    "class Shape:", "    def __init__(self, name):", "        self.name = name", "", "    def area(self):", "        return 0",
    "", "    def edges(self):", "        count = len(self.name)", "        return count", "", "    def show(self):",
    "        print(self.name)",
]  # fmt: skip
REMARKS = [
    "    # Rest of the class is the same", "    # rest of the code unchanged", "    # other methods", "    # ...", "    ...",
    "    # [Previous code remains the same]", "    // keep everything else as is", "    /* existing code */",
    "    {/* ... existing code ... */}", "<!-- Rest of the existing content remains unchanged -->", "    -- remaining methods",
    "    ; other methods omitted for brevity", "    % ... unchanged ...", '    """ same as before """', "rem existing code here",
    "    (rest of the class remains unchanged)", "[...]", "…", "    The other methods stay the same.",
    "    # der Rest bleibt, wie er war", "    # 其余代码不变",
]  # fmt: skip


def with_remark(remark: str) -> str:
    """The file with its method `edges` gone and `show` changed."""
    lines = [*METHODS[:7], remark, "", *METHODS[11:12], "        print(self.name.upper())"]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("remark", REMARKS)
def test_lines_replaced_by_a_remark_are_seen_and_never_applied_unseen(edit: Edit, folder: Path, remark: str) -> None:
    file = folder / "shape.txt"
    old = "".join(f"{line}\n" for line in METHODS)
    file.write_text(old)
    reply = f"{with_remark(remark)}```"
    told = edit("shape.txt", "Print it in upper case", reply=reply)
    assert told.code == 0
    assert f"warning: line 8 may stand for text that was left out: {remark.strip()}" in told.stderr
    for where in ([], ["-o", "new.txt"]):
        refused = edit("shape.txt", *where, "--yes", "Print it in upper case", reply=reply)
        assert (refused.code, file.read_text(), (folder / "new.txt").exists()) == (3, old, False)
        assert "error: this edit was not applied: line 8 may stand for text that was left out" in refused.stderr
        kept = Path(refused.stderr.strip().rpartition("the reply is kept in ")[2])
        assert with_remark(remark) in kept.read_text()
    document = edit("shape.txt", "--yes", "--json", "Print it in upper case", reply=reply).document
    assert (document["ok"], document["error"]["type"]) == (False, "AnswerIsNo")
    assert Path(document["error"]["kept_in"]).read_text() == document["error"]["reply"]


def test_yes_refuses_what_does_not_parse(edit: Edit, folder: Path) -> None:
    refused = edit("t.py", "--yes", "Fix add", reply=AFTER.replace("(a, b):", "(a, b:", 1) + "```")
    assert (refused.code, "not applied: the new text does not parse: line 1" in refused.stderr) == (3, True)
    assert untouched(folder)
    (folder / "t.py").write_text("def (\nx = 1\n")  # it did not before
    assert edit("t.py", "--yes", "x is 2", reply="def (\nx = 2\n```").code == 0


def test_yes_refuses_what_lost_its_end(edit: Edit, folder: Path) -> None:
    lost = "def add(a, b):\n    return a + b\n```"
    for reply in (lost, "def add(a, b):\n    return a + b\n```\n\nmore\n```\n"):
        refused = edit("t.py", "--yes", "Fix add", reply=reply)
        assert (refused.code, "error: this edit was not applied: " in refused.stderr) == (3, True), reply
        assert untouched(folder)
    assert edit("t.py", "--yes", "Fix add and remove mul", reply=lost).code == 0


MAKE = "CFLAGS = -O2 \\\n    -Wall\n\nall: a b\n\t$(CC) -o a a.c\n\tstrip a\n\nb:\n\ttouch b\n"


@pytest.mark.parametrize(
    ("name", "old", "new", "damaged"),
    [
        ("Makefile", MAKE, MAKE.replace("strip", "ls"), lambda text: text.replace("\t", "    ")),
        ("Makefile", MAKE, MAKE.replace("strip", "ls"), lambda text: text.replace("\t", "        ")),
        ("a.go", "func f() {\n\tif x {\n\t\ta()\n\t}\n\tb()\n}\n", "func f() {\n\tif x {\n\t\ta()\n\t\tc()\n\t}\n\tb()\n}\n",
         lambda text: text.replace("\t", "    ")),
        ("a.js", "f(() => {\n  a()\n  if (x) {\n    b()\n  }\n})\n", "f(() => {\n  a()\n  if (x) {\n    c()\n  }\n})\n",
         lambda text: text.replace("  ", "\t")),
        ("a.md", "He said:  \n“it’s 5\u00a0€”\n\nend\n", "He said:  \n“it’s 5\u00a0€”\n\nthe end\n",
         lambda text: text.replace("\u00a0", " ").replace("  \n", "\n").translate(str.maketrans("“”’", "\"\"'"))),
        ("a.txt", "Zoe\u0308 – cafe\u0301…\n\nx\n", "Zoe\u0308 – cafe\u0301…\n\ny\n",
         lambda text: unicodedata.normalize("NFC", text).replace("–", "-").replace("…", "...")),
        ("a.txt", "Zoë\nx\n", "Zoë\ny\n", lambda text: unicodedata.normalize("NFD", text)),
        ("a.txt", "a\u200bb \u2764\ufe0f \U0001f468\u200d\U0001f467\nx\n",
         "a\u200bb \u2764\ufe0f \U0001f468\u200d\U0001f467\ny\n",
         lambda text: text.replace("\u200b", "").replace("\ufe0f", "").replace("\u200d", "")),
        ("a.py", "a = 1   \n\t\nb = 2\n", "a = 1   \n\t\nb = 3\n", lambda text: text.replace("   \n", "\n").replace("\t", "")),
        ("a.txt", "one\u3000two\nx\n", "one\u3000two\ny\n", lambda text: text.replace("\u3000", "  ")),
    ],
)  # fmt: skip
def test_what_nobody_asked_for_and_nobody_sees_is_put_back(edit: Edit, folder: Path, name, old, new, damaged) -> None:
    (folder / name).write_text(old)
    assert damaged(new) != new
    result = edit(name, "--yes", "Do it", reply=f"{damaged(new)}```")
    assert (result.code, (folder / name).read_text()) == (0, new), result.stderr
    assert "put back" in result.stderr
    (folder / name).write_text(old)
    unchanged = edit(name, "--yes", "Do it", reply=f"{damaged(old)}```")
    assert (unchanged.code, (folder / name).read_text()) == (3, old)
    assert "put back" in unchanged.stderr
    assert "say so in the instruction" in unchanged.stderr


@pytest.mark.parametrize(
    ("instruction", "old", "new"),
    [
        ("Convert tabs to spaces", "\ta\n\t\tb\n", "    a\n        b\n"),
        ("Indent with tabs", "    a\n", "\ta\n"),
        ("Strip trailing whitespace", "a  \nb\n", "a\nb\n"),
        ("Remove trailing blanks", "a  \nb\n", "a\nb\n"),
        ("Straighten the quotes", "“a”\n", '"a"\n'),
        ("Use curly quotes", '"a" it\'s\n', "“a” it’s\n"),
        ("Replace – by -", "a – b\n", "a - b\n"),
        ("Replace non-breaking spaces by spaces", "a\u00a0b\n", "a b\n"),
        ("Normalise to NFC", "e\u0301\n", "\u00e9\n"),
        ("Make it pure ASCII", "“a”\n", '"a"\n'),
        ("Remove zero-width characters", "a\u200bb\n", "ab\n"),
        ("Reformat the file", "if x:\n\ta = [1,  2]\n", "if x:\n    a = [1, 2]\n"),
    ],
)
def test_what_was_asked_for_stays_possible(edit: Edit, folder: Path, instruction: str, old: str, new: str) -> None:
    (folder / "a.txt").write_text(old)
    result = edit("a.txt", "--yes", instruction, reply=f"{new}```")
    assert (result.code, (folder / "a.txt").read_text()) == (0, new), result.stderr


def test_one_thing_asked_for_leaves_the_others_alone(edit: Edit, folder: Path) -> None:
    (folder / "a.txt").write_text("\t“a” e\u0301\n")
    assert edit("a.txt", "--yes", "Convert tabs to spaces", reply='    "a" é\n```').code == 0
    assert (folder / "a.txt").read_text() == "    “a” e\u0301\n"
    kept = edit("a.txt", "--yes", "Do it, but keep the quotes as they are", reply='    "a" e\u0301\n```')
    assert (kept.code, (folder / "a.txt").read_text()) == (3, "    “a” e\u0301\n")


@pytest.mark.parametrize(
    ("name", "echo"),
    [
        ("t.py", "# t.py\n"), ("t.py", "# ./t.py\n\n"), ("t.py", "t.py\n"), ("t.py", '"""t.py"""\n'), ("t.py", "# File: t.py\n"),
        ("t.py", "# src/t.py\n"), ("a b.js", "// a b.js\n"), ("a.html", "<!-- a.html -->\n"), ("a.css", "/* a.css */\n"),
        ("a.sql", "-- a.sql\n"), ("a.md", "# a.md\n\n"), ("a.md", "**a.md**\n"), ("a.txt", "filename: a.txt\n"),
    ],
)  # fmt: skip
def test_the_files_name_on_top_of_it_is_dropped(edit: Edit, folder: Path, name: str, echo: str) -> None:
    (folder / name).write_text(BEFORE)
    result = edit(name, "--yes", "Fix add", reply=f"{echo}{AFTER}```")
    assert (result.code, (folder / name).read_text()) == (0, AFTER)
    assert "warning: the file's name on top of the new text was dropped" in result.stderr
    (folder / name).write_text(echo + BEFORE)  # it was there
    assert edit(name, "--yes", "Fix add", reply=f"{echo}{AFTER}```").code == 0
    assert (folder / name).read_text() == echo + AFTER
    (folder / name).write_text(BEFORE)  # it is asked for
    assert edit(name, "--yes", "Put the file name on top", reply=f"{echo}{BEFORE}```").code == 0
    assert (folder / name).read_text() == echo + BEFORE


@pytest.mark.parametrize(
    "instruction",
    ["dedent these lines", "De-indent this", "Move it to the top level", "unindent by one level", "Fix the indentation",
     "Outdent the block", "Remove the leading spaces", "Move the function out of the class", "shift it to the left"],
)  # fmt: skip
def test_lines_can_be_dedented(edit: Edit, folder: Path, instruction: str) -> None:
    (folder / "a.txt").write_text("a\n    b\n    c\nd\n")
    result = edit("a.txt", "--lines", "2:3", "--yes", instruction, reply="b\nc\n```")
    assert (result.code, (folder / "a.txt").read_text()) == (0, "a\nb\nc\nd\n"), result.stderr


def test_a_control_token_is_no_text(edit: Edit, folder: Path) -> None:
    """It has none, so it would vanish from the new file."""
    old = 'P = "<|im_start|>"\nx = 1\n'
    (folder / "t.py").write_text(old)
    vanishing = [b'P = "', IM_START, b'"\nx = 2\n```']
    refused = edit("t.py", "--yes", "x is 2", reply=vanishing)
    assert (refused.code, (folder / "t.py").read_text()) == (1, old)
    assert "error: the reply holds the control token <|im_start|> where text was wanted" in refused.stderr
    kept = Path(refused.stderr.strip().rpartition("kept in ")[2])
    assert '\nP = "<|im_start|>"\nx = 2\n' in kept.read_text()
    told = edit("t.py", "--json", "x is 2", reply=vanishing).document["error"]
    assert (told["type"], told["reply"]) == ("BadReply", kept.read_text())
    assert edit("t.py", "--yes", "x is 2", reply=f"{old.replace('1', '2')}```").code == 0  # spelled out it is text
    assert (folder / "t.py").read_text() == old.replace("1", "2")
