"""From tokens to shown text, on a vocabulary in which a token is whatever bytes it says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.app.text import TARGET, Chunk, TextStream, sources
from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round


class Pieces:
    """A vocabulary: token i is the i-th of the pieces it was made with."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def piece(self, token: int) -> bytes:
        return self.pieces[token]


def show(pieces: list[bytes], stops: list[str] = (), widths: list[int] = ()) -> tuple[list[list[Chunk]], int]:
    """Streams the pieces in rounds of these widths (then one token a round), as the decode loop does.

    Returns the chunks shown after every round and at the end, and how many tokens were taken.
    """
    stream = TextStream(Pieces(pieces), stops)
    rounds = iter(widths)
    shown, n_taken, is_stopped = [], 0, False
    while n_taken < len(pieces) and not is_stopped:
        committed = range(n_taken, min(n_taken + next(rounds, 1), len(pieces)))
        for i, token in enumerate(committed):
            n_taken += 1
            is_stopped = stream.push(token)
            if is_stopped:
                committed = committed[: i + 1]
                break
        shown.append(stream.settle(["draft"] * (len(committed) - 1) + [TARGET]))
    shown.append(stream.finish())
    return shown, n_taken


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def split(text: str, cuts: list[int]) -> list[bytes]:
    data = text.encode()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def expected(pieces: list[bytes], stops: list[str]) -> tuple[str, int]:
    """The text up to the earliest stop in it, looked for after every token; and how many tokens that took."""
    text = ""
    for n in range(1, len(pieces) + 1):
        text = b"".join(pieces[:n]).decode(errors="ignore")
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], n
    return text, len(pieces)


def releasable(text: str, stops: list[str]) -> str:
    """All but the longest end that could be the beginning of a stop string."""
    n_held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - n_held]


texts = st.text(st.sampled_from("abü🙂"), max_size=25)
stop_lists = st.lists(st.text(st.sampled_from("abü🙂"), min_size=1, max_size=5), max_size=4)
cut_lists = st.lists(st.integers(0, 200), max_size=30)
width_lists = st.lists(st.integers(1, 6), max_size=12)


@settings(max_examples=500, deadline=None)
@given(text=texts, stops=stop_lists, cuts=cut_lists, widths=width_lists)
def test_what_is_shown_ends_before_the_earliest_stop_however_the_text_is_cut(text, stops, cuts, widths):
    pieces = split(text, cuts)
    shown, n_taken = show(pieces, stops, widths)
    final, n_expected = expected(pieces, stops)
    assert "".join(map(text_of, shown)) == final
    assert n_taken == n_expected
    assert all(chunk.text for chunks in shown for chunk in chunks)


@settings(max_examples=300, deadline=None)
@given(text=texts, stops=stop_lists, cuts=cut_lists)
def test_after_every_round_all_is_shown_but_what_may_be_the_beginning_of_a_stop(text, stops, cuts):
    pieces = split(text, cuts)
    shown, n_taken = show(pieces, stops)
    so_far = ""
    for n, chunks in enumerate(shown[: n_taken - 1], start=1):
        so_far += text_of(chunks)
        assert so_far == releasable(b"".join(pieces[:n]).decode(errors="ignore"), stops)


@settings(max_examples=200, deadline=None)
@given(text=texts, stops=stop_lists, cuts=cut_lists, widths=width_lists)
def test_every_character_has_the_source_of_the_token_that_completed_it(text, stops, cuts, widths):
    pieces = split(text, cuts)
    shown, n_taken = show(pieces, stops, widths)
    rounds = iter(widths)
    token_sources: list[str] = []
    while len(token_sources) < n_taken:
        width = min(next(rounds, 1), n_taken - len(token_sources))
        token_sources += ["draft"] * (width - 1) + [TARGET]
    expected_sources: list[str] = []
    for n in range(1, n_taken + 1):
        n_characters = len(b"".join(pieces[:n]).decode(errors="ignore"))
        expected_sources += [token_sources[n - 1]] * (n_characters - len(expected_sources))
    got = [chunk.source for chunks in shown for chunk in chunks for _ in chunk.text]
    assert got == expected_sources[: len(got)]


def test_a_token_shown_in_two_parts_keeps_its_source():
    shown, _ = show([b"xST", b"O", b"y"], ["STOP"], [2, 1])
    assert shown == [[Chunk("x", "draft")], [Chunk("ST", "draft"), Chunk("O", TARGET), Chunk("y", TARGET)], []]


STOPPED = "one two STOP three"


@pytest.mark.parametrize("width", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("shift", range(8))
def test_a_stop_string_at_every_offset_of_a_block_and_split_over_tokens_and_blocks(width, shift):
    """Fault 26: one character a token, so the stop lies in four tokens and, moved along, in every part of a block."""
    pieces = [character.encode() for character in "." * shift + STOPPED]
    shown, n_taken = show(pieces, ["STOP"], [width] * len(pieces))
    assert "".join(map(text_of, shown)) == "." * shift + "one two "
    assert n_taken == shift + len("one two STOP")


@pytest.mark.parametrize("stops", [["three", "two"], ["two", "three"], ["two", "two STOP"], ["e t", "two"]])
def test_of_several_stops_the_earliest_in_the_text_wins_and_not_the_first_in_the_list(stops):
    shown, _ = show([STOPPED.encode()], stops)
    assert "".join(map(text_of, shown)) == STOPPED[: min(map(STOPPED.find, stops))]


def test_a_part_of_a_stop_is_held_back_and_released_when_it_does_not_complete():
    shown, _ = show([b"a", b"S", b"T", b"x", b"S"], ["STOP"])
    assert [text_of(chunks) for chunks in shown] == ["a", "", "", "STx", "", "S"]


def test_what_follows_a_stop_in_the_same_token_is_not_shown():
    shown, n_taken = show([b"ab", b"cSTOPd", b"e"], ["STOP"])
    assert [text_of(chunks) for chunks in shown] == ["ab", "c", ""]
    assert n_taken == 2


def test_a_stop_that_overlaps_itself_is_found():
    shown, n_taken = show([b"a", b"a", b"a", b"b"], ["aab"])
    assert ("".join(map(text_of, shown)), n_taken) == ("a", 4)


def test_bytes_of_an_incomplete_last_character_are_dropped():
    shown, _ = show(["ü".encode(), "🙂".encode()[:3]])
    assert "".join(map(text_of, shown)) == "ü"


def test_a_round_cut_short_by_ctrl_c_is_shown_at_the_end():
    """Tokens that were committed and whose round never ended."""
    stream = TextStream(Pieces([b"a", b"b"]))
    stream.push(0)
    assert text_of(stream.settle([TARGET])) == "a"
    stream.push(1)
    assert stream.finish() == [Chunk("b", TARGET)]
    assert stream.finish() == []


@pytest.mark.parametrize(
    ("tokens", "draft", "names"),
    [
        ((1,), EMPTY_DRAFT, [TARGET]),
        ((9,), Draft((1, 2), "lookup"), [TARGET]),
        ((1, 9), Draft((1, 2), "lookup"), ["lookup", TARGET]),
        ((1, 2, 9), Draft((1, 2), "model"), ["model", "model", TARGET]),
    ],
)
def test_accepted_tokens_come_from_the_drafter_and_the_last_from_the_target(tokens, draft, names):
    assert sources(Round(tokens, draft, 0.0, 0.0, 0.0)) == names
