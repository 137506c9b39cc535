"""One whole code block or an error; fences inside fences, indentation, and what looks wrong about the new text."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.code_block import code_block, fence_for
from specllm.app.edit.complaints import complaints, loses_end
from specllm.app.edit.prompts import VARIANTS, Region, edit_prompt, variant_named
from specllm.app.edit.region import region_of_lines, region_of_symbol
from specllm.app.edit.reply import lines_of_reply
from specllm.app.edit.restore import reindented
from specllm.app.text_file import split_lines
from specllm.errors import BadReply, ConfigError


@pytest.mark.parametrize(
    ("reply", "lines"),
    [
        ("```python\nx = 1\n```", ["x = 1"]),
        ("```\nx\n\n```\n", ["x", ""]),
        ("Here it is:\n\n```py\nx\n```\n\nThat is all.", ["x"]),
        ("```\n```", []),
        ("```python\r\nx\r\n```\r\n", ["x"]),
        ("````markdown\n```sh\nls\n```\n````", ["```sh", "ls", "```"]),
        ("```markdown\n# A\n```sh\nls\n```\nend\n```", ["# A", "```sh", "ls", "```", "end"]),  # nested, the same length
        ("```md\n````sh\n```\n````\n```", ["````sh", "```", "````"]),
        ("````md\nx\n```", ["x"]),  # closed with less than it was opened with, as small models do
        ("````md\n```\nls\n```\n\n```\n\n", ["```", "ls", "```", ""]),
        ("````md\n```sh\nls\n```\nx\n```", ["```sh", "ls", "```", "x"]),
        ("````md\n```\n```py\n```\nx\n```", ["```", "```py", "```", "x"]),
        ("````\n```", []),
        ("```\nx\n   ```  ", ["x"]),
        ("```\n    ```\n```", ["    ```"]),  # deep enough to be text
        ("```\nx = '```'\n```", ["x = '```'"]),
        ("```\n``` `a`\n```", ["``` `a`"]),  # inline code, no fence
    ],
)  # fmt: skip
def test_the_one_block_is_found(reply: str, lines: list[str]) -> None:
    assert lines_of_reply(reply) == lines


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("", "no code block"),
        ("x = 1", "no code block"),
        ("```python\nx = 1\n", "does not end"),
        ("````\nx\n```\nmore", "does not end"),
        ("````md\n# A\n```sh\nls\n```", "does not end"),  # the last fence ends a block of the text
        ("````md\n```\nls\n```", "does not end"),
        ("````md\n`````\nls\n```", "does not end"),
        ("````md\nls\n```sh", "does not end"),
        ("````", "does not end"),
        ("```md\n```sh\nls\n```", "does not end"),  # stopped at a fence that belongs to the text
        ("```\na\n```\nand\n```\nb\n```", "2 code blocks"),
        ("```", "does not end"),
    ],
)
def test_anything_else_is_refused(reply: str, message: str) -> None:
    with pytest.raises(BadReply, match=message) as raised:
        lines_of_reply(reply)
    assert raised.value.hint


LINE = st.text(alphabet="ab `~\t", max_size=6) | st.sampled_from(["```", "```sh", "````", "`````md", "   ```"])


@given(lines=st.lists(LINE, max_size=12), path=st.sampled_from(["a.py", "a.md", "Makefile", "x"]))
def test_the_block_of_a_prompt_reads_back_as_its_text(lines: list[str], path: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    prompt = edit_prompt(variant_named("fence"), path, lines, "Do it.")
    assert lines_of_reply(f"Sure.\n{prompt.prediction}") == (lines or [""])
    (stop,) = prompt.stop
    assert stop not in prompt.prediction.removesuffix(stop.strip("\n"))
    assert prompt.prediction.startswith(prompt.answer_start)
    cut = f"{prompt.prediction}\n".removeprefix(prompt.answer_start).partition(stop)[0]
    assert lines_of_reply(prompt.reply(cut, is_stopped=True)) == (lines or [""])
    assert split_lines(text)[0] == lines


def test_a_stop_in_a_block_inside_the_new_text_is_no_end() -> None:
    prompt = edit_prompt(variant_named("fence"), "a.py", ["x"], "Add an example.")
    with pytest.raises(BadReply, match="does not end"):
        lines_of_reply(prompt.reply('"""\n```sh\nls', is_stopped=True))


def test_fences_are_longer_than_those_of_file_and_instruction() -> None:
    assert fence_for("a\n   ````sh\nb") == "`````"
    assert fence_for('"""\n    ```\n    x = 1\n    ```\n"""') == "```"  # an example in a docstring is no fence
    assert edit_prompt(variant_named("fence"), "a.py", ["```"], "x").answer_start == "````python\n"
    assert edit_prompt(variant_named("fence"), "a.py", ["x"], "Add ````md").answer_start == "`````python\n"
    assert edit_prompt(variant_named("fence"), "README.md", ["x"], "y").answer_start == "````markdown\n"


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_puts_the_instruction_behind_the_text(name: str) -> None:
    lines = [f"line {{{n}}}" for n in range(200)]
    for region in (None, Region(100, 102)):
        prompt = edit_prompt(
            VARIANTS[name], "a/b.js", lines, "Use {const}.\n", region=region, contexts=[("c.md", "# C\n")]
        )
        assert prompt.prompt.startswith("This is the file c.md, for reference:\n\n```markdown\n# C\n```\n\n")
        assert prompt.prompt.index(prompt.prediction) < prompt.prompt.index("Use {const}.")
        assert "Use {const}.\n\n" in prompt.prompt
        assert ("line {99}" in prompt.prediction) == (region is None)
        assert "line {100}\nline {101}\n" in prompt.prediction
        assert ("line {50}" in prompt.prompt) == (region is None)
        assert ("101 to 102" in prompt.prompt) == (region is not None)
        assert "fenced" not in prompt.prompt


def test_an_unknown_variant_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no prompt variant 'x'"):
        variant_named("x")


# Regions


@pytest.mark.parametrize(
    ("text", "region"),
    [("2:3", (1, 3)), ("1:10", (0, 10)), ("10", (9, 10)), ("9:", (8, 10)), (":2", (0, 2)), (" 1:1 ", (0, 1))],
)
def test_lines_are_counted_from_one(text: str, region: tuple[int, int]) -> None:
    assert region_of_lines(text, 10) == Region(*region)


@pytest.mark.parametrize("text", ["", ":", "0:3", "3:2", "5:11", "a:b", "1-3", "-1:2", "1:2:3", "11"])
def test_lines_that_are_not_there_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        region_of_lines(text, 10)
    with pytest.raises(ConfigError, match="no lines"):
        region_of_lines("1:1", 0) if text else region_of_lines("x", 0)


SOURCE = '''\
"""Text."""
LIMIT: int = 3

@first
@second(
    1)
class A:
    """A."""
    def run(self):
        def inner(): pass
        return inner

    @property
    def size(self): return 1
    @size.setter
    def size(self, value): ...

async def run():
    pass

if LIMIT:
    def chosen(): return 1
else:
    def chosen(): return 2

def last():
    return """
    x"""'''


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("A", (4, 16)), ("A.run", (9, 11)), ("run", (18, 19)), ("inner", (10, 10)), ("A.run.inner", (10, 10)),
        ("last", (26, 28)), ("LIMIT", (2, 2)),
    ],
)  # fmt: skip
def test_a_symbol_has_its_decorators_and_its_body(name: str, region: tuple[int, int]) -> None:
    found = region_of_symbol(PurePath("a.py"), SOURCE.split("\n"), name)
    assert (found.first + 1, found.last) == region


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("size", r"2 of size: A\.size \(lines 13:14\), A\.size \(lines 15:16\)", "--lines"),
        ("chosen", r"2 of chosen: chosen \(lines 22:22\)", "--lines"),
        ("inne", "has no inne", "did you mean A.run.inner"),
        ("zzz", "has no zzz", "--lines"),
    ],
)
def test_a_symbol_that_is_not_one_place_is_refused(name: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        region_of_symbol(PurePath("a.py"), SOURCE.split("\n"), name)
    assert hint in raised.value.hint


def test_symbols_need_a_python_file_that_parses() -> None:
    with pytest.raises(ConfigError, match="Python files only"):
        region_of_symbol(PurePath("a.js"), [], "x")
    with pytest.raises(ConfigError, match="does not parse: line 1"):
        region_of_symbol(PurePath("a.py"), ["def ("], "x")
    with pytest.raises(ConfigError, match="does not parse"):
        region_of_symbol(PurePath("a.py"), ["(" * 5000], "x")


def test_a_region_gets_its_indentation_back() -> None:
    old = ["    def f(self):", "", "        return 1"]
    assert reindented(old, ["def f(self):", "", "    return 2"]) == ["    def f(self):", "", "        return 2"]
    assert reindented(old, ["    def f(self):"]) == ["    def f(self):"]
    assert reindented(["x"], ["  y"]) == ["  y"]
    assert reindented(["\tx"], ["y"]) == ["\ty"]
    assert reindented(["    x"], []) == []
    assert reindented(old, ["", "def f(self):", "        return 2"]) == ["", "    def f(self):", "        return 2"]
    a_string_inside = ['    x = """', "text", '"""']
    assert reindented(["    x = 1"], a_string_inside) == a_string_inside


# Warnings


@pytest.mark.parametrize(
    ("old", "new", "is_lost"),
    [
        (["a", "b", "}"], ["a", "b", "}"], False),
        (["a", "b", "}"], ["a", "b"], True),
        (["a", "b", "}", ""], ["a", "c", "}", "d"], False),
        (["f() {", "x", "}"], ["/** {", "f() {", "/**"], True),
        (["    return a - b"], ["    return a + b"], False),  # changed, and not lost
        (["def f():", "  return 1"], ["def f():", '  """Doc'], True),
        (["x", "total = 1"], ["y", "total = 2", "more"], False),
        (["}", "x", "b", "}"], ["}", "x"], True),
        ([], ["x"], False),
        (["", " "], ["x"], False),
        (["x"], [], True),
    ],
)
def test_a_lost_end_is_seen(old: list[str], new: list[str], is_lost: bool) -> None:
    assert loses_end(old, new) is is_lost


@pytest.mark.parametrize(
    ("path", "old", "new", "found"),
    [
        ("a.py", "x = 1\n", "x = = 1\n", ["does not parse: line 1"]),
        ("a.py", "x = = 1\n", "x = = 2\n", []),  # it did not before
        ("a.py", "", "x = (\n", ["does not parse"]),
        ("a.py", "x = '\\d'\n", "x = '\\e'\n", []),
        ("a.json", "{}", '{"a": 1,}', ["does not parse: line 1"]),
        ("a.toml", "a = 1", "a = ", ["does not parse"]),
        ("a.yaml", "a: 1", "a: [1", ["does not parse"]),
        ("a.yml", "a: !Ref x", "a: !Ref y", []),
        ("a.txt", "a", "(", []),
        ("a.py", "a = 1\nb = 2\n", "a = 1\n# ... rest of the code ...\n", ["line 2 may stand for text"]),
        ("a.js", "a\nb\n", "a\n// remaining methods unchanged...\n", ["line 2 may stand for text"]),
        ("a.py", "# ... the rest is easy\nb = 1\n", "# ... the rest is easy\nb = 2\n", []),
        ("a.pyi", "def f(): ...\n", "def f(): ...\ndef g(): ...\n", []),
        ("a.txt", "a\x1b\n", "b\x1b\n", []),
        ("a.txt", "a\n", "b\0\n", ["control character U+0000"]),
        ("a.txt", "1\n2\n3\n4\n", "1\n2\n", ["has 2 lines instead of 4"]),
    ],
)
def test_what_looks_wrong_is_said(path: str, old: str, new: str, found: list[str]) -> None:
    said = complaints(PurePath(path), old, new)
    assert len(said) == len(found)
    assert all(part in one.text for part, one in zip(found, said, strict=True))


def test_code_block_of_nothing_is_a_block() -> None:
    assert code_block("a.py", "") == "```python\n\n```"


def test_a_huge_line_beside_a_region_is_not_shown() -> None:
    """Minified code: no context holds it, and whoever edits the line beside it can do so."""
    lines = ["first", "x" * 2_000_000, "second", "third", "y" * 2_000_000, "last"]
    prompt = edit_prompt(variant_named("careful"), "a.js", lines, "Do it.", region=Region(3, 4)).prompt
    assert len(prompt) < 2000
    assert "lines 3 to 4 of 6 of the file" in prompt
    assert "second\nthird\n" in prompt
