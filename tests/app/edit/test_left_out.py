"""A remark in the place of deleted lines is found wherever it stands; a new comment beside other changes is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.edit.left_out import left_out

SAID = [
    "Rest of the existing content remains unchanged", "... existing code ...", "keep everything else as is", "other methods",
    "Rest of the class is the same", "existing code", "rest of the code unchanged", "...", "…", "[... rest of file ...]",
    "(unchanged)", "The remaining functions stay as they are", "All other settings are unchanged", "No changes below this line",
    "Previous code remains the same", "Your existing code here", "same as before", "Continue with the rest of the function",
    "code omitted for brevity", "... rest of calculate_total ...", "Add the rest of your code here", "snip",
    "Other existing routes", "Keep the existing imports", "rest of the Parser class unchanged", "... (lines 20-40 unchanged) ...",
]  # fmt: skip
MARKS = [
    "# {}",
    "// {}",
    "/* {} */",
    "<!-- {} -->",
    "{{/* {} */}}",
    "-- {}",
    "; {}",
    "% {}",
    '"""{}"""',
    "REM {}",
    "  # {}",
    " * {}",
]
BARE = [
    "...", "…", "[...]", "{ ... }", "... existing code ...", "[rest of the file unchanged]",
    "(rest of the code remains the same)", "The rest of the content stays the same.", "... rest of code ...",
    '"...": "..."', "pass  # rest of the implementation",
    "<p>...</p>", "def rest(self): ...", "*rest of the text unchanged*", "Everything else remains as it is.",
]  # fmt: skip
REMARKS = st.one_of(
    st.builds(lambda mark, said: mark.format(said), st.sampled_from(MARKS), st.sampled_from(SAID)),
    st.sampled_from(BARE),
)


@given(
    n=st.integers(10, 40),
    place=st.floats(0, 1),
    share=st.floats(0.2, 0.8),
    remark=REMARKS,
    has_blanks=st.booleans(),
    is_changed_beside=st.booleans(),
)
def test_a_remark_in_the_place_of_lines_is_found(n, place, share, remark, has_blanks, is_changed_beside) -> None:
    old = [
        line for i in range(n) for line in (f"    x{i} = f({i * 7919})", *([""] if has_blanks and i % 3 == 0 else []))
    ]
    n_gone = max(round(len(old) * share), 3)
    first = round(place * (len(old) - n_gone))
    new = [*old[:first], remark, *old[first + n_gone :]]
    if is_changed_beside and first + 1 < len(new):
        new[first + 1] = "    y = 1"
    assert left_out(old, new) == first
    assert left_out(old, old) is None
    assert left_out(new, [*new, "x = 1"]) is None  # it was there


CODE = [
    "def f(a):",
    "    b = g(a)",
    "    if b:",
    "        return b",
    "    c = h(a)",
    "    return c",
    "",
    "def k():",
    "    return 1",
]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CODE, [*CODE[:1], "    # keep the cache warm", *CODE[1:]]),
        (CODE, [*CODE[:1], "    # all other values are rejected", "    check(a)", *CODE[1:]]),
        (CODE, [*CODE, "", "# Other methods", "def m():", "    return 2"]),
        (CODE, [*CODE[:1], "    # keep the existing value", "    b = g(a, 1)", *CODE[2:]]),
        (["# Old remark about f", *CODE], ["# Same as before", *CODE]),  # a comment for a comment
        (CODE, [*CODE[:4], "    # the rest is up to h", "    return h(a)", *CODE[6:]]),
        (CODE, [*CODE[:2], "    # otherwise the remaining one", *CODE[4:]]),
        (CODE, [*CODE[:1], "    return g(a) or h(a)  # whichever", *CODE[6:]]),
        (CODE, [*CODE[:7], "def k():", "    ...  # abstract"]),
        (["class A:", "    x: int", "    def f(self): ..."], ["class A:", "    def f(self) -> int: ...", "    def g(self): ..."]),
        (["const a = {", "  x: 1,", "  y: 2,", "}"], ["const a = {", "  ...rest,", "}"]),
        (["f(a);", "g(b);", "h(c);"], ["f(...rest);"]),
        (["if a:", "    x()", "elif b:", "    y()"], ["if a:", "    x()", "else:", "    z()"]),
        (["All other values remain unchanged.", "x"], ["The remaining values stay the same.", "x"]),
        (["int f(int a, int b);", "int g(void);"], ["int f(const char *, ...);", "int g(void);"]),
        (["a", "b", "c"], ["a", "Loading other files", "c"]),
        (["from a import b", "from c import d", "import e"], ["from c import d"]),
        (["x: 1", "other: 2", "rest: 3"], ["other: 3", "rest: 3"]),
        ([], ["# rest of the code"]),
        (["x"], []),
    ],
)  # fmt: skip
def test_a_comment_that_stands_for_nothing_is_none(old: list[str], new: list[str]) -> None:
    assert left_out(old, new) is None


def test_what_was_asked_for_is_no_remark() -> None:
    assert left_out(CODE, [*CODE[:1], "    ...", *CODE[6:]]) == 1
    assert left_out(CODE, [*CODE[:1], "    ...", *CODE[6:]], {"stubs"}) is None
    assert left_out(CODE, [*CODE[:1], "    # TODO", *CODE[6:]]) == 1  # five lines became that
    assert left_out(CODE, [*CODE[:1], "    # TODO", *CODE[6:]], {"less"}) is None
    assert left_out(CODE, [*CODE[:1], "    # ... rest unchanged", *CODE[6:]], {"less", "stubs"}) == 1


def test_a_remark_is_found_where_a_brace_is_equal_by_chance() -> None:
    old = ["class A {", "  a() {", "    return 1", "  }", "  b() {", "    return 2", "  }", "}"]
    assert left_out(old, ["class A {", "  // other methods", "  c() {", "    return 3", "  }", "}"]) == 1
    much = [f"    line{n}()" for n in range(30)]
    assert left_out(old, ["class A {", "  // other methods remain the same", "  c() {", *much, "  }", "}"]) == 1
