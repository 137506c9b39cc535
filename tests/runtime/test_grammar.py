"""Grammars on the vocabulary of a tiny real model: what is allowed, what is forced, and what is refused how."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.config import StructureConfig
from specllm.decoding.constraint import is_allowed
from specllm.errors import ConfigError, NothingAllowed
from specllm.runtime.grammar import GrammarConstraint, check_structure
from specllm.runtime.vocab import Vocab, detokenize
from tests import synthetic

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["alpha", "alphabet", "beta"]},
        "tags": {"type": "array", "items": {"enum": ["the thing", "the other"]}, "maxItems": 2},
        "inner": {
            "type": "object", "additionalProperties": False,
            "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "minimum": -5, "maximum": 20}},
        },
        "version": {"const": 3},
    },
    "required": ["name", "kind", "version"],
    "additionalProperties": False,
}  # fmt: skip
LARK = 'start: "def " NAME "()" ("->" NAME)?\nNAME: /[a-z]{1,3}/'
GBNF = 'root ::= "def " name "()" ("->" name)?\nname ::= [a-z] [a-z]? [a-z]?'
DEF = re.compile(r"def [a-z]{1,3}\(\)(->[a-z]{1,3})?")
STRUCTURES = {
    "schema": StructureConfig(kind="json_schema", text=json.dumps(SCHEMA)),
    "regex": StructureConfig(kind="regex", text=r"(ab|[0-9]{2,4}é?)+x"),
    "choice": StructureConfig(kind="choice", choices=("yes", "yes, the other", "nein", 'zu "ß"\n', "日本", "日曜")),
    "lark": StructureConfig(kind="grammar", text=LARK),
    "gbnf": StructureConfig(kind="grammar", text=GBNF),
}


def allowed(constraint: GrammarConstraint, context: Sequence[int]) -> list[int]:
    return np.flatnonzero(np.unpackbits(constraint.mask(context), bitorder="little")).tolist()


def walk(constraint: GrammarConstraint, vocab: Vocab, choose: random.Random, most: int = 300) -> list[int]:
    """Tokens of an answer where every allowed token is as likely; ends where nothing but the end may follow."""
    tokens: list[int] = []
    while len(tokens) < most and not constraint.is_over(tokens):
        token = choose.choice(allowed(constraint, tokens))
        if token in vocab.eog:
            break
        tokens.append(token)
    assert constraint.is_complete(tokens)
    return tokens


def check(name: str, text: str) -> None:
    """Fails unless the text is one of the structure's."""
    structure = STRUCTURES[name]
    if name == "schema":
        document = json.loads(text)
        assert {"name", "kind", "version"} <= document.keys() <= SCHEMA["properties"].keys()
        assert len(document["name"]) <= 6
        assert document["kind"] in SCHEMA["properties"]["kind"]["enum"]
        assert document["version"] == 3
        assert len(document.get("tags", [])) <= 2
        assert set(document.get("tags", [])) <= {"the thing", "the other"}
        inner = document.get("inner", {})
        assert inner.keys() <= {"yes", "n"}
        assert -5 <= inner.get("n", 0) <= 20
    elif name == "regex":
        assert re.fullmatch(structure.text, text)
    elif name == "choice":
        assert text in structure.choices
    else:
        assert DEF.fullmatch(text)


@pytest.mark.parametrize("name", STRUCTURES)
def test_whatever_allowed_tokens_are_taken_the_answer_is_right_and_only_its_end_may_follow(vocab, name):
    constraint = GrammarConstraint(STRUCTURES[name], vocab)
    for seed in range(20):
        constraint.begin(0)
        tokens = walk(constraint, vocab, random.Random(seed))
        check(name, detokenize(vocab, tokens))
        assert set(vocab.eog) <= set(allowed(constraint, tokens))


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_forced_token_is_the_only_one_allowed(vocab, name):
    """So it is accepted whatever the model, and leaves its tokenization alone."""
    constraint = GrammarConstraint(STRUCTURES[name], vocab)
    n_forced = 0
    for seed in range(10):
        constraint.begin(0)
        tokens = walk(constraint, vocab, random.Random(seed))
        for i in range(len(tokens)):
            forced = constraint.forced(tokens[:i])
            n_forced += bool(forced)
            assert list(forced) == tokens[i : i + len(forced)]
            for j, token in enumerate(forced):
                assert allowed(constraint, [*tokens[:i], *forced[:j]]) == [token]
    assert n_forced or name == "regex"


@pytest.mark.parametrize("name", STRUCTURES)
def test_spelled_text_is_what_has_to_follow_however_it_is_split(vocab, name):
    """Every answer goes on with it byte by byte, the forced tokens come first, and all of it is allowed."""
    constraint = GrammarConstraint(STRUCTURES[name], vocab)
    for seed in range(10):
        constraint.begin(0)
        tokens = walk(constraint, vocab, random.Random(seed))
        for i in range(len(tokens) + 1):
            spelled, forced = constraint.spelled(tokens[:i]), constraint.forced(tokens[:i])
            assert spelled[: len(forced)] == forced
            assert constraint.n_allowed(tokens[:i], spelled) == len(spelled)
            rest = b"".join(vocab.piece(token) for token in tokens[i:])
            assert rest.startswith(b"".join(vocab.piece(token) for token in spelled))


def test_keys_punctuation_and_the_rest_of_an_enum_value_are_forced(vocab):
    constraint = GrammarConstraint(STRUCTURES["schema"], vocab)

    def forced_after(text: str) -> str:
        context = vocab.tokenize(text, adds_special=False, parses_special=False)
        return detokenize(vocab, constraint.forced(context))

    assert forced_after("") == '{"name": "'
    assert forced_after('{"name": "a"') == ', "kind": "'
    assert forced_after('{"name": "a", "kind": "b') == 'eta", "'
    assert forced_after('{"name": "a", "kind": "al') == "pha"
    assert forced_after('{"name": "a", "kind": "beta", "v') == 'ersion": 3}'


@pytest.mark.parametrize("name", STRUCTURES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_prompt=st.integers(0, 3))
def test_every_answer_depends_on_the_context_alone(vocab, name, seed, n_prompt):
    """Fault 23: whatever was asked before, drafts that nobody accepted included."""
    choose = random.Random(seed)
    used, prompt = GrammarConstraint(STRUCTURES[name], vocab), [synthetic.EOS] * n_prompt
    walks = [walk(GrammarConstraint(STRUCTURES[name], vocab), vocab, choose) for _ in range(3)]
    walks.append([*walks[0], synthetic.EOS])
    used.begin(n_prompt)
    for _ in range(15):
        tokens, draft = choose.choice(walks), choose.choice(walks)
        tokens = tokens[: choose.randrange(len(tokens) + 1)]
        draft = draft[choose.randrange(len(draft)) :]
        fresh = GrammarConstraint(STRUCTURES[name], vocab)
        assert allowed(used, [*prompt, *tokens]) == allowed(fresh, tokens)
        assert used.forced([*prompt, *tokens]) == fresh.forced(tokens)
        assert used.spelled([*prompt, *tokens]) == fresh.spelled(tokens)
        assert used.guessed([*prompt, *tokens]) == fresh.guessed(tokens)
        assert used.foreseen([*prompt, *tokens]) == fresh.foreseen(tokens)
        assert used.n_allowed([*prompt, *tokens], draft) == fresh.n_allowed(tokens, draft)
        assert used.is_complete([*prompt, *tokens]) == fresh.is_complete(tokens)
        assert used.is_over([*prompt, *tokens]) == fresh.is_over(tokens)


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_draft_is_allowed_up_to_its_first_forbidden_token(vocab, name):
    constraint = GrammarConstraint(STRUCTURES[name], vocab)
    choose = random.Random(3)
    for _ in range(20):
        constraint.begin(0)
        tokens = walk(constraint, vocab, choose)
        start, wrong = choose.randrange(len(tokens)), choose.randrange(len(tokens))
        draft = list(tokens)
        draft[wrong] = choose.randrange(synthetic.N_VOCAB)
        expected = 0
        for i in range(start, len(draft)):
            if draft[i] in vocab.eog or not is_allowed(constraint.mask([*tokens[:start], *draft[start:i]]), draft[i]):
                break
            expected += 1
        assert constraint.n_allowed(tokens[:start], draft[start:]) == expected


def test_parsers_of_one_grammar_follow_different_answers(vocab):
    one = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(SCHEMA)), vocab)
    other, contexts = one.another(), ([0], [0, 0])
    for parser, context in zip((one, other), contexts, strict=True):
        parser.begin(len(context))
    masks = []
    for step in range(12):
        masks = [parser.mask(context) for parser, context in zip((one, other), contexts, strict=True)]
        for mask, context in zip(masks, contexts, strict=True):
            allowed = [token for token in range(vocab.n_tokens) if is_allowed(mask, token)]
            context.append(allowed[(len(context) * 7 + step) % len(allowed)])
    for parser, context in zip((one, other), contexts, strict=True):
        alone = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(SCHEMA)), vocab)
        alone.begin(1 if context is contexts[0] else 2)
        assert (alone.mask(context) == parser.mask(context)).all()
        assert alone.foreseen(context) == parser.foreseen(context)
    assert not np.shares_memory(*masks)


def test_characters_are_whole_although_their_bytes_are_tokens(vocab):
    constraint = GrammarConstraint(StructureConfig(kind="regex", text="[äß日]{3}"), vocab)
    for seed in range(20):
        constraint.begin(0)
        tokens = walk(constraint, vocab, random.Random(seed))
        assert len(tokens) >= 6
        assert re.fullmatch("[äß日]{3}", detokenize(vocab, tokens))


def test_an_end_inside_the_grammar_ends_the_answer_before_it_is_complete(vocab):
    constraint = GrammarConstraint(StructureConfig(kind="grammar", text='start: "a" <|im_end|> "b"'), vocab)
    (a,) = vocab.tokenize("a", adds_special=False, parses_special=False)
    assert allowed(constraint, [a]) == [synthetic.IM_END]
    assert constraint.spelled([a, synthetic.IM_END]) == ()
    assert not constraint.is_complete([a, synthetic.IM_END])
    assert set(allowed(constraint, [a, synthetic.IM_END])) == vocab.eog


def test_a_schema_may_ask_for_its_own_layout(vocab):
    schema = {**SCHEMA, "x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}}
    constraint = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(schema)), vocab)
    assert detokenize(vocab, constraint.forced([])) == '{"name":"'


def test_white_space_that_a_schema_asks_for_comes_to_an_end(vocab):
    constraint = GrammarConstraint(json_schema({"x-guidance": {"whitespace_flexible": True}, "type": "object"}), vocab)
    pretty = vocab.tokenize(json.dumps({"a": [{"b": 1}]}, indent=8), adds_special=False, parses_special=False)
    assert constraint.n_allowed([], pretty) == len(pretty)
    brace, line, *_ = vocab.tokenize("{\n\n", adds_special=False, parses_special=False)
    assert 100 < constraint.n_allowed([brace], [line] * 1000) < 300


def json_schema(schema: object) -> StructureConfig:
    return StructureConfig(kind="json_schema", text=json.dumps(schema))


REFUSED = {
    "not JSON": (StructureConfig(kind="json_schema", text='{"type": '), r"JSON schema .*line 1 column 10"),
    "no schema": (StructureConfig(kind="json_schema", text="[]"), "must be an object"),
    "unknown type": (StructureConfig(kind="json_schema", text='{"type": "strin"}'), "strin"),
    "wrong kind of value": (StructureConfig(kind="json_schema", text='{"properties": {"é": {"minLength": "%s"}}}' % ("é" * 99)),
                            "#/properties/é/minLength must be a whole number"),
    "deep schema": (StructureConfig(kind="json_schema", text='{"a":' * 200_000 + "1" + "}" * 200_000), "deeper than 124"),
    "deep constant": (StructureConfig(kind="json_schema", text='{"const":' + "[" * 500 + "]" * 500 + "}"), "deeper than 124"),
    "deep by reference": (json_schema({"$ref": "#/$defs/0", "$defs": {
        str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(1000)}}),
        "references included"),
    "NaN": (StructureConfig(kind="json_schema", text='{"minimum": NaN}'), "NaN is no JSON"),
    "huge integer": (StructureConfig(kind="json_schema", text='{"minimum": %s}' % ("9" * 5000)), "JSON schema .*5000 digits"),
    "large integer": (StructureConfig(kind="json_schema", text='{"minimum": %s}' % ("9" * 400)), "out of range"),
    "infinite number": (StructureConfig(kind="json_schema", text='{"minimum": 1e400}'), "1e400 is too large"),
    "half a character": (StructureConfig(kind="json_schema", text='{"const": "\\ud800"}'), "hex escape"),
    "unknown option": (json_schema({"x-guidance": {"bogus": 1}}), "bogus"),
    "no target": (json_schema({"$ref": "#/$defs/nope"}), "does not exist"),
    "elsewhere": (json_schema({"$ref": "http://example.org/schema"}), "example.org"),
    "many choices": (StructureConfig(kind="choice", choices=tuple(map(str, range(300_000)))), "too big|longer"),
    "half a choice": (StructureConfig(kind="choice", choices=("\ud800",)), "hex escape"),
    "deep regex": (StructureConfig(kind="regex", text="(" * 100_000 + "a" + ")" * 100_000), "invalid regex"),
    "half a character in a regex": (StructureConfig(kind="regex", text="\ud800"), "surrogates"),
    "deep Lark": (StructureConfig(kind="grammar", text="start: " + "(" * 5000 + '"a"' + ")" * 5000), "nested deeper"),
    "long chain": (StructureConfig(kind="grammar", text="start: A0\n" + "".join(f'A{i}: A{i + 1} "x"\n' for i in range(9000))
                                   + 'A9000: "a"'), "nested deeper"),
    "long chain of rules": (StructureConfig(kind="grammar", text="start: a0\n" + "".join(
        f'a{i}: "x" a{i + 1} |\n' for i in range(9000)) + 'a9000: "a"'), "nested deeper"),
    "endless Lark": (StructureConfig(kind="grammar", text='start: "a" [x] (start | x)\nx: start ~ 2 // {"a"}'), "no finite text"),
    "unsatisfiable": (StructureConfig(kind="json_schema", text='{"enum": []}'), "Unsatisfiable"),
    "minimum": (StructureConfig(kind="json_schema", text='{"type": "integer", "minimum": 2, "maximum": 1}'), "minimum"),
    "false": (StructureConfig(kind="json_schema", text="false"), "must be an object"),
    "bad regex": (StructureConfig(kind="regex", text="(a"), "unclosed group|invalid regex"),
    "bad pattern": (json_schema({"type": "string", "pattern": "(a"}), "parse error: unclosed group"),
    "look-around": (StructureConfig(kind="regex", text="(?=a)b"), "invalid regex"),
    "unknown rule": (StructureConfig(kind="grammar", text="start: nope"), 'unknown name: "nope"'),
    "no start": (StructureConfig(kind="grammar", text='begin: "a"'), "::="),
    "bad gbnf": (StructureConfig(kind="grammar", text='root ::= ("a"'), r"Expected '\)'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_refused_in_one_line_before_a_model_is_loaded(name):
    structure, says = REFUSED[name]
    with pytest.raises(ConfigError, match=says) as error:
        check_structure(structure)
    assert "\n" not in error.value.message
    assert len(error.value.message) < 500
    assert error.value.hint


AGAIN = {"$ref": "#"}
ENDLESS = {
    "required": {"type": "object", "properties": {"next": AGAIN}, "required": ["next"]},
    "itself": AGAIN,
    "each other": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "required": ["a"], "$defs": {
        "b": {"type": "object", "properties": {"c": AGAIN}, "required": ["c"]}}},
    "any of such": {"anyOf": [{"type": "object", "properties": {name: AGAIN}, "required": [name]} for name in "ab"]},
    "one of such": {"oneOf": [{"type": "object", "properties": {"a": AGAIN, "k": {"const": kind}}, "required": ["k", "a"]}
                              for kind in "xy"]},
    "all together": {"type": "object", "allOf": [{"required": ["a"]}, {"properties": {"a": {"$ref": "#/$defs/n"}}}],
                     "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}}},
    "items": {"type": "array", "items": AGAIN, "minItems": 2},
    "first items": {"type": "array", "prefixItems": [{"type": "null"}, AGAIN], "minItems": 2},
    "other properties": {"type": "object", "required": ["x"], "additionalProperties": AGAIN},
    "some property": {"type": "object", "minProperties": 1, "additionalProperties": AGAIN},
    "properties by pattern": {"type": "object", "required": ["xyz"], "patternProperties": {"^x": AGAIN}},
    "an escaped pointer": {"$ref": "#/$defs/a~1%20~0b", "$defs": {"a/ ~b": {
        "type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/a~1%20~0b"}}}}},
}  # fmt: skip
FINITE = {
    "optional": {"type": "object", "properties": {"next": AGAIN}},
    "or nothing": {"anyOf": [{"type": "object", "properties": {"a": AGAIN}, "required": ["a"]}, {"type": "null"}]},
    "or another type": {"type": ["object", "string"], "properties": {"a": AGAIN}, "required": ["a"]},
    "items": {"type": "array", "items": AGAIN},
    "later items": {"type": "array", "prefixItems": [{"type": "null"}], "items": AGAIN, "minItems": 1},
    "a pattern that takes for ever": {"type": "object", "required": ["a" * 60 + "b"], "additionalProperties": False,
                                      "patternProperties": {"^(a+)+b$": {}}},
    "doubly referenced": {"$ref": "#/$defs/0", "$defs": {"30": {"type": "string"}, **{
        str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}, {"$ref": f"#/$defs/{i + 1}"}]} for i in range(30)}}},
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_that_no_finite_answer_fits_is_refused(name):
    with pytest.raises(ConfigError, match="no finite answer") as error:
        check_structure(json_schema(ENDLESS[name]))
    assert error.value.hint


@pytest.mark.parametrize("name", FINITE)
def test_a_schema_that_may_go_on_for_ever_and_need_not_is_used(vocab, name):
    constraint = GrammarConstraint(json_schema(FINITE[name]), vocab)
    assert len(constraint.foreseen([])[0]) < 150


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(
        ["#", "#/$defs/a", "string", "nmber", "a", "date", "é" * 60, "(", 10**30, 1e-300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "type", "properties", "required", "$ref", "$defs", "a", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if",
        "minLength", "maxItems", "minimum", "exclusiveMaximum", "multipleOf", "pattern", "format", "enum", "const", "$schema",
        "additionalProperties", "patternProperties", "minProperties", "uniqueItems", "dependentRequired", "x-guidance", "$id",
    ]), inner, max_size=4), max_leaves=12).filter(lambda schema: isinstance(schema, dict)))  # fmt: skip
def test_any_object_is_a_schema_or_refused_without_a_word_of_rust(capfd, schema):
    with contextlib.suppress(ConfigError):
        check_structure(json_schema(schema))
    assert capfd.readouterr().err == ""


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["regex", "grammar"]),
    text=st.text(alphabet='start: aAbB"/|()[]{}*+?~.,0129\\<>%#&\n^-d', max_size=30),
)
def test_any_text_is_a_regex_or_a_grammar_or_refused_without_a_word_of_rust(capfd, kind, text):
    with contextlib.suppress(ConfigError):
        check_structure(StructureConfig(kind=kind, text=text if kind == "regex" else f"start: {text}"))
    assert capfd.readouterr().err == ""


# A schema with a keyword that cannot be enforced, where this stands, an answer that the rest allows, and one that it forbids.
LEFT_OUT = {
    "uniqueItems": ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True}, "#/uniqueItems", "[1, 1]", "[2]"),
    "format": ({"type": "object", "properties": {"a/b": {"type": "string", "format": "phone", "maxLength": 2}},
                "required": ["a/b"]}, "#/properties/a~1b/format", '{"a/b": "+1"}', '{"a/b": "+12"}'),
    "not": ({"type": "string", "not": {"const": "a"}}, "#/not", '"a"', "1"),
    "if": ({"type": "string", "if": {"const": "a"}, "then": False, "else": False}, "#/else, #/if, #/then", '"a"', "1"),
    "contains": ({"type": "array", "items": {"enum": [1]}, "contains": {"const": 2}, "minContains": 2},
                 "#/contains, #/minContains", "[1]", "[2]"),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 1}}, "#/propertyNames", '{"ab": 1}', "[]"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#/dependentRequired", '{"a": 1}', "[]"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "#/unevaluatedProperties", '{"a": 1}', "[]"),
    "look-around": ({"type": "string", "pattern": "^(?=a)"}, "#/pattern", '"b"', "1"),
    "number of properties": (
        {"anyOf": [{"type": "object", "minProperties": 2, "properties": {"a": {}}},
                   {"type": "object", "properties": {"b": {}}, "required": ["b"], "maxProperties": 1}]},
        "#/anyOf/0/minProperties", '{"a": 1}', "[]"),
    "overlapping oneOf": (
        {"type": "object", "required": ["a", "b"], "properties": {
            "a": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
            "b": {"oneOf": [{"type": "string"}, {"type": "null"}]}}},
        "#/properties/a/oneOf", '{"a": "a", "b": null}', '{"a": 1'),
    "behind a reference": ({"$ref": "#/components/x", "components": {"x": {"type": "array", "uniqueItems": True}}},
                           "#/components/x/uniqueItems", "[1, 1]", "{}"),
    "64-bit bounds": ({"type": "integer", "minimum": -(2**63), "multipleOf": 5}, "#/minimum", "-5", "4,"),
    "another dialect": ({"$schema": "https://example.org/own", "type": "null"}, "#/$schema", "null", "1"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_keyword_that_cannot_be_enforced_is_named_once_and_all_else_is_enforced(vocab, caplog, name):
    schema, where, fits, does_not = LEFT_OUT[name]
    check_structure(json_schema(schema))
    assert not caplog.messages
    constraint = GrammarConstraint(json_schema(schema), vocab)
    (message,) = caplog.messages
    named = re.fullmatch(r"the JSON schema: (.*) cannot be enforced and is left out, all else holds", message)
    assert named
    assert sorted(named[1].split(", ")) == where.split(", ")
    fitting, other = (vocab.tokenize(text, adds_special=False, parses_special=False) for text in (fits, does_not))
    assert constraint.n_allowed([], fitting) == len(fitting)
    assert constraint.is_complete(fitting)
    assert constraint.n_allowed([], other) < len(other)


def test_a_schema_within_a_grammar_is_treated_alike(vocab, caplog):
    schema = json.dumps({"type": "array", "items": {"enum": [1]}, "uniqueItems": True})
    lark = f'start: "%json {{" json // %json {{}}\njson: %json {schema} | /%json [{{]/'
    constraint = GrammarConstraint(StructureConfig(kind="grammar", text=lark), vocab)
    assert caplog.messages == ["the grammar: #/uniqueItems cannot be enforced and is left out, all else holds"]
    answer = vocab.tokenize("%json {[1,1]", adds_special=False, parses_special=False)
    assert constraint.n_allowed([], answer) == len(answer)
    for refused, says in ((ENDLESS["required"], "no finite answer"), ({"minLength": "é" * 99}, "whole number")):
        with pytest.raises(ConfigError, match=says):
            check_structure(StructureConfig(kind="grammar", text=f"start: %json {json.dumps(refused)}"))


@pytest.mark.parametrize("schema", [
    {"type": "array", "uniqueItems": False}, {"type": "string", "deprecated": True}, {"type": "string", "$dynamicAnchor": "a"},
    {"enum": [{"uniqueItems": True}], "default": {"not": 1}, "type": "object"},
    {"type": "object", "properties": {"not": {"type": "string"}, "uniqueItems": {"const": {"format": "x"}}}},
    {"oneOf": [{"type": "string"}, {"type": "null"}]},
])  # fmt: skip
def test_what_forbids_nothing_or_is_no_keyword_is_not_warned_about(vocab, caplog, schema):
    GrammarConstraint(json_schema(schema), vocab)
    assert not caplog.messages


@pytest.mark.parametrize("regex", [r"[^\s\S]", "(a{0})?"])
def test_a_grammar_without_a_text_is_refused(vocab, regex):
    with pytest.raises(ConfigError, match="allows no text") as error:
        GrammarConstraint(StructureConfig(kind="regex", text=regex), vocab)
    assert error.value.hint


def test_a_dead_end_says_where_it_is_and_leaves_the_rest_answerable(vocab):
    constraint = GrammarConstraint(StructureConfig(kind="grammar", text=r'start: "ab" /[^\s\S]/ | "ac"'), vocab)
    a, b, c = vocab.tokenize("abc", adds_special=False, parses_special=False)
    with pytest.raises(NothingAllowed, match="token 2") as error:
        constraint.mask([a, b])
    assert error.value.hint
    assert {b, c} <= set(allowed(constraint, [a]))
    assert constraint.is_over([a, c])


@pytest.mark.parametrize(("kind", "fields"), [
    ("choice", {}), ("choice", {"choices": ("a", "")}), ("regex", {"text": ""}), ("json_schema", {"text": " \n"}),
    ("grammar", {"text": ""}),
])  # fmt: skip
def test_empty_structures_are_refused(kind, fields):
    with pytest.raises(ConfigError, match="empty") as error:
        StructureConfig(kind=kind, **fields)
    assert error.value.hint
