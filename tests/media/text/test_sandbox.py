"""Hostile templates end soon as an error, and cannot reach anything outside."""

from __future__ import annotations

import time

import pytest

from vivace.errors import InvalidRequest, ModelError, VivaceError
from vivace.media.text.chat import ChatTemplate
from vivace.media.text.meter import BudgetSpentError, Meter
from vivace.media.text.sandbox import MAX_SOURCE

_CHAT = [{"role": "user", "content": "hello", "name": "x" * 50}]

_GROWS = "{%% set ns = namespace(x=%s) %%}{%% for i in range(99) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x%s }}"
_ENDLESS = {
    "one long range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over a filter": "{% for i in range(99999) %}{% for j in range(99999) if j %}{% endfor %}{% endfor %}",
    "loop length": "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "recursive loop": "{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 9 }}{% endfor %}",
    "recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching macro": "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "text doubled": _GROWS % ("'x'", "ns.x ~ ns.x", ""),
    "text added": _GROWS % ("'x'", "ns.x + ns.x", ""),
    "text replaced": _GROWS % ("'x'", "ns.x.replace('x', 'xx')", ""),
    "text joined": _GROWS % ("'x'", "[ns.x, ns.x] | join", ""),
    "list doubled": _GROWS % ("[1]", "ns.x + ns.x", ""),
    "list of itself, printed": _GROWS % ("[1]", "[ns.x, ns.x]", ""),
    "list of itself, as JSON": _GROWS % ("[1]", "[ns.x, ns.x]", " | tojson"),
    "tuple of itself": _GROWS % ("(1,)", "(ns.x, ns.x)", ""),
    "dict of itself": _GROWS % ("{}", "{'a': ns.x, 'b': ns.x}", ""),
    "dict by its views": _GROWS % ("{'a': 1}", "{'a': ns.x.values(), 'b': ns.x.values()}", ""),
    "dict by call": _GROWS % ("{}", "dict(a=ns.x, b=ns.x)", ""),
    "compared lists": _GROWS % ("[1]", "[ns.x, ns.x]", " == [ns.x]"),
    "number squared": _GROWS % ("9", "ns.x * ns.x", ""),
    "repetition": "{{ 'x' * 10**9 }}",
    "repeated list": "{{ [1] * 10**9 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "format width": "{{ '{:999999999d}'.format(1) }}",
    "nested format width": "{{ '{:{}d}'.format(1, 999999999) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "centre": "{{ 'x'.center(999999999) }}",
    "fill": "{{ 'x'.zfill(999999999) }}",
    "indent": "{{ 'x' | indent(999999999) }}",
    "JSON indent": "{{ [1] | tojson(indent=999999999) }}",
    "round": "{{ 1.5 | round(999999999) }}",
    "batch": "{{ [1] | batch(999999999, 0) | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "sum of lists": "{{ ([[0] * 99] * 99999) | sum(start=[]) | length }}",
    "many comparisons of long texts": "{% set x = 'ab' * 4000000 %}"
    + ("{% if " + " or ".join(["'ba' * 9 ~ 'x' in x"] * 100) + " %}{% endif %}") * 50,
}


@pytest.mark.parametrize("name", sorted(_ENDLESS))
def test_endless_templates_end_as_an_error(name: str) -> None:
    with pytest.raises(ModelError, match=r"exceeds its bounds|not allowed"):
        ChatTemplate(_ENDLESS[name]).render(_CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(x=1) }}",
        "{{ ''.encode() }}",
        "{% autoescape true %}{{ messages[0].content }}{% endautoescape %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'base' %}",
        "{{ lipsum(5) }}",
    ],
)
def test_nothing_outside_can_be_reached(source: str) -> None:
    with pytest.raises((ModelError, InvalidRequest)):
        ChatTemplate(source).render(_CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages[0]['content'].__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages[0].content._marks }}",
        "{{ messages[0].content.format.__closure__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
    ],
)
def test_hidden_attributes_are_undefined(source: str) -> None:
    assert ChatTemplate(source).render(_CHAT) == []


def test_a_template_cannot_change_the_messages() -> None:
    messages = [{"role": "user", "content": ["a"]}]
    with pytest.raises(VivaceError):
        ChatTemplate("{{ messages[0].content.append('b') }}").render(messages)
    assert messages == [{"role": "user", "content": ["a"]}]


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if true %}" * 200 + "{% endif %}" * 200,
        "{{ " + "+".join(["1"] * 20000) + " }}",
        "{{ x | no_such_thing( }}",
        "x" * (MAX_SOURCE + 1),
    ],
)
def test_damaged_and_absurd_templates_are_an_error_of_the_model(source: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(source)


def test_a_long_conversation_stays_far_from_the_bounds() -> None:
    turn = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | trim) + '<|im_end|>\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 2000}] * 1000
    segments = ChatTemplate(turn).render(messages)
    assert sum(len(segment.text) for segment in segments) > 9_000_000


def test_time_alone_ends_a_rendering() -> None:
    meter = Meter(seconds=0.0)
    while time.monotonic() <= meter._deadline:
        pass
    with pytest.raises(BudgetSpentError, match="seconds"):
        meter.step()


def test_what_a_list_holds_many_times_counts_as_often() -> None:
    meter = Meter(weight=1000)
    inner = meter.grow([1] * 100)
    meter.grow([inner] * 9)
    with pytest.raises(BudgetSpentError, match="too large"):
        meter.grow([inner] * 10)
