"""The page of a benchmark: whole, harmless, and readable without a network."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.errors import ConfigError, StorageError
from specllm.ui.report import page, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HEADINGS = [
    "Speed-up by category", "What a forward costs", "Where the time goes", "Draft length over time",
    "Acceptance by position", "Accepted lengths",
]  # fmt: skip
DRAWN = {"circle", "clippath", "defs", "g", "path", "rect", "style", "svg", "text", "tspan", "use"}
WRITTEN = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "details", "summary", "div", "table",
    "thead", "tbody", "tr", "th", "td", "span", "section", "figure",
}  # fmt: skip


def row(category: str, arm: str, speedup: float | None) -> dict[str, Any]:
    return {
        "category": category, "arm": arm, "n_prompts": 8, "speedup": speedup,
        "speedup_low": speedup and speedup - 0.03, "speedup_high": speedup and speedup + 0.04,
        "decode_tok_per_s": 14.0 * (speedup or 1), "tokens_per_forward": 1.5, "acceptance_rate": 0.61,
        "acceptance_by_position": [0.8, 0.75, 0.7], "zero_accept_share": 0.2, "ttft_s": 1.2, "prefill_tok_per_s": 85.0,
        "ceiling": 6.1, "accepted_lengths": {"0": 40, "3": 11, "15": 9}, "drafted_lengths": {"3": 50, "15": 10},
        "draft_s": 0.1, "verify_s": 8.0, "rest_s": 0.3,
    }  # fmt: skip


def document() -> dict[str, Any]:
    rows = [row(category, arm, speedup) for category, arm, speedup in (
        ("edit", "none", None), ("edit", "auto", 3.1), ("edit", "model", 0.8),
        ("all", "none", None), ("all", "auto", 1.52), ("all", "model", 0.7),
    )]  # fmt: skip
    return {
        "schema": 1, "command": "bench", "ok": True,
        "host": {"processor": "A processor", "physical_cores": 2, "specllm": "0.1", "build": {"features": ["AVX2"]}},
        "models": {"target": {"name": "big", "sha256": "abc123"}, "draft_model": {"name": "small"}},
        "params": {"temperature": 0.0, "n_ctx": 2048, "arms": ["none", "auto", "model"]},
        "result": {
            "rows": rows, "labels": ["greedy"], "failures": [], "differences": None,
            "verify_s_by_width": {"1": 0.07, "2": 0.1, "4": 0.12, "16": 0.28, "64": 0.82},
            "k_over_time": {"auto": {"lengths": [0, 3, 15, 15, 0]}, "model": {"lengths": [2, 1, 0]}},
        },
    }  # fmt: skip


class Seen(HTMLParser):
    """Every element, attribute and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self._last = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._last = tag
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._last == "h2":
            self.headings.append(data)
        self._last = ""


def assert_harmless(text: str) -> Seen:
    """Nothing in the page runs, loads or leads elsewhere, and every drawing is XML."""
    seen = Seen(text)
    assert seen.tags <= DRAWN | WRITTEN
    for name, value in seen.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href"):
            assert value.startswith("#")
    assert not re.search(r"url\((?!#)", text)
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    return seen


@pytest.fixture(scope="module")
def whole() -> str:
    return page(document())


def test_every_chart_has_its_place_and_nothing_is_loaded(whole: str) -> None:
    seen = assert_harmless(whole)
    assert [heading for heading in seen.headings if heading in HEADINGS] == HEADINGS
    assert whole.count("<svg") == len(HEADINGS)
    ids = [value for name, value in seen.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = {value[1:] for name, value in seen.attributes if name in ("href", "xlink:href")}
    assert links <= set(ids)


def test_all_facts_and_settings_are_there(whole: str) -> None:
    texts = Seen(whole).texts
    for fact in ("big + small", "A processor, 2 cores, specllm 0.1, greedy", "features: AVX2", "2048", "temperature"):
        assert fact in texts
    assert any("abc123" in text for text in texts)


def test_an_arm_has_one_colour_in_the_table_and_in_every_chart(whole: str) -> None:
    table, *drawings = re.split(r"<svg", whole)
    colours = re.findall(r'background:(\S+?)"></span>(\w+)<', table)
    assert len({(colour, arm) for colour, arm in colours}) == len({arm for _, arm in colours}) == 3
    auto = next(colour for colour, arm in colours if arm == "auto")
    assert auto.startswith("var(--arm-")
    assert all(auto in drawing for drawing in drawings)


def test_a_speedup_is_marked_only_where_its_whole_interval_is_on_one_side() -> None:
    uncertain = document()
    uncertain["result"]["rows"] = [row("chat", "auto", 1.01), row("chat", "lookup", 1.05), row("chat", "model", 0.9)]
    cells = re.findall(r'<td class="(\w*)">([\d.]+) <span class="interval">', page(uncertain))
    assert cells == [("", "1.01"), ("better", "1.05"), ("worse", "0.90")]


def test_failures_and_defects_are_open_and_near_ties_are_not() -> None:
    broken = document()
    broken["result"]["differences"] = [{"prompt": "a", "kind": "near tie"}]
    assert "<summary>Differences from plain decoding: 1</summary>" in page(broken)
    broken["result"]["differences"].append({"prompt": "b", "kind": "defect"})
    broken["result"]["failures"] = [{"prompt": "c", "message": "no <room>"}]
    text = page(broken)
    assert '<details open><summary class="warn">Failures: 1</summary>' in text
    assert '<details open><summary class="warn">Differences from plain decoding: 2</summary>' in text
    assert "no &lt;room&gt;" in text


HOSTILE = st.one_of(
    st.text(min_size=1, max_size=40),
    st.sampled_from([
        "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></svg><script>", "$\\frac{x}$", "&lt;", "]]>",
        "<!--", "a\x00b\x1b[2J", "\ud800", "漢字 ' `", "$x$ \\alpha", "_hidden", "a" * 3000,
    ]),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(name=HOSTILE)
def test_whatever_a_name_contains_is_text(name: str) -> None:
    text = page({
        "host": {"processor": name, name: name}, "models": {"target": {"name": name}}, "params": {name: [name, {name: 1}]},
        "result": {
            "rows": [{"category": name, "arm": name, "speedup": 1.2}, {"category": "x", "arm": "auto", "speedup": 1.2}],
            "failures": [{"prompt": name, "message": name}], "differences": [name], "labels": [name],
        },
    })  # fmt: skip
    assert_harmless(text)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """The document with some values gone or replaced by something else."""
    broken = copy.deepcopy(document())
    junk = st.one_of(
        st.none(), st.booleans(), st.floats(), st.integers(-(10**400), 10**400), st.text(max_size=3), st.just([]), st.just({}),
        st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=3)), max_size=3), st.just({"x": 1, "-1": 2, "3": "y"}),
    )  # fmt: skip
    for _ in range(draw(st.integers(1, 4))):
        place: Any = broken
        for _ in range(draw(st.integers(0, 3))):
            below = [value for value in (place.values() if isinstance(place, dict) else place) if value]
            below = [value for value in below if isinstance(value, dict | list)]
            if not below:
                break
            place = draw(st.sampled_from(below))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if draw(st.booleans()) and isinstance(place, dict):
            del place[key]
        else:
            place[key] = draw(junk)
    return broken


@settings(max_examples=8, deadline=None)
@given(broken=damaged())
def test_what_is_missing_or_nonsense_costs_its_chart_only(broken: dict[str, Any]) -> None:
    assert_harmless(page(broken))


@pytest.mark.parametrize(
    ("key", "lost"),
    [
        ("verify_s_by_width", "What a forward costs"),
        ("k_over_time", "Draft length over time"),
    ],
)
def test_a_chart_without_figures_is_left_out(key: str, lost: str) -> None:
    poorer = document()
    del poorer["result"][key]
    headings = Seen(page(poorer)).headings
    assert [heading for heading in headings if heading in HEADINGS] == [name for name in HEADINGS if name != lost]


def test_an_empty_document_is_a_page_too() -> None:
    assert "The document has no rows." in page({})


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    write_report({}, file)
    first = file.read_text(encoding="utf-8")
    assert first.startswith("<!doctype html>")
    monkeypatch.setattr("os.fsync", _disk_full)
    with pytest.raises(StorageError, match=r"report\.html: No space left"):
        write_report(document(), file)
    assert file.read_text(encoding="utf-8") == first
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(StorageError):
        write_report({}, tmp_path / "nowhere" / "report.html")


def _disk_full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_missing_library_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError) as caught:
        page(document())
    assert caught.value.hint == "pip install 'matplotlib>=3.8'"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get update && apt-get install -y chromium")
def test_a_browser_without_network_shows_everything(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(document(), file)
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
            "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "<title>specllm bench: big + small</title>" in done.stdout
    assert done.stdout.count("<svg") == len(HEADINGS)
    assert done.stdout.count("</figure>") == len(HEADINGS)
    assert "CONSOLE" not in done.stderr  # script errors, blocked loads, broken styles
