"""What is kept between runs: it comes back, it ages, and no damaged file does harm."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.app import learned
from specllm.decoding.acceptance import Acceptance
from specllm.decoding.protocols import Draft, Round


def seen(n_accepted: int, n_rejected: int, evidence: int = 4) -> Acceptance:
    acceptance = Acceptance({}, 0.5)
    for i in range(n_accepted + n_rejected):
        tokens = (1, 2) if i < n_accepted else (9,)
        acceptance.observe(Round(tokens, Draft((1,), "lookup", (evidence,)), 0, 0, 0))
    return acceptance


def test_what_was_learned_comes_back_for_its_kind_of_text_only(tmp_path):
    file = tmp_path / "pair.json"
    learned.save(file, "code", {"lookup": seen(20, 2)})
    learned.save(file, "prose", {"lookup": seen(1, 20)})
    again = {"lookup": Acceptance({}, 0.5)}
    learned.restore(file, "code", again)
    assert again["lookup"].chance(4) == pytest.approx(seen(20, 2).chance(4), abs=0.01)
    unknown = {"lookup": Acceptance({}, 0.5)}
    learned.restore(file, "poem", unknown)
    assert unknown["lookup"].chance(4) == 0.5


def test_old_knowledge_counts_less_and_never_more_than_a_bound(tmp_path):
    file = tmp_path / "pair.json"
    learned.save(file, "code", {"lookup": seen(200, 0)})
    now = {"lookup": Acceptance({}, 0.5)}
    learned.restore(file, "code", now)
    assert now["lookup"].by_class[4].judged == pytest.approx(learned.MOST)
    later = {"lookup": Acceptance({}, 0.5)}
    learned.restore(file, "code", later, now=datetime.now(UTC) + timedelta(days=300))
    assert later["lookup"].by_class[4].judged < 1
    assert 0.5 < later["lookup"].chance(4) < now["lookup"].chance(4)


@settings(max_examples=60, deadline=None)
@given(damage=st.one_of(
    st.binary(max_size=60),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)),
))  # fmt: skip
def test_a_damaged_file_is_as_good_as_none(tmp_path_factory, damage):
    file = tmp_path_factory.mktemp("learned") / "pair.json"
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    else:
        stamp = datetime.now(UTC).isoformat()
        kinds = {"code": {"lookup": damage}}
        file.write_text(json.dumps({"schema": 1, "measured_at": stamp, "kinds": kinds}))
    acceptance = {"lookup": Acceptance({}, 0.5)}
    learned.restore(file, "code", acceptance)
    assert 0 <= acceptance["lookup"].chance(4) <= 1
    learned.save(file, "code", acceptance)
    learned.restore(file, "code", acceptance)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    learned.save(tmp_path / "file" / "pair.json", "code", {"lookup": seen(1, 1)})


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("Write a poem about the sea", "prose"),
        ("Fix this:\n```python\nx = 1\n```", "code"),
        ("def f(x):\n    return x\n\nclass A:\n    pass\n", "code"),
        ("Dear Ann,\nthank you for your letter.\nI hope to see you soon;\nyours, Bob", "prose"),
    ],
)
def test_code_is_told_from_prose(prompt, kind):
    assert learned.kind_of_text(prompt) == kind
