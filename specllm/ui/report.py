"""A benchmark as one HTML page that needs nothing else: a table, charts as inline SVG, every setting.

Reads the document that `bench --json` prints. What the document does not have is left out, never guessed; names and prompts
come from strangers and are escaped wherever they appear.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specllm.errors import StorageError
from specllm.ui.charts import DARK, LIGHT, Arms, charts
from specllm.ui.document import listed, number, rows_of

COLUMNS = (  # key, heading, format, factor
    ("n_prompts", "prompts", "{:,.0f}", 1.0),
    ("decode_tok_per_s", "tokens/s", "{:,.1f}", 1.0),
    ("tokens_per_forward", "tokens per forward", "{:.2f}", 1.0),
    ("acceptance_rate", "accepted", "{:.0f} %", 100.0),
    ("zero_accept_share", "nothing accepted", "{:.0f} %", 100.0),
    ("ttft_s", "first token", "{:,.0f} ms", 1e3),
    ("prefill_tok_per_s", "prefill tokens/s", "{:,.0f}", 1.0),
    ("ceiling", "ceiling", "{:.1f}", 1.0),
)
STYLE = """
:root { --back: #ffffff; --text: #1c1f23; --soft: #5b636e; --line: #d9dde3; --panel: #f6f7f9; --good: #116b3a; --bad: #a3271f }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171b; --text: #e6e8eb; --soft: #9aa3ae; --line: #30363e; --panel: #1b1f25; --good: #6fd08f; --bad: #ff8a80 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px }
h1 { font-size: 26px; margin: 0 0 4px } h2 { font-size: 18px; margin: 40px 0 4px }
.models { color: var(--text); font-weight: 600; margin-bottom: 0 }
p { margin: 4px 0 12px; color: var(--soft); max-width: 72ch; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
.rows { width: 100% }
th { text-align: right; font-weight: 600; color: var(--soft); padding: 6px 10px; border-bottom: 1px solid var(--line);
  vertical-align: bottom }
td { text-align: right; padding: 4px 10px; white-space: nowrap }
tr.first td { border-top: 1px solid var(--line) }
th.name, td.name { text-align: left }
td.better { color: var(--good); font-weight: 600 } td.worse { color: var(--bad); font-weight: 600 }
.interval { color: var(--soft); font-weight: 400 }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px }
figure { margin: 12px 0 0; padding: 12px; border: 1px solid var(--line); border-radius: 8px; background: var(--panel) }
section { display: flex; flex-direction: column } figure { margin-top: auto }
figure svg { display: block; width: 100%; height: auto }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 0 24px }
@media (max-width: 520px) { .pair { grid-template-columns: 1fr } }
details { margin-top: 24px; border: 1px solid var(--line); border-radius: 8px; padding: 8px 16px }
summary { cursor: pointer; font-weight: 600 }
details td, details th { white-space: normal; overflow-wrap: anywhere; text-align: left; vertical-align: top }
details th { width: 260px; font-weight: 400; border: 0 } .warn { color: var(--bad); font-weight: 600 }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # no script, no font, no network, whatever a name contains


def write_report(document: Mapping[str, object], path: Path) -> None:
    """`path` is a page that shows the benchmark, or (on any error) what it was before.

    ConfigError where matplotlib is not installed, StorageError where the file cannot be written.
    """
    text = page(document)
    partial = None
    try:
        target = Path(os.path.realpath(path))
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".specllm-", suffix=".partial")
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    except OSError as error:
        if partial:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        raise StorageError(
            f"cannot write {path}: {error.strerror}", "give --html a file in a folder you can write to"
        ) from error


def page(document: Mapping[str, object]) -> str:
    """The whole page."""
    rows = rows_of(document)
    arms = Arms([str(row["arm"]) for row in rows])
    models = _models(document)
    title = f"specllm bench: {' + '.join(models)}" if models else "specllm bench"
    parts = [
        "<h1>specllm bench</h1>",
        f'<p class="models">{_text(" + ".join(models))}</p>' if models else "",
        f"<p>{_text(_subtitle(document))}</p>",
        _problems(document),
        _table(rows, arms),
    ]
    drawn = charts(document, arms)
    for heading, note, svg in (chart for chart in drawn if chart.is_wide):
        parts.append(_figure(heading, note, svg))
    narrow = [_figure(heading, note, svg) for heading, note, svg in (chart for chart in drawn if not chart.is_wide)]
    if narrow:
        parts.append(f'<div class="pair">{"".join(narrow)}</div>')
    parts.append(_settings(document))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>{_colours()}{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{''.join(part for part in parts if part)}\n</main>\n</body>\n</html>\n"
    )


def _colours() -> str:
    """The arms' colours for both kinds of page."""
    light, dark = ("; ".join(f"--arm-{i}: {colour}" for i, colour in enumerate(colours)) for colours in (LIGHT, DARK))
    return f"\n:root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _text(value: object) -> str:
    return html.escape(str(value))


def _models(document: Mapping[str, object]) -> list[str]:
    models = document.get("models")
    named = models.values() if isinstance(models, Mapping) else ()
    return [str(model["name"]) for model in named if isinstance(model, Mapping) and model.get("name")]


def _subtitle(document: Mapping[str, object]) -> str:
    host = document.get("host")
    host = host if isinstance(host, Mapping) else {}
    version = host.get("specllm")
    result = document.get("result")
    result = result if isinstance(result, Mapping) else {}
    cores = host.get("physical_cores")
    facts = [
        host.get("processor"), f"{cores} cores" if cores else None, f"specllm {version}" if version else None,
        *listed(result.get("labels")), result.get("date"), "interrupted" if result.get("is_interrupted") is True else None,
    ]  # fmt: skip
    return ", ".join(str(fact) for fact in facts if fact)


def _problems(document: Mapping[str, object]) -> str:
    """What failed and where texts differ, before any figure."""
    result = document.get("result")
    parts = []
    for key, word in (("failures", "failures"), ("differences", "differences from plain decoding")):
        entries = listed(result.get(key)) if isinstance(result, Mapping) else []
        if entries:
            items = "".join(f"<tr><td>{_text(_flat(entry))}</td></tr>" for entry in entries)
            # A near tie is a property of the kernels; anything else should not have happened.
            is_bad = key == "failures" or any(
                not isinstance(one, Mapping) or one.get("kind") != "near tie" for one in entries
            )
            start = '<details open><summary class="warn">' if is_bad else "<details><summary>"
            parts.append(
                f"{start}{word.capitalize()}: {len(entries)}</summary>"
                f'<div class="scroll"><table>{items}</table></div></details>'
            )
    return "".join(parts)


def _table(rows: Sequence[Mapping[str, Any]], arms: Arms) -> str:
    if not rows:
        return "<p>The document has no rows.</p>"
    columns = [column for column in COLUMNS if any(number(row.get(column[0])) is not None for row in rows)]
    head = "".join(f'<th scope="col">{_text(heading)}</th>' for _, heading, _, _ in columns)
    body, last = [], None
    for row in rows:
        category, arm = str(row["category"]), str(row["arm"])
        is_first, last = category != last, category
        cells = "".join(f"<td>{_cell(row.get(key), shape, factor)}</td>" for key, _, shape, factor in columns)
        swatch = f'<span class="swatch" style="background:{arms.page_colour(arm)}"></span>'
        body.append(
            f'<tr{" class=first" if is_first else ""}><td class="name">{_text(category) if is_first else ""}</td>'
            f'<td class="name">{swatch}{_text(arm)}</td>{_speedup_cell(row)}{cells}</tr>'
        )
    return (
        '<div class="scroll"><table class="rows"><thead><tr><th class="name" scope="col">category</th>'
        f'<th class="name" scope="col">arm</th><th scope="col">speed-up</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(value: object, shape: str, factor: float) -> str:
    known = number(value)
    return "" if known is None else shape.format(known * factor)


def _speedup_cell(row: Mapping[str, Any]) -> str:
    """Coloured only where the whole interval is on one side of 1."""
    speedup, low, high = (number(row.get(key)) for key in ("speedup", "speedup_low", "speedup_high"))
    if speedup is None:
        return "<td></td>"
    kind = "better" if low is not None and low > 1 else "worse" if high is not None and high < 1 else ""
    has_interval = low is not None and high is not None and low < high  # plain decoding against itself has none
    interval = f' <span class="interval">{low:.2f} to {high:.2f}</span>' if has_interval else ""
    return f'<td class="{kind}">{speedup:.2f}{interval}</td>'


def _figure(heading: str, note: str, svg: str) -> str:
    return f"<section><h2>{_text(heading)}</h2><p>{_text(note)}</p><figure>{svg}</figure></section>"


def _settings(document: Mapping[str, object]) -> str:
    """Everything that the figures depend on."""
    parts = []
    for key, heading in (("host", "Machine and build"), ("models", "Models"), ("params", "Parameters")):
        entries = document.get(key)
        if isinstance(entries, Mapping) and entries:
            lines = "".join(
                f'<tr><th scope="row">{_text(name)}</th><td>{_text(_flat(value))}</td></tr>'
                for name, value in entries.items()
            )
            parts.append(f"<h2>{heading}</h2><table>{lines}</table>")
    return f"<details><summary>All settings and build facts</summary>{''.join(parts)}</details>" if parts else ""


def _flat(value: object) -> str:
    """A value as a person would write it on a line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_flat(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_flat, value)) or "none"
    return json.dumps(value, default=str)
