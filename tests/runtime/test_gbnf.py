"""GBNF means here what it means to llama.cpp: the same grammars and texts in front of both engines."""

from __future__ import annotations

import contextlib
import ctypes
import random

import llama_cpp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from specllm.config import StructureConfig
from specllm.decoding.constraint import is_allowed
from specllm.errors import ConfigError
from specllm.runtime.grammar import GrammarConstraint, check_structure
from specllm.runtime.lexemes import lark_from_gbnf
from specllm.runtime.vocab import Vocab, detokenize
from tests import synthetic


class Theirs:
    """llama.cpp's own engine, fed byte by byte."""

    def __init__(self, grammar: str, vocab: Vocab) -> None:
        self.sampler = llama_cpp.llama_sampler_init_grammar(vocab.handle, grammar.encode(), b"root")

    def read(self, text: str) -> tuple[int, bool]:
        """How many bytes of it are allowed one after another, and whether the answer may end behind them."""
        sampler, n = llama_cpp.llama_sampler_clone(self.sampler), 0
        for token in (synthetic.FIRST_BYTE + byte for byte in text.encode()):
            if not self._allows(sampler, token):
                break
            llama_cpp.llama_sampler_accept(sampler, token)
            n += 1
        is_complete = self._allows(sampler, synthetic.EOS)
        llama_cpp.llama_sampler_free(sampler)
        return n, is_complete

    def _allows(self, sampler: int, token: int) -> bool:
        data = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 0.0, 0.0))
        array = llama_cpp.llama_token_data_array(data=data, size=1, selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        return data[0].logit == 0.0

    def close(self) -> None:
        llama_cpp.llama_sampler_free(self.sampler)


class Ours:
    def __init__(self, grammar: str, vocab: Vocab) -> None:
        self.constraint = GrammarConstraint(StructureConfig(kind="grammar", text=grammar), vocab)

    def read(self, text: str) -> tuple[int, bool]:
        tokens = [synthetic.FIRST_BYTE + byte for byte in text.encode()]
        n = self.constraint.n_allowed([], tokens)
        return n, self.constraint.is_complete(tokens[:n])


# Every construct of llama.cpp's `grammars/README.md`, with texts that fit, or begin to. Where its own grammars do something that
# needs care, one here does the same.
CONSTRUCTS = {
    "text and rules": (
        'root ::= "1. " move " " move "\\n"\nmove ::= "e4" | "O-O" "-O"?',
        ["1. e4 O-O-O\n", "1. O-O e4\n", "1. e5"]),
    "hash in a text": ('root ::= "#" [#]+ "a#b" # a comment with "quotes"\n# another', ["###a#b", "#a#b"]),
    "alternatives on lines of their own": (
        'root ::= "a" |\n  "b"\n  | "c" # more\n\n  # still\n  | "d"\nx ::= "e"',
        ["a", "b", "c", "d", "e"]),
    "parentheses over lines": ('root ::= (\n  # first\n  "a" x\n\n  ("," x)*\n)\nx ::= "b"', ["ab,b", "ab,", "a"]),
    "escapes": (r'root ::= "\x61\u00e9\U0001F600\n\t\r\\\"\[\]"', ['aé😀\n\t\r\\"[]', "ae"]),
    "escapes in a class": (r'root ::= [\x61-\x63\u65e5\n\]\[\\\-]+', ["abc日\n][\\-", "d", "a^"]),
    "ranges": ("root ::= [a-c-] [-x] [x^] [+*/-]", ["a-^-", "--x+", "bxx/", "d"]),
    "everything but": ('root ::= [^a-c"\\\\]+ [^^] "."', ['xyé日"', "dd^.", "dd.."]),
    "any character": ('root ::= . "a" .*', ["\naé\n", "日a", "é"]),
    "repetitions": (
        'root ::= "a"{2} "b"{1,} "c"{0,2} "d"{1,2} "e"* "f"+ "g"?',
        ["aabbccddeefg", "aabdf", "abd", "aabcccdf"]),
    "a text is repeated whole": ('root ::= "ab"{2} "cd"? "é日"*', ["ababcdé日é日", "abb", "ababé日é"]),
    "repeated repetitions": ('root ::= ("a"? "b")+? "c"{2}*', ["abbcccc", "ccc", "a"]),
    "blanks in a repetition": ('root ::= "a"{ 1 , 2 } "b" {2}', ["abb", "aabb", "aaa"]),
    "names": ("root ::= a-1 aB 7x\na-1 ::= \"a\"\naB ::= \"b\"\n7x ::= \"c\"", ["abc"]),
    "empty alternatives": ('root ::= ws "a" ws\nws ::= | " " | "\\n" [ \\t]{0,3}', ["a", " a\n\t", "\n   a ", "\n    a"]),
    "empty texts": ('root ::= "" "a" ( | "b" "")', ["a", "ab", ""]),
    "nothing": ('root ::= [] "a" [^]', ["a", "b"]),
    "rule on the next line": ('root ::=\n  "a"\n\n\nx ::= "b"', ["a"]),
    "carriage returns": ('root ::= x\r\nx ::= "a"\r\n', ["a"]),
    "the last definition": ('root ::= "a"\nroot ::= "b"', ["a", "b"]),
    "recursion": ('root ::= "(" root ")" | "[" [^\\]]* "]"', ["(([a]))", "[a))", "()"]),
    # In these the longest match is not the right one.
    "blanks before a line break": (
        'root ::= (x "=" ws x "\\n")+\nx ::= [a-z] [a-z0-9_]* ws | "(" ws x ")" ws\nws ::= [ \\t\\n]*',
        ["a=b\n", "a =(b)\n\n", "a1 \n=b \n\na=b\n"]),
    "end of a comment": (
        'root ::= "/*" ( [^*] | ("*" [^/]) )* "*/" x?\nx ::= "(" x? ")"',
        ["/*a**b*/", "/***/()", "/*a**/"]),
    "a shorter operator": (
        'root ::= x\nx ::= ("=" | "==") "=" x | ("in" "ner" | "inner" "x" | "i") x | "."',
        ["===.", "==.", "innerx.", "inner.", "ii."]),
    "a keyword that is a name": (
        'root ::= x+\nx ::= "if" x "then" x | [a-z]+ " "',
        ["iff thena ", "if if thena b ", "then "]),
    "digits that end in a digit": ('root ::= ([0-9]+ "0" x)\nx ::= "." root?', ["10.", "1000.100.", "0."]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_each_construct_allows_what_it_allows_in_llama_cpp(vocab, name):
    grammar, texts = CONSTRUCTS[name]
    ours = Ours(grammar, vocab)
    if "\n  |" in grammar:  # which only we allow: there the line break comes behind the bar
        grammar = grammar.replace('\n  | "c" # more\n\n  # still\n  |', ' | "c" |')
    theirs = Theirs(grammar, vocab)
    read = {text: ours.read(text) for text in texts}
    assert read == {text: theirs.read(text) for text in texts}
    assert any(n for n, _ in read.values())
    theirs.close()


ATOMS = ['"a"', '"ab"', '"b"', '""', "[ab]", "[^a]", "[a-b]", ".", '"é"', '"\\x61"', '"\\n"', "[\\n\\x41-b]", '"#"', "[^]", "[]",
         '"=="', '"="', "[a-]", "[-a]", "[^^]", "[^b=]", "[é日]"]  # fmt: skip
NAMES = ["root", "x", "y-1", "Zed"]
MARKS = ["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "{ 1 , 3 }"]


@st.composite
def grammars(draw: st.DrawFn) -> str:
    """Small grammars whose rules refer to later ones, or to any behind a character and in a place that may be left out."""

    def item(level: int, depth: int) -> str:
        kind = draw(st.sampled_from(["atom", "atom", "later", "again", "group"]))
        mark = draw(st.sampled_from(MARKS))
        if kind == "later" and level + 1 < len(NAMES):
            return draw(st.sampled_from(NAMES[level + 1 :])) + mark
        if kind == "again":
            return f'("b" {draw(st.sampled_from(NAMES))})?'
        if kind == "group" and depth:
            return (
                f"({draw(st.sampled_from([' ', chr(10), ' # c' + chr(10)]))}{alternatives(level, depth - 1)}\n){mark}"
            )
        atom = draw(st.sampled_from(ATOMS))
        return atom if atom in ('""', "[]", "[^]") else atom + mark

    def alternatives(level: int, depth: int) -> str:
        sequences = draw(st.lists(st.lists(st.just(0), max_size=3), min_size=1, max_size=3))
        between = draw(st.sampled_from([" | ", "|", " |\n "]))
        return between.join(" ".join(item(level, depth) for _ in one) for one in sequences)

    return "\n".join(f"{name} ::= {alternatives(level, 2)}" for level, name in enumerate(NAMES)) + "\n"


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(grammar=grammars(), texts=st.lists(st.text(alphabet="ab=\n#é日-^A", max_size=7), min_size=8, max_size=8))
def test_any_small_grammar_allows_every_text_as_far_as_llama_cpp_does(vocab, grammar, texts):
    theirs = Theirs(grammar, vocab)
    if not theirs.sampler:  # left recursion through something that may be empty
        return
    try:
        ours = Ours(grammar, vocab)
    except ConfigError:
        assert not any(theirs.read(text)[0] for text in texts)  # nothing but the empty text
        return
    begun = [text[:i] for text in texts for i in range(len(text) + 1)]
    assert {text: ours.read(text) for text in begun} == {text: theirs.read(text) for text in begun}
    theirs.close()


REFUSED = {
    "no root": ('start-here ::= "a"', "no rule `root`"),
    "undefined rule": ('root ::= "a"\nx ::= (\n nope )', "line 3: the rule 'nope' is not defined"),
    "open text": ('root ::= "a\n', "ends within"),
    "open class": ("root ::= [a", "ends within"),
    "open escape": ('root ::= "a\\', "no escape"),
    "unknown escape": (r'root ::= "\q"', r"line 1: there is no escape \\q"),
    "short escape": (r'root ::= "\x6"', "2 hexadecimal digits"),
    "open parenthesis": ('root ::= ("a" | (\n"b")\n', r"line 3: Expected '\)'"),
    "extra parenthesis": ('root ::= "a")', r"unexpected '\)'"),
    "nothing to repeat": ("root ::= *", "nothing to repeat"),
    "nothing to repeat in a group": ('root ::= "a" (+)', "nothing to repeat"),
    "empty text repeated": ('root ::= "a" ""*', "nothing to repeat"),
    "turned bounds": ('root ::= "a"{3,2}', "at least 3 repetitions and at most 2"),
    "too many": ('root ::= "a"{99999}', "99999 repetitions; 2000 are allowed"),
    "no number": ('root ::= "a"{,2}', "Expected a number"),
    "open token": ("root ::= <abc", "a token"),
    "no rule": ("root: nope", "::="),
    "5,000 parentheses": ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested deeper than"),
    "endless": ('root ::= "a" root', "no finite text"),
    "endless together": ('root ::= x | y\nx ::= "a" y\ny ::= [b]+ (x | x)', "no finite text"),
    "endless by number": ('root ::= "a" root{2,3}', "no finite text"),
    "no character": (r'root ::= "\ud800" | [^\x01-\U0010ffff]', "no finite text"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_gbnf_is_refused_with_its_line(name):
    grammar, says = REFUSED[name]
    with pytest.raises(ConfigError, match=says) as error:
        check_structure(StructureConfig(kind="grammar", text=grammar))
    assert error.value.hint
    assert len(error.value.message) < 500


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet='ro:=()[]{}|*+?".-^\\xuU09af,#<>!\n _é', max_size=40))
def test_any_text_is_a_grammar_or_refused(text):
    with contextlib.suppress(ValueError):
        assert lark_from_gbnf(f"root ::= {text}")


def test_a_branch_that_never_ends_is_left_out(vocab):
    ours = Ours('root ::= "a" | "b" x\nx ::= "c" x', vocab)
    assert [ours.read(text) for text in ("a", "bc")] == [(1, True), (0, False)]


def test_tokens_are_matched_by_text_and_by_number_and_excluded(vocab):
    """What is not excluded is any token but an end."""
    a, x = vocab.tokenize("ax", adds_special=False, parses_special=False)
    ours = Ours(f'root ::= <s> [a-c]+ <[{synthetic.IM_START}]> !<[{a}]>{{2}} "a"?', vocab).constraint
    assert ours.n_allowed([], [synthetic.BOS]) == 1
    assert ours.n_allowed([], [a]) == 0
    begun = [synthetic.BOS, a, synthetic.IM_START]
    assert ours.n_allowed([], begun) == 3
    assert ours.n_allowed(begun, [x, x, a]) == 3
    assert ours.n_allowed(begun, [a]) == 0
    assert not any(is_allowed(ours.mask(begun), end) for end in vocab.eog)


def test_a_token_that_the_vocabulary_does_not_have_is_refused(vocab):
    structure = StructureConfig(kind="grammar", text="root ::= <never there> .*")
    check_structure(structure)  # no vocabulary is at hand yet
    with pytest.raises(ConfigError, match="<never there> is no token"):
        GrammarConstraint(structure, vocab)


def test_what_is_written_stays_lexemes_where_that_changes_nothing():
    """Or a large vocabulary would be slow: a lexeme for each character only where the longest match is wrong."""
    lark = lark_from_gbnf('root ::= "\\"" [^"]* "\\"" ws ("," root)?\nws ::= [ \\t]*')
    assert len([line for line in lark.splitlines() if line.startswith("r")]) <= 3
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark)) == ""


def test_any_walk_through_a_large_grammar_is_one_of_llama_cpp(vocab):
    grammar = CONSTRUCTS["blanks before a line break"][0]
    ours, theirs = Ours(grammar, vocab).constraint, Theirs(grammar, vocab)
    choose = random.Random(1)
    for _ in range(20):
        answer: list[int] = []
        while len(answer) < 30:
            mask = ours.mask(answer)
            allowed = {token for token in range(vocab.n_tokens) if is_allowed(mask, token)}
            answer.append(choose.choice(sorted(allowed - vocab.eog)))
        text = detokenize(vocab, answer)
        assert theirs.read(text)[0] == len(text.encode())
    theirs.close()
