"""Templates of strangers: rendered as their makers meant them, and kept from doing anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specllm.app.chat.template import ChatTemplate, Message
from specllm.app.generate import tokenize_prompt
from specllm.config import GenerateConfig
from specllm.errors import ConfigError
from specllm.runtime.llama import Weights
from tests.synthetic import BOS, CHAT_TEMPLATE, write_llama

SYSTEM, USER = Message("system", "be brief"), Message("user", "hi <there>")
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "[{{ m.role }}: {{ m.content }}]{% endfor %}"
)


def rendered(source: str, *messages: Message, **special: str) -> str:
    return ChatTemplate(source, **special).render(messages or [USER])


def test_messages_become_the_prompt_that_asks_for_an_answer():
    assert rendered(CHAT_TEMPLATE, SYSTEM, USER) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi <there><|im_end|>\n<|im_start|>assistant\n"
    )


def test_special_tokens_are_known_to_the_template():
    assert (
        rendered("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", bos="<s>", eos="</s>")
        == "<s>hi <there></s>"
    )


def test_blocks_leave_no_blank_lines_as_in_transformers():
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n"
    assert rendered(source) == "user\n"


def test_loops_can_be_left_and_continued():
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert rendered(source) == "023"


def test_tojson_writes_text_as_it_is():
    message = Message("user", 'ü "<b>" 🙂')
    assert rendered("{{ messages[0].content | tojson }}", message) == json.dumps(message.content, ensure_ascii=False)
    assert json.loads(rendered("{{ messages | tojson(indent=2) }}")) == [{"role": "user", "content": "hi <there>"}]


def test_strftime_now_gives_the_date():
    assert rendered("{{ strftime_now('%Y') }}").isdigit()


def test_unknown_names_are_empty_as_templates_expect():
    assert rendered("{% if custom_tools %}tools{% endif %}{{ date_string }}.") == "."


TRAINED = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %};{% endfor %}"
)


def test_blocks_that_mark_the_assistants_part_change_no_text():
    assert (
        rendered(TRAINED, USER, Message("assistant", "hello"), USER)
        == "user:hi <there>;assistant:hello;user:hi <there>;"
    )
    assert rendered("{%- generation -%}  a  {%- endgeneration -%}") == "a"
    with pytest.raises(ConfigError, match="broken"):
        ChatTemplate("{% generation %}a")


PARTS = [
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}[{{ m['role'] }}]{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endfor %}",
    "{% for m in messages %}[{{ m.role }}]{{ m.content[0].text }}{% endfor %}",
    "{% for m in messages %}[{{ m.role }}]{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}"
    "{% endfor %}",
]  # fmt: skip


@pytest.mark.parametrize("source", PARTS)
def test_a_template_that_takes_a_content_in_parts_shows_the_text(source):
    assert rendered(source, SYSTEM, USER) == "[system]be brief[user]hi <there>"


def test_a_template_that_takes_both_gets_the_text():
    both = "{% for m in messages %}{{ m.content if m.content is string else 'parts' }}{% endfor %}"
    assert rendered(both) == "hi <there>"


def test_variables_are_set_and_unknown_ones_refused_with_the_known_ones():
    source = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ style }}"
    assert ChatTemplate(source).render([USER]) == ""
    assert ChatTemplate(source, variables={"enable_thinking": False, "style": "x"}).render([USER]) == "<think></think>x"
    with pytest.raises(ConfigError, match="no variable 'enable_thinkin'") as error:
        ChatTemplate(source, variables={"enable_thinkin": False})
    assert "enable_thinking, style" in error.value.hint


def test_tojson_takes_what_transformers_takes():
    source = "{{ {'b': 'ü', 'a': [1]} | tojson(ensure_ascii=True, indent=1, separators=(',', ': '), sort_keys=True) }}"
    assert rendered(source) == json.dumps({"b": "ü", "a": [1]}, indent=1, separators=(",", ": "), sort_keys=True)


def test_there_are_no_tools_and_documents_but_their_names_as_in_transformers():
    source = "{% if tools is defined and tools is none and documents is none %}none{% endif %}"
    assert rendered(source) == "none"
    assert rendered("{% if tools is not none %}{{ tools | length }}{% endif %}.") == "."


def test_the_system_text_joins_the_user_where_a_template_knows_no_system_role():
    assert rendered(NO_SYSTEM, SYSTEM, USER) == "[user: be brief\n\nhi <there>]"
    assert rendered(NO_SYSTEM, USER) == "[user: hi <there>]"
    follow_up = [Message("assistant", "hello"), Message("user", "more")]
    assert (
        rendered(NO_SYSTEM, SYSTEM, USER, *follow_up) == "[user: be brief\n\nhi <there>][assistant: hello][user: more]"
    )


def test_a_template_that_refuses_both_ways_says_why():
    with pytest.raises(ConfigError, match="never mind") as error:
        rendered("{{ raise_exception('never mind') }}", SYSTEM, USER)
    assert "--raw" in error.value.hint
    with pytest.raises(ConfigError, match="System role not supported"):
        rendered(NO_SYSTEM, SYSTEM)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ''['__class__'].mro() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_the_insides_of_python_and_the_file_system_are_out_of_reach(source):
    with pytest.raises(ConfigError):
        rendered(source)


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__ }}", "{{ messages[0].content.__len__ }}", "{{ ''|attr('__doc__') }}"]
)
def test_a_single_look_inside_shows_nothing(source):
    assert rendered(source) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({'content': 'other'}) }}",
        "{{ messages[0].pop('content') }}",
        "{{ messages[0].setdefault('content', 'x') }}",
        "{% set messages[0].content = 'other' %}",
    ],
)
def test_templates_cannot_change_what_they_are_given(source):
    messages = [USER]
    with pytest.raises(ConfigError):
        ChatTemplate(source).render(messages)
    assert messages == [Message("user", "hi <there>")]


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{",
        "{{ x | no_such_filter }}",
        "{% no_such_tag %}",
        "{% break %}",
        "{% macro f(a, a) %}{% endmacro %}",
        "{% for i in x %}" * 25 + "{% endfor %}" * 25,
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{{ " + "9" * 5000 + " }}",
    ],
)
def test_a_broken_template_is_an_error_of_ours(source):
    with pytest.raises(ConfigError, match="chat template is broken") as error:
        ChatTemplate(source)
    assert "--raw" in error.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[7].content }}",
        "{{ nothing.at.all }}",
        "{{ nothing() }}",
        "{{ 5 + 'a' }}",
        "{{ '{} {}'.format(1) }}",
        "{{ ''.encode('nope') }}",
        "{{ 'a' | urlize(rel=5) }}",
        "{{ '%d' % 'x' }}",
        "{{ nothing | tojson }}",
        "{{ 'a'.zfill(10 ** 15) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_that_fails_while_it_runs_is_an_error_of_ours(source):
    with pytest.raises(ConfigError, match="refuses this conversation") as error:
        rendered(source)
    assert "--raw" in error.value.hint


@pytest.mark.parametrize("prefix", ["", "{{ bos_token }}", "<s>"])
def test_there_is_one_bos_whether_the_template_writes_it_or_not(tmp_path: Path, prefix):
    weights = Weights(write_llama(tmp_path / "m.gguf", chat_template=prefix + CHAT_TEMPLATE), is_vocab_only=True)
    try:
        tokens = tokenize_prompt(weights, "hi", GenerateConfig())
    finally:
        weights.close()
    assert tokens[0] == BOS
    assert tokens.count(BOS) == 1


def test_a_prompt_goes_as_it_is_where_asked_or_where_there_is_no_template(tmp_path: Path):
    for name, template, config in [
        ("with", CHAT_TEMPLATE, GenerateConfig(is_raw=True)),
        ("without", None, GenerateConfig()),
    ]:
        weights = Weights(write_llama(tmp_path / f"{name}.gguf", chat_template=template), is_vocab_only=True)
        try:
            tokens = tokenize_prompt(weights, "hi", config)
            assert tokens == [BOS, *weights.vocab.tokenize("hi", adds_special=False, parses_special=False)]
            with pytest.raises(ConfigError, match="--system"):
                tokenize_prompt(weights, "hi", GenerateConfig(is_raw=config.is_raw, system="be brief"))
        finally:
            weights.close()


def test_a_template_that_drops_the_system_message_gets_it_in_the_first_user_message():
    source = "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    text = ChatTemplate(source).render([Message("system", "Be brief."), Message("user", "Hello")])
    assert text == "[user] Be brief.\n\nHello"
