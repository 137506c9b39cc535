"""What a template of a stranger must not do: work for ever, fill the memory, or reach Python."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from specllm.app.chat import template
from specllm.app.chat.template import ChatTemplate, Message
from specllm.errors import ConfigError

USER = [Message("user", "hi")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process that renders templates has a third of a second."""
    template._sandbox.stop()
    monkeypatch.setattr(template, "MAX_CPU_S", 0.3)
    yield
    template._sandbox.stop()


DOUBLED = "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = STEP %}{% endfor %}{{ END }}"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) if namespace(a=range(99999) | sort | list) and false %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        "{% for i in [range(9999)] recursive %}{{ loop(range(9999)) if loop.depth < 5 }}{% endfor %}",
        DOUBLED.replace("START", "'a'").replace("STEP", "n.x ~ n.x").replace("END", "1"),
        DOUBLED.replace("START", "'a'").replace("STEP", "n.x + n.x").replace("END", "1"),
        DOUBLED.replace("START", "[1]").replace("STEP", "n.x + n.x").replace("END", "1"),
        DOUBLED.replace("START", "[1]").replace("STEP", "[n.x, n.x]").replace("END", "n.x | tojson"),
        DOUBLED.replace("START", "3").replace("STEP", "n.x * n.x").replace("END", "1"),
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ '%010000000000d' % 1 }}",
        "{{ [1] | batch(10 ** 10, 'x') | list }}",
        "{{ (range(99999) | list) | join('a' * 10 ** 6) }}",
        "{{ lipsum(n=10 ** 9) }}",
        "{{ ('a' * 10 ** 5).replace('a', 'b' * 10 ** 6) }}",
        "{{ 'a' * (10 ** 8) }}",
    ],
)
def test_work_without_end_is_ended_and_the_next_template_works(source):
    with pytest.raises(ConfigError, match=r"takes too much|makes .* characters|Exceeds|refuses") as error:
        ChatTemplate(source).render(USER)
    assert "--raw" in error.value.hint
    assert ChatTemplate("{{ messages[0].content }}").render(USER) == "hi"


def test_what_a_template_says_about_its_failure_is_short():
    with pytest.raises(ConfigError) as error:
        ChatTemplate("{{ raise_exception('a' * 10 ** 6) }}").render(USER)
    assert len(error.value.message) < 1000


def test_ctrl_c_costs_the_rendering_process_and_nothing_else(monkeypatch):
    """Else the answer to the interrupted request would be taken for that of the next one."""
    one = ChatTemplate("{{ messages[0].content }}")
    process = template._sandbox._process

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.stdout, "readline", interrupt)
    with pytest.raises(KeyboardInterrupt):
        one.render(USER)
    assert process.returncode is not None
    assert one.render(USER) == "hi"


STOLEN = "{0.__class__.__mro__[1].__subclasses__}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('" + STOLEN + "' | attr('format'))('') }}",  # CVE-2025-27516
        "{% set f = '" + STOLEN + "' | attr('format') %}{{ f('') }}",
        "{% set f = '" + STOLEN + "'.format %}{{ f('') }}",  # CVE-2024-56326
        "{% set f = '" + STOLEN + "'['format'] %}{{ f('') }}",
        "{% set f = ['" + STOLEN + "'] | map(attribute='format') | first %}{{ f | string }}{{ f('') }}",
        "{{ '" + STOLEN + "'.format_map({'0': ''}) }}",
        "{{ ['" + STOLEN + "'] | map('format', '') | list }}{{ '" + STOLEN + "'.format('') }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__['__builtins__'] }}",
        "{{ (lipsum | attr('__globals__'))['os'] }}",
        "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{% macro f() %}{% endmacro %}{{ f.__call__.__func__.__globals__ }}",
        "{{ loop.__class__ }}{% for i in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    ],
)  # fmt: skip
def test_pythons_insides_stay_out_of_reach_by_the_known_ways(source):
    try:
        text = ChatTemplate(source).render(USER)
    except ConfigError:
        return
    assert not any(sign in text for sign in ("<class", "built-in", "<module", "subclasses of", "uid=")), text


def test_no_jinja_is_installed_that_lets_a_template_run_python():
    """CVE-2025-27516 and CVE-2024-56326 are mended in 3.1.6."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    (floor,) = (one.partition(">=")[2] for one in project["project"]["dependencies"] if one.startswith("jinja2"))
    wanted, installed = (tuple(map(int, text.split(".")[:3])) for text in (floor, version("jinja2")))
    assert (3, 1, 6) <= wanted <= installed
