"""The walls around templates: no way out, and an end within bounds of time and size."""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from typing import Any

import pytest
from set_clocks import Seconds

from ramet.errors import InvalidRequest, ModelError
from ramet.text.meter import MAX_SECONDS, MAX_SIZE
from ramet.text.template import MAX_SOURCE, CompiledTemplate


def render(source: str, clock: Any = None, **variables: Any) -> str:
    return CompiledTemplate(source, {}).render(variables, clock or Seconds())


class RealSeconds:
    def now(self) -> float:
        return time.monotonic()


CANARY = "ramet_canary"

ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('__cl' ~ 'ass__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ [''] | map('attr', '__class__') | list }}",
    "{{ [''] | selectattr('__class__') | list }}",
    "{{ [''] | groupby('__class__') }}",
    "{{ [''] | sort(attribute='__class__') }}",
    "{{ [''] | sum(attribute='__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "{{ [''] | map('{0.__class__}'.format) | list }}",
    "{{ '{0.__class__}'|attr('format')('') }}",
    "{{ ('{0.__class__}'|safe).format('') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "{{ lipsum.__globals__['os'].popen('echo ramet_canary').read() }}",
    "{{ range.__globals__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__closure__ }}",
    "{{ messages.append.__self__.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ {}.update({'a': 1}) }}",
    "{{ messages.__class__.__base__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__code__ }}",
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "{{ (messages|map('upper')).gi_code }}",
    "{{ undefined_name.__class__ }}",
    "{{ undefined_name._fail_with_undefined_error.__globals__ }}",
    "{% import 'os' as os %}{{ os }}",
    "{% from 'os' import popen %}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ ''.translate({97: 'x'}) }}",
    "{{ __import__('os') }}",
    "{{ open('/etc/passwd') }}",
    "{{ eval('1') }}",
    "{{ ''|format.__class__ }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ url_for.__globals__ }}",
    "{{ config.__class__.from_object('os') }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_t06_known_ways_out_are_closed(source: str, capfd: pytest.CaptureFixture[str]) -> None:
    modules = set(sys.modules)
    with pytest.raises((InvalidRequest, ModelError)) as raised:
        render(source, messages=["a"])
    assert CANARY not in str(raised.value)
    assert capfd.readouterr() == ("", "")
    assert "pty" not in set(sys.modules) - modules


@pytest.mark.parametrize("filter_name", ["attr('upper')", "upper"])
def test_the_same_things_done_honestly_work(filter_name: str) -> None:
    assert "A" in render("{{ 'a'.upper() }}{{ ['a']|map('upper')|list }}{{ '{0}'.format('A') }}{{ x }}", x=filter_name)


ENDLESS = [
    "{% if text == 'x' %}{% endif %}" * 8000,
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
    "{% for a in text %}{% for b in text %}{% for c in text %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(9) recursive %}{% if loop.depth < 90 %}{{ loop(range(9)) }}{% endif %}{% endfor %}",
    "{% for a in range(99999) %}{% if range(99999)|list|length == 3 %}{% endif %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999)|map('abs')|select('odd') %}{% endfor %}{% endfor %}",
    "{{ range(99999)|map('string')|map('upper')|map('lower')|map('trim')|map('title')|list|length }}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_t07_endless_templates_end(source: str, ticking: Seconds) -> None:
    with pytest.raises(InvalidRequest, match="over"):
        render(source, ticking, text="abc" * 100)
    assert ticking.time < MAX_SECONDS + 0.001  # not one look after the end


HUGE = [
    "{% for a in range(10**9) %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [1] * 10**9 }}",
    "{{ 2**(10**10) }}",
    "{{ (10**9)**(10**9) }}",
    "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% for a in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=['ab']) %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=['ab']) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s={}) %}{% for a in range(60) %}{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s|tojson }}",
    "{% set n = namespace(s=()) %}{% for a in range(60) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ n.s == n.s }}",
    "{% set n = namespace(s=['ab']) %}{% for a in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s|string }}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s|replace('a', n.s) %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s.replace('', n.s) %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = [n.s, n.s]|join(n.s) %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s.join([n.s, n.s]) %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = '%s%s'|format(n.s, n.s) %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = '{0}{0}'.format(n.s) %}{% endfor %}",
    "{% set n = namespace(s=[]) %}{% for a in range(5000) %}{% set n.s = n.s + ['x' * 1000000] %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% else %}xxxxxxxxxxxxxxxx{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'x'.center(10**9) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ '\t\t'.expandtabs(10**9) }}",
    "{{ '\t\t'.expandtabs(tabsize=10**9) }}",
    "{{ 'x'|center(10**9) }}",
    "{{ 'x'|indent(10**9, true) }}",
    "{{ 'x'|indent('x' * 5000000, true) }}{{ 'x\nx'|indent('x' * 5000000, true) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ range(90000)|list|tojson(indent=1000) }}",
    "{{ [1]|batch(10**9, 'x')|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ 'x x'|wordwrap(1, wrapstring='x' * 5000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{:>{0}}'.format(1000000000) }}",
    "{{ '{a:{b}}'.format(a=1, b=1000000000) }}",
    "{{ '%-*d' % (1000000000, 1) }}",
    "{{ '%(a)1000000000d' % {'a': 1} }}",
    "{{ '{:>1000000000}'|attr('format')(1) }}",
    "{{ lipsum(n=10**6) }}",
    "{{ (range(1000)|list) * 1000000 }}",
    "{{ range(99999)|map('center', 1000)|list|length }}",
    "{{ ('x' * 4000000).split('') }}",
    "{% set a = 'x' * 4000000 %}" + "{% set b %}{{ a }}{{ a }}{{ a }}{% endset %}" * 10,
]


@pytest.mark.parametrize("source", HUGE)
def test_t07_huge_results_are_refused_before_they_exist(source: str) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises((InvalidRequest, ModelError)):
            render(source, RealSeconds())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000
    assert time.process_time() - start < 3  # under 0.2 s without tracing


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
        "{{ 1" + " + 1" * 30_000 + " }}",
        "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    ],
)
def test_deep_sources_are_refused(source: str) -> None:
    with pytest.raises((InvalidRequest, ModelError)):
        render(source)


def test_a_source_that_is_too_long_is_refused() -> None:
    assert render("x" * MAX_SOURCE) == "x" * MAX_SOURCE
    with pytest.raises(ModelError, match="characters"):
        render("x" * (MAX_SOURCE + 1))


def test_nothing_of_a_template_runs_while_it_is_compiled() -> None:
    for source in HUGE[:6]:
        if "|" not in source:
            CompiledTemplate("{% if false %}" + source + "{% endif %}", {})


def test_a_long_conversation_is_no_attack() -> None:
    """2000 messages of 1000 characters, by a template that looks at each several times."""
    messages = [{"role": "user" if i % 2 else "assistant", "content": "wörd " * 200} for i in range(2000)]
    source = (
        "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{% for m in messages %}{% set ns.seen = ns.seen + [m] %}{% if m.content is string and '</think>' not in m.content %}"
        "{{ '<' + m.role + '>' + m.content|trim + '\n' }}{% endif %}{% endfor %}{{ ns.seen|length }}"
    )
    start = time.process_time()
    text = render(source, messages=messages)
    assert text.endswith("\n2000")
    assert time.process_time() - start < 2  # 0.2 s alone on a machine


def test_the_largest_output_is_allowed_and_one_more_is_not() -> None:
    assert len(render("{{ a }}{{ a }}", a="x" * (MAX_SIZE // 2))) == MAX_SIZE
    with pytest.raises(InvalidRequest, match="over"):
        render("{{ a }}{{ a }}{{ 1 }}", a="x" * (MAX_SIZE // 2))


def test_threads_render_one_template_with_their_own_meters(ticking: Seconds) -> None:
    shared = CompiledTemplate("{% for i in range(n) %}{{ i }},{% endfor %}", {})
    results: dict[int, Any] = {}

    def work(n: int) -> None:
        try:
            results[n] = shared.render({"n": n}, Seconds(1e-4))
        except InvalidRequest as error:
            results[n] = str(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10, 500, 50_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[10] == "0,1,2,3,4,5,6,7,8,9,"
    assert results[500].endswith("498,499,")
    assert "takes over" in results[50_000]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ [2] ~ nothing }}", "a1None[2]"),
        ("{% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %}{% set c, d = 3, 4 %}{{ c }}{{ d }}", "334"),
        (
            "{% for x in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }} {% endfor %}",
            "1/2False2 2/2True ",
        ),
        ("{% for x in nothing %}x{% else %}empty{% endfor %}", "empty"),
        ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{{ {'b': 1, 'a': '<é'} | tojson }}", '{"b": 1, "a": "<é"}'),
        ("{{ [1, {'a': 2}] | tojson(indent=1, separators=(',', ':'), sort_keys=true) }}", '[\n 1,\n {\n  "a":2\n }\n]'),
        ("{{ dict(a=1)['a'] }}{{ dict.fromkeys('ab', 1) }}", "1{'a': 1, 'b': 1}"),
        ("{{ namespace(self=1, a=2).a }}", "2"),
        (
            "{{ 'abc'[1:] }}{{ [1, 2, 3][::-1] }}{{ 7 // 2 }}{{ 2 ** 5 }}{{ 7 % 4 }}{{ '%d-%s' % (1, 'x') }}",
            "bc[3, 2, 1]33231-x",
        ),
        ("{{ ', '.join(['a', 'b'] | map('upper')) }}{{ [1, none] | join('|') }}", "A, B1|None"),
        ("{{ 'a-b'.replace('-', '+') | replace('a', 'c') }}{{ 'x\ny' | indent(2) }}", "c+bx\n  y"),
        ("{{ 'a'.ljust(3) }}|{{ 'a\tb'.expandtabs(4) }}|{{ '{:>3}'.format(1) }}", "a  |a   b|  1"),
        (
            "{{ 'id 20240101 %s, 5 %%' % 'x' }}{{ '{{\"id\": 20240101}} {} {a:>2}'.format('x', a=1) }}",
            'id 20240101 x, 5 %{"id": 20240101} x  1',
        ),
        ("{{ '%(a1)s%(b)5.1f' % {'a1': 'x', 'b': 2} }}{{ '%03d'|format(7) }}", "x  2.0007"),
        ("{% generation %}{% set x = 1 %}a{% endgeneration %}{{ x }}", "a"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("{{ 1 in [1] }}{{ 'a' is in 'abc' }}{{ 1 < 2 < 3 }}{{ not 1 == 2 }}", "TrueTrueTrueTrue"),
    ],
)
def test_measuring_changes_no_result(source: str, text: str) -> None:
    assert render(source) == text
