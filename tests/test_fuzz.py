"""Files and replies that others wrote, damaged in every way: a result, or an expected error with a hint, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specllm.app import calibration, learned
from specllm.app.chat import transcript
from specllm.app.drafting import new_acceptance
from specllm.app.edit.complaints import complaints
from specllm.app.edit.prompts import VARIANTS, edit_prompt
from specllm.app.edit.region import region_of_lines
from specllm.app.edit.reply import lines_of_reply
from specllm.app.edit.restore import reindented
from specllm.app.memory.plan import Fit, Free, Load
from specllm.app.prompts.reading import read_prompts
from specllm.app.text_file import read_text_file
from specllm.app.trace.reader import read_trace
from specllm.app.trace.replay import AT_ONCE, Replay
from specllm.config import ContextConfig
from specllm.errors import SpecllmError
from specllm.models.gguf_header import read_header
from specllm.models.registry import Registry
from tests import synthetic

ARCHITECTURES = ("llama", "mamba", "jamba", "lfm2", "gemma3")
quick = settings(max_examples=120, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Where in the content, how many bytes of it go, and what comes in their place.
SPLICES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 12),
        st.binary(max_size=8)
        | st.sampled_from(
            [
                b"\xff" * 8,
                bytes(8),
                b"\n",
                b'"',
                b"{",
                b"]",
                b"= ",
                b"NaN",
                b"-1",
                b"1e999",
                b"\\ud800",
                b"[" * 2000,
                b"9" * 400,
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def damaged(content: bytes, splices: list[tuple[float, int, bytes]], *, within: int | None = None) -> bytes:
    """The content with some of its first `within` bytes cut out and others put in."""
    data = bytearray(content)
    for place, n_cut, new in splices:
        at = int(place * (len(data) if within is None else min(len(data), within)))
        data[at : at + n_cut] = new
    return bytes(data)


def expected(call: Callable[..., Any], *arguments: Any) -> Any:
    """What `call` returns, None where it raises an expected error; that has a message and the next step."""
    try:
        return call(*arguments)
    except SpecllmError as error:
        told = error.message, error.hint
    assert all(told)
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def headers(folder: Path) -> dict[str, bytes]:
    """Small models of every architecture."""
    write = {name: getattr(synthetic, f"write_{name}") for name in ARCHITECTURES}
    return {name: write[name](folder / f"{name}.gguf", n_embd=8).read_bytes() for name in ARCHITECTURES}


def fits(path: Path) -> Fit:
    header = read_header(path)
    context = ContextConfig(n_ctx=4096, n_outputs_max=8)
    fit = Fit((Load(role="target", name="x", header=header, context=context, gpu_layers=1),), Free(10_000, None))
    fit.as_result()
    fit.hint()
    return fit


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@quick
@given(splices=SPLICES)
def test_a_damaged_model_file_has_an_estimate_or_a_defect(folder: Path, headers, architecture, splices) -> None:
    path = folder / "damaged.gguf"
    path.write_bytes(damaged(headers[architecture], splices, within=1500))  # where its numbers are
    fit = expected(fits, path)
    assert fit is None or fit.ram_bytes >= 0


MODELS_TOML = b"""default = "both"
[models.mine]
file = "mine-Q4_K_M.gguf"
bytes = 102404
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
licence = { name = "Apache-2.0", url = "https://example.org" }
sampling = { temperature = 0.7, top_k = 20 }
sources = [{ kind = "hub", repo = "someone/some-GGUF", file = "mine-Q4_K_M.gguf", revision = "main" },
           { kind = "wheels", package = "mine-part{n}", version = "1.0", parts = 2, member = "mine_{n}/part{n:02}.bin" },
           { kind = "path", path = "/models/mine.gguf" }]
[models.small]
file = "small.gguf"
sources = [{ kind = "path", path = "small.gguf" }]
[pairs.both]
target = "mine"
draft = "small"
drafter = "model"
"""


@quick
@given(splices=SPLICES)
def test_a_damaged_models_file_is_entries_or_an_error(splices) -> None:
    file = Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(damaged(MODELS_TOML, splices))
    registry = expected(Registry.load)
    if registry is not None:
        expected(registry.resolve, "both")
        expected(registry.resolve, "mine")


ROUND = {
    "round": 0, "tokens": [5, 6, 7], "texts": ["a", "é", "\x1b[2J"], "draft": [5, 6, 9], "source": "lookup", "n_accepted": 2,
    "width": 4, "draft_s": 0.001, "verify_s": 0.1, "rest_s": 0.0, "reason": None, "evidence": [3, -1, 4],
    "shown": [["a", "lookup"], ["é", "target"]],
    "prompt": {"n_prompt": 12, "n_reused": 3, "n_prediction": 4, "prefill_s": 0.5},
}  # fmt: skip
LAST = {
    **{key: value for key, value in ROUND.items() if key != "prompt"}, "round": 1, "reason": "length",
    "end": {"finish_reason": "length", "strategy": "lookup k=4"},
}  # fmt: skip
TRACE = [ROUND, LAST]
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one", "n_tokens": 2},
    {"role": "assistant", "content": "drei", "n_tokens": 5, "finish_reason": "length", "model": "m"},
    {"role": "user", "content": "and?"},
]
PROMPTS = [
    {"id": "a", "category": "code", "prompt": "write", "expected": "x"},
    {"path": "f.py", "before": "a", "instruction": "b"},
]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")


def replayed(path: Path) -> Any:
    answer = Replay(read_trace(path), speed=AT_ONCE)
    answer.finish()
    return answer.result()


def talk(path: Path) -> transcript.Transcript:
    return transcript.load(path, len)


READERS: dict[str, tuple[list[dict[str, Any]], Callable[[Path], Any]]] = {
    "trace": (TRACE, replayed), "transcript": (TALK, talk), "prompts": (PROMPTS, read_prompts),
}  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
def test_what_is_to_be_damaged_is_whole(folder: Path, kind: str) -> None:
    rows, read = READERS[kind]
    path = folder / f"{kind}.jsonl"
    path.write_bytes(lines(rows))
    assert read(path)


@pytest.mark.parametrize("kind", READERS)
@quick
@given(splices=SPLICES)
def test_damaged_lines_are_read_or_an_error(folder: Path, kind: str, splices) -> None:
    rows, read = READERS[kind]
    path = folder / f"{kind}.jsonl"
    path.write_bytes(damaged(lines(rows), splices))
    expected(read, path)


@pytest.mark.parametrize("kind", READERS)
@quick
@given(data=st.data())
def test_a_value_of_any_kind_in_any_place_is_read_or_an_error(folder: Path, kind: str, data: st.DataObject) -> None:
    rows, read = READERS[kind]
    rows = json.loads(json.dumps(rows))
    place: Any = rows[data.draw(st.integers(0, len(rows) - 1))]
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(values)
    else:
        del place[key]
    path = folder / f"{kind}.jsonl"
    path.write_bytes(lines(rows))
    expected(read, path)


REPLY = (
    "Here it is:\n```python\ndef f(x):\n    return x\n```\n````md\n```\ncode\n```\n````\nDone \\u0000 é\r\n\t```\n~~~\n"
)
texts = st.text(st.sampled_from("`~ \n\r\tapy0é#.\x0b\x0c\u2028"), max_size=60)


@quick
@given(
    splices=SPLICES, more=texts, old=texts, name=st.sampled_from(["a.py", "b.json", "c.toml", "d.yaml", "e.md", "f"])
)
def test_a_reply_of_any_kind_is_one_block_or_an_error(splices, more: str, old: str, name: str) -> None:
    for reply in (damaged(REPLY.encode(), splices).decode(errors="replace"), more, f"```\n{more}\n```"):
        new = expected(lines_of_reply, reply)
        if new is not None:
            text = "\n".join(new)
            complaints(PurePath(name), old, text)
            assert len(reindented(old.split("\n"), new)) == len(new)


@quick
@given(content=st.binary(max_size=200) | texts.map(str.encode), region=texts, variant=st.sampled_from(sorted(VARIANTS)))
def test_a_file_of_any_kind_is_asked_for_or_an_error(folder: Path, content: bytes, region: str, variant: str) -> None:
    path = folder / "file.py"
    path.write_bytes(content)
    file = expected(read_text_file, path)
    if file is not None:
        asked = edit_prompt(VARIANTS[variant], "file.py", file.lines, "mend {it}")
        if asked.stop:  # the block as it stands comes back as it was
            reply = asked.prediction if asked.prediction.endswith("\n") else asked.prediction + "\n"
            assert lines_of_reply(reply) == (list(file.lines) or [""])
        expected(region_of_lines, region, len(file.lines))


counts = st.dictionaries(st.sampled_from(["4", "3", "x"]), values | st.lists(values, min_size=2, max_size=2))


@example(known=None, kinds={"code": {"lookup": {"3": [1, 10**400]}}}, when="2026-01-01T00:00:00+00:00")
@quick
@given(known=values, kinds=values | st.fixed_dictionaries({"code": st.fixed_dictionaries({"lookup": counts | values})}),
       when=values | st.sampled_from(["2026-01-01T00:00:00+00:00", "2026-01-01", "0001-01-01T00:00:00+00:00"]))  # fmt: skip
def test_a_spoiled_cache_counts_as_none(folder: Path, known: Any, kinds: Any, when: Any) -> None:
    """What an earlier version, another program or a full disk left: the figures can always be measured again."""
    file = folder / "cache.json"
    for document in (known, {"schema": calibration.SCHEMA, "measured_at": when, "kinds": kinds}):
        file.write_text(json.dumps(document), encoding="utf-8")
        acceptance = new_acceptance()
        learned.restore(file, "code", acceptance)
        assert all(0 <= one.chance(3) <= 1 for one in acceptance.values())
