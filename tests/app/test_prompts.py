"""The prompts a benchmark runs: our own mix keeps its promises, every format is read, bad files are named with the line."""

from __future__ import annotations

import ast
import json
import re
import sqlite3
import tomllib
from collections import Counter
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.prompts.reading import BenchPrompt, choose, code_block, edit_prompt, read_prompts
from specllm.errors import ConfigError

CATEGORIES = ("chat", "code", "edit", "extraction", "summarization", "translation", "reasoning")
ROWS = [
    json.loads(line)
    for line in (resources.files("specllm.app.prompts") / "mix.jsonl").read_text(encoding="utf-8").splitlines()
]
EDITS = [row for row in ROWS if row["category"] == "edit"]
EDITED_FILES = [
    pytest.param(row["path"], row[version], id=f"{row['id']}-{version}")
    for row in EDITS
    for version in ("before", "expected")
    if version in row
]


@pytest.fixture
def read(tmp_path):
    """Reads rows or raw bytes through a file."""

    def read(*rows: object) -> list[BenchPrompt]:
        file = tmp_path / "prompts.jsonl"
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        file.write_bytes(b"\n".join(lines))
        return read_prompts(file)

    return read


# Our own mix


def test_the_mix_has_eight_prompts_of_each_category():
    counts = Counter(prompt.category for prompt in read_prompts(None))
    assert set(counts) == set(CATEGORIES)
    assert min(counts.values()) >= 8


def test_ids_and_texts_of_the_mix_are_unique():
    prompts = read_prompts(None)
    assert [prompt.id for prompt in prompts] == [row["id"] for row in ROWS]
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.prompt for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(
    "prompt", [p for p in read_prompts(None) if p.category in ("summarization", "extraction")], ids=lambda p: p.id
)
def test_texts_to_work_on_are_of_a_natural_length(prompt):
    assert 150 <= len(prompt.prompt.split()) <= 450


def test_the_edits_are_mostly_python_and_cover_other_kinds_of_files():
    suffixes = Counter(Path(row["path"]).suffix for row in EDITS)
    assert suffixes[".py"] > len(EDITS) / 2
    assert {".js", ".toml", ".sql", ".md", ".html"} <= set(suffixes)


@pytest.mark.parametrize("row", EDITS, ids=lambda row: row["id"])
def test_files_to_edit_have_60_to_200_lines(row):
    assert 60 <= len(row["before"].splitlines()) <= 200
    assert row["before"].endswith("\n")


@pytest.mark.parametrize(("path", "text"), EDITED_FILES)
def test_files_to_edit_are_valid_before_and_after(path, text):
    suffix = Path(path).suffix
    if suffix == ".py":
        ast.parse(text)
    elif suffix == ".toml":
        tomllib.loads(text)
    elif suffix == ".sql":
        database = sqlite3.connect(":memory:")
        database.executescript(text)
        database.close()
    elif suffix == ".html":
        assert open_tags(text) == []
    elif suffix == ".md":
        assert text.count("```") % 2 == 0
    else:
        assert suffix == ".js"
        assert all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))


def test_expected_files_keep_most_of_the_old_one_but_not_all():
    expected = [row for row in EDITS if "expected" in row]
    assert len(expected) >= 6
    for row in expected:
        before, after = row["before"].splitlines(), row["expected"].splitlines()
        assert before != after
        assert len(set(before) & set(after)) > len(set(before)) / 2


def open_tags(text: str) -> list[str]:
    """The tags that are never closed; raises if they are closed in the wrong order."""

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "link"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Tags()
    parser.feed(text)
    parser.close()
    return parser.open


# Formats


def test_our_own_rows_are_read_with_all_they_say(read):
    row = {"id": "a", "category": "chat", "prompt": "Hi", "expected": "Hey", "prediction": "Hello", "system": "Brief!"}
    assert read(row) == [BenchPrompt(**row)]


def test_a_prompt_alone_is_enough(read):
    assert read(b"", {"prompt": "Hi"}) == [BenchPrompt(id="line-2", category="other", prompt="Hi")]


def test_the_first_turn_of_a_spec_bench_question_is_taken(read):
    row = {"question_id": 81, "category": "math_reasoning", "turns": ["First?", "Second?"], "reference": ["1"]}
    assert read(row) == [BenchPrompt(id="81", category="math_reasoning", prompt="First?")]


def test_a_humaneval_row_becomes_a_request_to_complete_the_function(read):
    code = 'def double(n):\n    """Twice as much."""\n'
    (prompt,) = read({"task_id": "HumanEval/7", "prompt": code, "canonical_solution": "    return 2 * n\n"})
    assert (prompt.id, prompt.category, prompt.expected) == ("HumanEval/7", "humaneval", None)
    assert f"```python\n{code}```" in prompt.prompt


def test_an_edit_asks_for_the_file_and_expects_it_in_a_code_block(read):
    row = {"id": "e", "path": "a/b.py", "before": "x = 1\n", "instruction": "Make x 2."}
    with_after, with_expected, without = read({**row, "after": "x = 2\n"}, {**row, "expected": "x = 2"}, row)
    assert with_after.prompt == edit_prompt("a/b.py", "x = 1\n", "Make x 2.")
    assert with_after.expected == with_expected.expected == "```python\nx = 2\n```"
    assert with_after.prediction == "```python\nx = 1\n```"
    assert without.expected is None
    assert with_after.category == "edit"


def test_a_fix_without_a_path_is_a_python_function(read):
    (prompt,) = read({"id": "Python/0", "before": "x = 1\n", "instruction": "Fix x.", "after": "x = 2\n", "test": "-"})
    assert prompt.category == "fix"
    assert prompt.expected == "```python\nx = 2\n```"


def test_byte_order_mark_blank_lines_and_windows_line_ends_do_no_harm(read):
    assert [
        p.prompt for p in read(b'\xef\xbb\xbf{"prompt": "A"}\r', b"  \r", b'{"prompt": "B\xe2\x80\xa8C"}\r', b"")
    ] == [
        "A",
        "B\u2028C",
    ]


def test_repeated_ids_get_a_number(read):
    rows = [{"id": name, "prompt": "Hi"} for name in ("a", "a", "a-2", "a", 7, "7")]
    assert [prompt.id for prompt in read(*rows)] == ["a", "a-2", "a-2-2", "a-3", "7", "7-2"]


@given(names=st.lists(st.sampled_from(["a", "a-2", "a-2-2", "a-3", "b"]), min_size=1, max_size=30))
def test_ids_are_always_unique(names, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "ids.jsonl"
    file.write_text("\n".join(json.dumps({"id": name, "prompt": "Hi"}) for name in names), encoding="utf-8")
    ids = [prompt.id for prompt in read_prompts(file)]
    assert len(set(ids)) == len(names)


# The edit prompt


def test_the_edit_prompt_puts_the_instruction_after_the_file():
    prompt = edit_prompt("app.js", "let x;\n", "Use const.\n")
    assert "app.js" in prompt.partition("```")[0]
    assert prompt.index("```javascript\nlet x;\n```") < prompt.index("Use const.")
    assert "complete edited file in one code block" in prompt


def test_a_longer_fence_is_asked_for_only_where_the_file_has_one():
    assert "fenced with ````," in edit_prompt("a.md", "```sh\nls\n```\n", "Add -l.")
    assert "fenced with" not in edit_prompt("a.md", "# A `b`\n", "Add c.")


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("a.py", "python"), ("dir.d/b.YML", "yaml"), ("c.toml", "toml"), ("d.sql", "sql"), ("e.html", "html"),
        ("f.tsx", "tsx"), ("g.zig", "zig"), ("src/Dockerfile", "dockerfile"), ("LICENSE", ""), (".env", ""), ("h.c++", ""),
    ],
)  # fmt: skip
def test_the_block_is_marked_with_the_language_of_the_extension(path, language):
    assert code_block(path, "x\n") == f"```{language}\nx\n```"


@given(text=st.text(alphabet="`a \n", max_size=60))
def test_no_fence_inside_can_close_the_block(text):
    opening, *inside, closing = code_block("a.md", text).split("\n")
    fence = opening.removesuffix("markdown")
    assert closing == fence
    assert set(fence) == {"`"}
    assert len(fence) >= 3
    assert not any(re.match(f" {{0,3}}{fence}", line) for line in inside)
    assert "\n".join([*inside, ""]) == (text if text.endswith("\n") else text + "\n")


# Choosing some


def of(*categories: str) -> list[BenchPrompt]:
    return [BenchPrompt(id=f"{c}{i}", category=c, prompt="Hi") for i, c in enumerate(categories)]


def test_a_limit_is_spread_over_the_categories_in_order_of_appearance():
    prompts = of("b", "b", "b", "a", "a", "c")
    assert [p.id for p in choose(prompts, 4)] == ["b0", "a3", "c5", "b1"]
    assert [p.id for p in choose(prompts, None)] == ["b0", "a3", "c5", "b1", "a4", "b2"]
    assert choose([], 3) == []


@given(categories=st.lists(st.sampled_from("abcd"), max_size=20), limit=st.integers(1, 25))
def test_no_category_is_ahead_of_another_that_has_prompts_left(categories, limit):
    prompts = of(*categories)
    chosen = choose(prompts, limit)
    assert len(chosen) == min(limit, len(prompts))
    assert len({p.id for p in chosen}) == len(chosen)
    assert choose(prompts, limit) == chosen
    available, taken = Counter(categories), Counter(p.category for p in chosen)
    assert all(taken[c] >= min(available[c], max(taken.values()) - 1) for c in available)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="limit is 0"):
        choose(of("a"), 0)


# Bad files

GOOD = {"prompt": "Hi"}


@pytest.mark.parametrize(
    ("row", "problem", "hint"),
    [
        (b'{"prompt": ', ":2: not JSON: Expecting value at column", "one JSON object on each line"),
        (b"Just a question?", ":2: not JSON", "one JSON object on each line"),
        (b'["Hi"]', ":2: a list, not a JSON object", "jq"),
        (b"null", ":2: null, not a JSON object", "jq"),
        (b"9" * 5000, ":2: this JSON is too large", "one JSON object"),
        (b"[" * 200_000, ":2: this JSON is too large", "one JSON object"),
        (b'{"prompt": "caf\xe9"}', ":2: byte 16 is not UTF-8", "iconv"),
        ({"text": "Hi", "label": 3}, ":2: no known kind of prompt (keys: 'text', 'label')", "Spec-Bench"),
        ({"prompt": None}, ":2: no known kind of prompt (keys: 'prompt')", "HumanEval"),
        ({}, ":2: no known kind of prompt (keys: none)", "edits"),
        ({"prompt": 3}, ":2: 'prompt' is a number, not a text", "double quotes"),
        ({"prompt": ["Hi"]}, ":2: 'prompt' is a list, not a text", "double quotes"),
        ({"prompt": " \n"}, ":2: 'prompt' is empty", "give it some text"),
        ({"prompt": "\ud83d"}, ":2: 'prompt' contains half a surrogate pair", "UTF-8"),
        ({"prompt": "Hi", "id": True}, ":2: 'id' is true or false, not a text", "double quotes"),
        ({"prompt": "Hi", "category": {}}, ":2: 'category' is an object, not a text", "double quotes"),
        ({"prompt": "Hi", "system": 1.5}, ":2: 'system' is a number, not a text", "double quotes"),
        ({"question_id": 1, "turns": ["Hi"]}, ":2: 'category' is missing", "Spec-Bench"),
        ({"question_id": 1, "category": "qa", "turns": []}, ":2: 'turns' is an empty list", '"turns": ['),
        ({"question_id": 1, "category": "qa", "turns": "Hi"}, ":2: 'turns' is a text, not a list", '"turns": ['),
        ({"question_id": 1, "category": "qa", "turns": [4]}, ":2: 'turns' is a number, not a text", "double quotes"),
        ({"path": "a.py", "before": "x"}, ":2: 'instruction' is missing", "edits"),
        ({"path": "a.py", "instruction": "x"}, ":2: 'before' is missing", "edits"),
        ({"before": "x", "instruction": "y", "after": []}, ":2: 'after' is an empty list, not a text", "double quotes"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_how_to_mend_it(read, row, problem, hint):
    with pytest.raises(ConfigError, match=re.escape(f"prompts.jsonl{problem}")) as caught:
        read(GOOD, row, GOOD)
    assert hint in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_prompts_is_an_error(read, data):
    with pytest.raises(ConfigError, match="no prompts in it") as caught:
        read(data)
    assert "turns" in caught.value.hint


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match="directory"):
        read_prompts(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "id", "task_id", "question_id", "category", "prompt", "turns", "path", "before", "after", "instruction",
        "expected", "prediction", "system", "other",
    ]
)  # fmt: skip
ALMOST_GOOD = st.dictionaries(KEYS, JSON, max_size=6).map(lambda row: json.dumps(row).encode())


@given(lines=st.lists(st.binary(max_size=30) | ALMOST_GOOD, max_size=3))
def test_garbage_is_read_or_refused_with_a_hint_but_never_crashes(lines, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "garbage.jsonl"
    file.write_bytes(b"\n".join(lines))
    refused: ConfigError | None = None
    prompts: list[BenchPrompt] = []
    try:
        prompts = read_prompts(file)
    except ConfigError as error:
        refused = error
    if refused:
        assert refused.message.startswith(str(file))
        assert refused.hint
    else:
        assert prompts
        for prompt in prompts:
            assert prompt.prompt.encode()
