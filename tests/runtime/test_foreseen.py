"""What follows in an answer, or probably does: spelled and guessed text, worked out once and only where somebody drafts."""

from __future__ import annotations

import json

import pytest

from specllm.config import StructureConfig
from specllm.decoding.constraint import is_allowed
from specllm.runtime import grammar
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.vocab import detokenize
from tests import synthetic
from tests.runtime.test_grammar import STRUCTURES

SPELLED = {  # regex, the answer's first tokens -> those that spell what has to follow, and how many of them are certain
    "other tokens begin like it": ("a (the|that)", ["a"], [" th"], 0),
    "and behind what is certain": ("a-b (the|that)", ["a"], ["-", "b", " th"], 2),
    "inside a character": ("(ä|ö)", ["<0xC3>"], [], 0),
    "nothing has to follow": ("(it|on)", [], [], 0),
    "the answer is over": ("ab", ["a", "b"], [], 0),
}


@pytest.mark.parametrize("name", SPELLED)
def test_text_that_has_to_follow_is_spelled_as_the_vocabulary_splits_it(vocab, name):
    pattern, begun, spelled, n_forced = SPELLED[name]
    by_text = {vocab.text(token).replace(synthetic.SPACE, " "): token for token in range(vocab.n_tokens)}
    constraint = GrammarConstraint(StructureConfig(kind="regex", text=pattern), vocab)
    context = [by_text[text] for text in begun]
    assert [vocab.text(token).replace(synthetic.SPACE, " ") for token in constraint.spelled(context)] == spelled
    assert len(constraint.forced(context)) == n_forced


OPEN = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "inner": {"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer"}}},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["name"],
}
GUESSED = {  # what the answer begins with -> what is guessed
    "the first key": ("", '{"name": "'),
    "the next one": ('{"name": "a"', ', "inner": {"yes": '),
    "the rest of one": ('{"name": "a", "in', 'ner": {"yes": '),
    "the end": ('{"name": "a", "inner": {"yes": true, "n": 1}, "kind": "a', 'lpha"}'),
    "one was left out": ('{"name": "a", "k', 'ind": "'),
    "a choice after that": ('{"name": "a", "inner": {"n": 1', ""),
    "another was put in": ('{"name": "a", "nn', ""),
    "and stays": ('{"name": "a", "nn": 1, "', ""),
    "the answer is over": ('{"name": "a", "inner": {"yes": true, "n": 1}, "kind": "alpha"}', ""),
}


@pytest.mark.parametrize("name", GUESSED)
def test_of_what_an_answer_leaves_open_the_text_that_names_all_and_nothing_else_is_guessed(vocab, name):
    begun, guessed = GUESSED[name]
    constraint = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(OPEN)), vocab)
    context = [synthetic.EOS, *vocab.tokenize(begun, adds_special=False, parses_special=False)]
    constraint.begin(1)
    tokens = constraint.guessed(context)
    assert detokenize(vocab, tokens) == guessed
    assert constraint.n_allowed(context, tokens) == len(tokens)


def test_a_guess_ends_where_it_would_be_forbidden(vocab):
    schema = {"type": "object", "properties": {"kind": {"enum": ["alpha"]}}, "required": ["kind", "more"]}
    constraint = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(schema)), vocab)
    assert detokenize(vocab, constraint.guessed([])) == '{"kind": "alpha"'  # and not `}`


def test_a_guess_that_cannot_be_compiled_is_none_and_warns_of_nothing(vocab, caplog):
    never = {"type": "object", "enum": ["alpha"]}
    schema = {**OPEN, "properties": {"never": never, **OPEN["properties"]}, "x-guidance": {"lenient": True}, "not": {}}
    constraint = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(schema)), vocab)
    assert len(caplog.messages) == 1
    assert constraint.guessed(vocab.tokenize('{"na', adds_special=False, parses_special=False)) != ()


def test_guesses_are_compiled_when_somebody_drafts(vocab, monkeypatch):
    """A plain answer has no use for them, and with 300 properties they take longer than a forward."""
    narrowed = []
    guesses = grammar.schema.guesses
    monkeypatch.setattr(grammar.schema, "guesses", lambda text: narrowed.append(text) or guesses(text))
    constraint = GrammarConstraint(StructureConfig(kind="json_schema", text=json.dumps(OPEN)), vocab)
    constraint.begin(1)
    assert not is_allowed(constraint.mask([synthetic.EOS]), synthetic.EOS)
    constraint.forced([synthetic.EOS])
    assert narrowed == []
    context = [synthetic.EOS, *vocab.tokenize('{"name": "a"', adds_special=False, parses_special=False)]
    for _ in range(2):
        assert detokenize(vocab, constraint.foreseen(context)[0]) == ', "inner": {"yes": '
    assert len(narrowed) == 1


def test_what_follows_an_answer_is_worked_out_once_also_when_others_were_asked_about_between(vocab, monkeypatch):
    """One drafter asks after the other, each also about what stands behind its own draft."""
    constraint = GrammarConstraint(STRUCTURES["schema"], vocab)
    worked_out = []
    forced = GrammarConstraint.forced
    monkeypatch.setattr(GrammarConstraint, "forced", lambda *asked: worked_out.append(asked) or forced(*asked))
    answer = vocab.tokenize('{"name": "a", "kind": "alpha"', adds_special=False, parses_special=False)
    first = constraint.foreseen(answer)
    for n in (5, 3, 4):
        constraint.foreseen(answer[:n])
        assert constraint.foreseen(answer) == first
    assert len(worked_out) == 4
    constraint.begin(2)  # the same tokens behind a prompt, and as a part of one
    assert constraint.foreseen([synthetic.EOS] * 2 + answer) == first
    assert len(worked_out) == 4
    constraint.begin(len(answer))
    assert constraint.foreseen(answer) == GrammarConstraint(STRUCTURES["schema"], vocab).foreseen([]) != first
