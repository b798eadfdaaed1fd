"""Chat templates in their sandbox."""

import re
from datetime import datetime
from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError, UnsupportedModelError
from nanoserve.text.chat_template import MAX_RENDERED_CHARS, ChatTemplate


def _render(source: str, content: Any = "hi", **variables: Any) -> str:
    template = ChatTemplate(source, "<s>", "</s>")
    return template.render([{"role": "user", "content": content}], **variables)


def test_messages_tokens_and_prompt_flag_are_visible() -> None:
    """A template sees the messages, BOS, EOS and whether to open an answer."""
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )

    assert _render(source) == "<s>user:hi</s>assistant:"
    assert _render(source, add_generation_prompt=False) == "<s>user:hi</s>"


def test_blocks_are_trimmed() -> None:
    """A block's own line leaves neither blanks nor a line break."""
    assert _render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_absent_token_is_undefined() -> None:
    """A model without BOS has no `bos_token` in its templates."""
    template = ChatTemplate("[{{ bos_token }}]{{ bos_token is defined }}", None, None)

    assert template.render([]) == "[]False"


def test_loop_controls_work() -> None:
    """`continue` and `break` are understood."""
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )

    assert _render(source) == "023"


def test_tojson_escapes_neither_html_nor_unicode() -> None:
    """`tojson` writes JSON as a model reads it."""
    assert _render("{{ tools | tojson }}", tools=[{"é": "<a&b>"}]) == '[{"é": "<a&b>"}]'
    assert _render("{{ tools | tojson(indent=1) }}", tools=[1]) == "[\n 1\n]"


def test_tools_are_none_unless_given() -> None:
    """Tools and documents are defined, and None."""
    assert _render("{{ tools is none }} {{ documents is none }}") == "True True"


def test_none_fields_are_absent() -> None:
    """A message field that is None counts as absent."""
    assert _render("{{ 'content' in messages[0] }}", content=None) == "False"


def test_today_can_be_written() -> None:
    """`strftime_now` formats the present time."""
    year = _render("{{ strftime_now('%Y') }}")

    assert abs(int(year) - datetime.now().year) <= 1


def test_generation_block_is_its_content() -> None:
    """`generation` marks text for training and shows it."""
    assert _render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


def test_concatenation_and_formats_work() -> None:
    """`~`, `%`, `format` and repetition within bounds do what they do in jinja2."""
    source = "{{ 1 ~ 'a' ~ none }} {{ '%03d' % 7 }} {{ '%s-%s'|format(1, 2) }} {{ '=' * 3 }}"

    assert _render(source) == "1aNone 007 1-2 ==="
    assert (
        _render("{{ '{:>3}|'.format(1) }}{{ 'ab'|center(6) }}|{{ 2 ** 10 }}") == "  1|  ab  |1024"
    )
    assert _render("{{ '%(x)s'|format(x=1) }}{{ 2 ** 0.5 > 1 }}{{ 7 % 4 }}") == "1True3"


def test_stars_and_large_numbers_are_text() -> None:
    """Markdown and numbers in a format are no widths."""
    source = "{{ '**%s** 123456 *' % 1 }} {{ '100000: {} {:.3f}'.format(12345678, 0.5) }}"

    assert _render(source) == "**1** 123456 * 100000: 12345678 0.500"


def test_macros_and_namespaces_work() -> None:
    """Macros are called and namespaces keep values across loops."""
    source = (
        "{% macro shout(text) %}{{ text | upper }}!{% endmacro %}"
        "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
        "{{ shout(messages[0].content) }}{{ ns.n }}"
    )

    assert _render(source) == "HI!3"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x | no_such_filter }}", "{% for m in x %}", "{{"]
)
def test_broken_template_is_refused_when_the_model_is_read(source: str) -> None:
    """A template with a syntax error is refused at construction, with the line."""
    with pytest.raises(UnsupportedModelError, match="line 2"):
        ChatTemplate("\n" + source, None, None)


def test_template_may_refuse_messages() -> None:
    """`raise_exception` becomes the client's error, with the template's words."""
    with pytest.raises(InvalidRequestError, match="roles must alternate") as refusal:
        _render("{{ raise_exception('Conversation roles must alternate.') }}")
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ x.y }}", "'x' is undefined"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include 'x' %}", "loader"),
        ("{{ lipsum() }}", "undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "RecursionError"),
    ],
)
def test_failing_template_is_the_clients_error(source: str, why: str) -> None:
    """Undefined names, wrong types, sandbox violations: each is refused with its reason."""
    with pytest.raises(InvalidRequestError, match=why):
        _render(source)


_DOUBLING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}DOUBLE{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [0] * 10**9 }}",
        "{{ (9**99) ** (9**99) }}",
        "{{ range(10**9) }}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a' | indent(10**9, true) }}",
        "{{ [1] | batch(10**9, 'x') | list }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' | format(999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{w}}'.format_map({'w': 10**9}) }}",
        "{{ '%(x)-99999999d' % {'x': 1} }}",
        "{{ '%.*f' % (99999999, 1.0) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        _DOUBLING.replace("DOUBLE", "{% set ns.x = ns.x + ns.x %}"),
        _DOUBLING.replace("DOUBLE", "{% set ns.x = ns.x ~ ns.x %}"),
        _DOUBLING.replace("DOUBLE", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    ],
)
def test_bombs_are_refused(source: str) -> None:
    """Templates that would take all memory, or never end, are refused."""
    with pytest.raises(InvalidRequestError, match=r"more than|bits|width|Range too big"):
        _render(source)


def test_bound_on_the_prompt_is_exact() -> None:
    """A prompt of the largest size is rendered; one character more is refused."""
    template = ChatTemplate("{{ messages[0].content }}{{ x }}", None, None)
    messages = [{"role": "user", "content": "a" * MAX_RENDERED_CHARS}]

    assert len(template.render(messages, x="")) == MAX_RENDERED_CHARS
    with pytest.raises(InvalidRequestError, match=re.escape(f"{MAX_RENDERED_CHARS:,}")):
        template.render(messages, x="b")


def test_bound_on_steps_starts_anew_each_time() -> None:
    """One rendering's steps do not count against the next."""
    template = ChatTemplate("{% for i in range(20000) %}{% endfor %}done", None, None)

    assert [template.render([]) for _ in range(5)] == ["done"] * 5


def test_messages_are_left_alone() -> None:
    """Rendering changes nothing in the caller's messages."""
    messages = [{"role": "user", "content": None}]
    ChatTemplate("{{ messages[0].role }}", None, None).render(messages)

    assert messages == [{"role": "user", "content": None}]
