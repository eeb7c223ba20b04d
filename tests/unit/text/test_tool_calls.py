"""Calls of tools, read from what models of each family write: whole, cut at every place, and from hostile ones."""

from __future__ import annotations

import cProfile
import itertools
import json
import random
from dataclasses import dataclass

import pytest

from ramet.errors import InvalidRequest
from ramet.text.tools.formats import tool_format
from ramet.text.tools.reader import AnswerReader
from ramet.text.tools.tool import messages_with_tools, tools_of

ARGUMENTS = '{"a": 2, "b": [1, "x}"], "c": true, "d": "\\"é\\u00e9<tool_call>"}'
FORMATS = ("hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "granite", "phi4_mini_json", "json")
PROPERTIES = {
    "t": {"type": "string"}, "i": {"type": "integer"}, "l": {"type": "array"}, "any": {},
    "n": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["x", "y"]}, "b": {"type": "boolean"},
}  # fmt: skip
TOOLS = tools_of(
    [{"type": "function", "function": {"name": name, "parameters": {"properties": PROPERTIES}}} for name in ("f", "g", "look.up")]
)

Parts = list[tuple[str, str | None, str]]


def reader(name: str, *, is_forced: bool = False, thinks: bool = False, opening: str = "") -> AnswerReader:
    return AnswerReader(tool_format(name, "", lambda mark: False), TOOLS, is_forced=is_forced, thinks=thinks, opening=opening)


def read(one: AnswerReader, pieces: list[str], *, is_cut: bool = False) -> Parts:
    """The parts, which what was told piece by piece adds up to."""
    deltas = [delta for piece in pieces for delta in one.push(piece)] + one.finish(is_cut=is_cut)
    parts: Parts = [(part.kind, part.name, part.text) for part in one.parts]
    told: Parts = []
    for _, run in itertools.groupby(deltas, key=lambda delta: delta.part):
        group = list(run)
        assert [delta.name for delta in group[1:]] == [None] * (len(group) - 1)
        told.append((group[0].kind, group[0].name, "".join(delta.text for delta in group)))
    assert told == parts
    return parts


def text(said: str) -> tuple[str, None, str]:
    return "text", None, said


def call(name: str, arguments: str) -> tuple[str, str, str]:
    return "call", name, arguments


@dataclass(frozen=True)
class Script:
    """What a model writes, and what it says by that. ``is_cut``: the answer ends there by its limit."""

    form: str
    written: str
    parts: Parts
    is_cut: bool = False
    thinks: bool = False
    opening: str = ""


F, G = f'{{"name": "f", "arguments": {ARGUMENTS}}}', '{"name": "g", "arguments": {}}'
SCRIPTS = [
    # Hermes
    Script("hermes", f"<tool_call>\n{F}\n</tool_call>", [call("f", ARGUMENTS)]),
    Script(
        "hermes",
        f" I look.\n\n<tool_call>\n{F}\n</tool_call>\n<tool_call>{G}</tool_call>\n",
        [text(" I look."), call("f", ARGUMENTS), call("g", "{}")],
    ),
    Script("hermes", f"<tool_call>{F}}}\n</tool_call> done", [call("f", ARGUMENTS), text("done")]),
    Script("hermes", f"<tool_call>{F} and no mark", [call("f", ARGUMENTS), text("and no mark")]),
    Script("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "g"}</tool_call>', [call("g", '{"a": 1}')]),
    Script("hermes", '<tool_call>{"name": "new"}</tool_call>', [call("new", "{}")]),
    Script("hermes", '<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}"}</tool_call>', [call("g", '{"a": 1}')]),
    Script("hermes", '<tool_call>{"name": "g", "arguments": null}</tool_call>', [call("g", "{}")]),
    Script(
        "hermes", '<tool_call>{"id": [{}], "name": "g", "arguments": {"a": 1}, "x": "}"}</tool_call>', [call("g", '{"a": 1}')]
    ),
    Script("hermes", "1 < 2, <tool_calls> is no mark, nor is <tool", [text("1 < 2, <tool_calls> is no mark, nor is <tool")]),
    Script("hermes", "<tool_call>f(1)</tool_call> ", [text("<tool_call>f(1)</tool_call> ")]),
    Script("hermes", '<tool_call>{"a": {"b": 1}}', [text('<tool_call>{"a": {"b": 1}}')]),
    Script("hermes", '<tool_call>{"name": ', [text('<tool_call>{"name": ')]),
    Script("hermes", 'so <tool_call>{"name": "f', [text("so ")], is_cut=True),
    Script("hermes", "so <tool_", [text("so ")], is_cut=True),
    Script("hermes", "so <tool_", [text("so <tool_")]),
    Script("hermes", '<tool_call>{"name": "f", "argum', [call("f", "")], is_cut=True),
    Script("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, "x', [call("f", '{"a": [1, "x')], is_cut=True),
    Script("hermes", f"<tool_call>{F}</tool", [call("f", ARGUMENTS)], is_cut=True),
    Script("hermes", "  \n ", [text("  \n ")]),
    Script("hermes", "", []),
    Script(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>',
        [text('<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>')],
    ),
    Script(
        "hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, b]}}</tool_call> so', [call("f", '{"a": [1]}'), text("so")]
    ),
    Script(
        "hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": 1}} <tool_call>{G}', [call("f", '{"a": 1}'), call("g", "{}")]
    ),
    Script("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', [call("f", '{"a": 1}')]),
    Script("hermes", '<tool_call>{"name": "f", "arguments": {"a": [true, "x', [call("f", '{"a": [true, "x"]}')]),
    Script("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "b": tr', [call("f", '{"a": 1}')]),
    Script("hermes", '<tool_call>{"name": "f", "arguments": {"b": [], "c": [1, [],]}}', [call("f", '{"b": [], "c": [1, []]}')]),
    Script("hermes", '<tool_call>{"name": "f", "arguments": "no"}</tool_call>', [call("f", '"no"')]),
    Script(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": True, "b": "\\d \\\'\n\\u12", "c": [1,],}}</tool_call>',
        [call("f", '{"a": true, "b": "\\\\d \'\\n\\\\u12", "c": [1]}')],
    ),
    # Qwen3-Coder
    Script(
        "qwen3_coder",
        'I look.\n\n<tool_call>\n<function=f>\n<parameter=t>\nline <b> "1"\n\n  2\\n</par\n</parameter>\n<parameter=i>\n17\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call><function=g></function></tool_call>\n",
        [text("I look."), call("f", '{"t": "line <b> \\"1\\"\\n\\n  2\\\\n</par", "i": 17}'), call("g", "{}")],
    ),
    Script(
        "qwen3_coder",
        '<tool_call>\n<function=f>\n<parameter=l>\n[1, {"a": "</p"}]\n</parameter>\n<parameter=n>\nnull\n</parameter>\n'
        "<parameter=any>\nTrue\n</parameter>\n<parameter=e>x</parameter><parameter=b>\nmaybe\n</parameter><parameter=new>\n7\n"
        "</parameter>\n</function>\n</tool_call>",
        [call("f", '{"l": [1, {"a": "</p"}], "n": null, "any": true, "e": "x", "b": "maybe", "new": "7"}')],
    ),
    Script("qwen3_coder", "<tool_call><function=f><parameter=t></parameter></function></tool_call>", [call("f", '{"t": ""}')]),
    Script(
        "qwen3_coder", "<function=f>\n<parameter=n>\nNaN\n</parameter>\n</function> so", [call("f", '{"n": "NaN"}'), text("so")]
    ),
    Script("qwen3_coder", "<function=f><parameter=i>5</parameter></tool_call>", [call("f", '{"i": 5}')]),
    Script("qwen3_coder", "<tool_call><function=new></function></tool_call>", [call("new", "{}")]),
    Script("qwen3_coder", "<function=new></function>, <tool_call>f", [text("<function=new></function>, <tool_call>f")]),
    Script("qwen3_coder", "<tool_call><function=f>?", [call("f", "{}")]),
    Script("qwen3_coder", "<tool_call><function=f", [text("<tool_call><function=f")]),
    Script("qwen3_coder", "so <tool_call>\n<function=f", [text("so ")], is_cut=True),
    Script("qwen3_coder", "<function=f>\n<parameter=t>\nab\n</para", [call("f", '{"t": "ab')], is_cut=True),
    Script("qwen3_coder", "<function=f>\n<parameter=i>\n1", [call("f", "")], is_cut=True),
    # marks of others
    Script("granite", f"<|tool_call|>[{F}, {G}]", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("granite", f"Ah <tool_call> [{G}]", [text("Ah"), call("g", "{}")]),
    Script("phi4_mini_json", f"functools[{F}, {G}]", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("phi4_mini_json", "from functools import cache", [text("from functools import cache")]),
    # Llama 3
    Script("llama3_json", '{"name": "f", "parameters": {"a": 1}}', [call("f", '{"a": 1}')]),
    Script("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [call("f", '{"a": 1}')]),
    Script(
        "llama3_json",
        '\n{"type": "function", "name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}\n',
        [call("f", '{"a": 1}'), call("g", "{}")],
    ),
    Script("llama3_json", 'So: <|python_tag|>{"name": "g", "parameters": {}}', [text("So:"), call("g", "{}")]),
    Script("llama3_json", '{"name": "Bob", "parameters": {}} ', [text('{"name": "Bob", "parameters": {}} ')]),
    Script("llama3_json", '{"name": "f", ', [text('{"name": "f", ')]),
    Script("llama3_json", '{"name": "f", ', [call("f", "")], is_cut=True),
    Script("llama3_json", ' {"na', [text(' {"na')], is_cut=True),
    Script("llama3_json", "<|python_tag|>print(1)", [text("<|python_tag|>print(1)")]),
    # generic JSON
    Script("json", F, [call("f", ARGUMENTS)]),
    Script("json", f"[{F}, {G}]", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("json", f"[{F}, {G}", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("json", f"[{F}, 5]", [call("f", ARGUMENTS), text(", 5]")]),
    Script("json", '[1, 2, {"a": 3}]', [text('[1, 2, {"a": 3}]')]),
    Script("json", f"look: {F}", [text(f"look: {F}")]),
    # Python's form
    Script("pythonic", "[f(a=1, b='x'), g()]", [call("f", '{"a": 1, "b": "x"}'), call("g", "{}")]),
    Script(
        "pythonic",
        """ [look.up(a=[1, (2, -3.5e+4), {'k': None, "l": True}], b="é\\'\\"\\x41\\u00e9\n", c=false, d={}, e=[1,],)] """,
        [
            call(
                "look.up",
                '{"a": [1, [2, -3.5e+4], {"k": null, "l": true}], "b": "é\'\\"\\u0041\\u00e9\\n", "c": false, "d": {}, "e": [1]}',
            )
        ],
    ),
    Script("pythonic", f"[{G}]", [call("g", "{}")]),
    Script("pythonic", "<|python_start|>[g()]", [call("g", "{}")]),
    Script("pythonic", "[1, 2, 3]", [text("[1, 2, 3]")]),
    Script("pythonic", "[x(1)] is a list", [text("[x(1)] is a list")]),
    Script("pythonic", "[f(1)]", [text("[f(1)]")]),
    Script("pythonic", "[f(a=__import__('os'))]", [text("[f(a=__import__('os'))]")]),
    Script("pythonic", "[f(a=1, b=[2, {'c': x}])]", [call("f", '{"a": 1, "b": [2]}')]),
    Script("pythonic", "[f(a=1 b=2), g()] so", [call("f", '{"a": 1}')]),
    Script("pythonic", "[f(a=[1, 'x", [call("f", '{"a": [1, "x')], is_cut=True),
    # Mistral
    Script("mistral", f"[TOOL_CALLS] [{F}, {G}]", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("mistral", f"[TOOL_CALLS]f{ARGUMENTS}[TOOL_CALLS]g[ARGS]{{}}", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("mistral", "Well.\n[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}", [text("Well."), call("g", "{}")]),
    Script("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1 "b"}x[TOOL_CALLS]g{}', [call("f", '{"a": 1}'), call("g", "{}")]),
    Script("mistral", "[TOOL_CALLS]f[ARGS]{a: 1}", [text("[TOOL_CALLS]f[ARGS]{a: 1}")]),
    Script("mistral", "[TOOL] [TOOL_CALLS]?", [text("[TOOL] [TOOL_CALLS]?")]),
    Script("mistral", '{"a": 1}', [call("f", '{"a": 1}')], opening="[TOOL_CALLS]f[ARGS]"),
    # thoughts
    Script("none", "<think>\nhm </thin\n</think>\n\n a ", [("reasoning", None, "hm </thin"), text("a ")], thinks=True),
    Script("none", "hm\n</think>a", [("reasoning", None, "hm"), text("a")], thinks=True, opening="<think>"),
    Script("none", " <thinking> a", [text(" <thinking> a")], thinks=True),
    Script("none", "<think>hm</th", [("reasoning", None, "hm")], thinks=True, is_cut=True),
    Script("none", "<think> </think>a <think>b</think>", [text("a <think>b</think>")], thinks=True),
    Script("none", "<think>a</think> b", [text("<think>a</think> b")]),
    Script(
        "hermes",
        f"<think>\nI <tool_call>\n</think>\n\n<tool_call>{F}</tool_call>",
        [("reasoning", None, "I <tool_call>"), call("f", ARGUMENTS)],
        thinks=True,
    ),
    Script("hermes", f"<tool_call>{G}</tool_call>", [call("g", "{}")], thinks=True),
    Script("hermes", f" <t <tool_call>{G}</tool_call>", [text(" <t"), call("g", "{}")], thinks=True),
    Script("json", f" {G}", [call("g", "{}")], thinks=True),
    Script("none", " <t", [text(" <t")], thinks=True),
    Script("json", f"<think>x</think>\n{G}", [("reasoning", None, "x"), call("g", "{}")], thinks=True),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.form}: {script.written[:40]}")
def test_what_is_written_is_read_wherever_it_is_cut(script: Script) -> None:
    def fresh() -> AnswerReader:
        return reader(script.form, thinks=script.thinks, opening=script.opening)

    written, parts = script.written, script.parts
    assert read(fresh(), [written], is_cut=script.is_cut) == parts
    assert read(fresh(), list(written), is_cut=script.is_cut) == parts
    for i in range(1, len(written)):
        assert read(fresh(), [written[:i], written[i:]], is_cut=script.is_cut) == parts
        assert read(fresh(), [written[:i], written[i : i + 3], written[i + 3 :]], is_cut=script.is_cut) == parts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.form}: {script.written[:40]}")
def test_an_answer_may_be_cut_anywhere(script: Script) -> None:
    """What is told of a beginning is the beginning of what is told of the whole, and no markup is in it that is not in that.

    Only an object without a mark may still turn out to be text, until it is known whose name it has.
    """
    for end in range(len(script.written)):
        one = reader(script.form, thinks=script.thinks, opening=script.opening)
        parts = read(one, [script.written[:end]], is_cut=True)
        is_bare = script.form in ("llama3_json", "json", "pythonic", "granite", "phi4_mini_json")
        if is_bare and parts and parts[-1][0] == "text" and parts[-1][2].strip()[:1] in ("{", "["):
            continue
        whole = "".join(said for kind, _, said in script.parts if kind != "call")
        assert whole.startswith("".join(said for kind, _, said in parts if kind != "call").rstrip()), end
        for mine, theirs in zip(
            [part for part in parts if part[0] == "call"], [part for part in script.parts if part[0] == "call"], strict=False
        ):
            assert mine[1] == theirs[1]
            assert theirs[2].startswith(mine[2])


def arguments_of(parts: Parts) -> list[str]:
    return [said for kind, _, said in parts if kind == "call"]


@pytest.mark.parametrize("form", FORMATS)
def test_arguments_are_json_whatever_is_written(form: str) -> None:
    """Answers that break off by themselves, anywhere, and ones with something wrong in them."""
    rng = random.Random(form)
    signs = "{}[]\",:'\\a1<> \n"
    num_calls = 0
    for script in (one for one in SCRIPTS if one.form == form):
        for at in range(1, len(script.written), 3):
            sign = rng.choice(signs)
            for written in (
                script.written[:at],
                script.written[:at] + sign + script.written[at:],
                script.written[:at] + script.written[at + rng.randrange(1, 4) :],
            ):
                for arguments in arguments_of(read(reader(form, thinks=script.thinks, opening=script.opening), [written])):
                    json.loads(arguments, parse_constant=pytest.fail)
                    num_calls += 1
    assert num_calls > 50


def test_arguments_come_as_they_are_written() -> None:
    one = reader("hermes")
    assert one.push('<tool_call>{"name": "f", "arguments": ') == []
    told = ["".join(delta.text for delta in one.push(char)) for char in ARGUMENTS]
    assert told[:12] == [*[""] * 6, '{"a": 2'[:0], '{"a": 2', *[""] * 4]
    assert "".join(told) == ARGUMENTS
    for said in ("x", "}", "<"):
        assert said in told, "a text is told as it comes"
    assert not one.ends_in_calls or one.parts[-1].text == ARGUMENTS


def test_only_whole_calls_end_an_answer_in_calls() -> None:
    for written, ends in (
        (f"<tool_call>{F}", True),
        (f"<tool_call>{F[:-2]}", False),
        ("none", False),
        (f"<tool_call>{F}x", True),
    ):
        one = reader("hermes")
        read(one, [written])
        assert one.ends_in_calls == ends


def test_the_family_is_that_of_the_template() -> None:
    found = {
        "{{ '<tool_call>' }}": "_Hermes",
        "{{ '[TOOL_CALLS]' }}": "_Mistral",
        "{{ '<|python_tag|>' }}": "_Bare",
        "{{ tools }}": "_Bare",
        "<tool_call><function=x>": "ToolFormat",
        "<tool_call><function=x><parameter=y>": "_Xml",
        "<|tool_call|>": "_Bare",
    }
    assert {source: type(tool_format("auto", source, lambda mark: False)).__name__ for source in found} == found


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([{"type": "function"}], r"tools\[0\] is"),
        ([{"type": "web_search", "function": {"name": "f"}}], r"tools\[0\] is"),
        ([{"type": "function", "function": {"name": "a b"}}], r"tools\[0\] has the name 'a b'"),
        ([{"type": "function", "function": {"name": 1}}], "the name 1"),
        ([{"type": "function", "function": {"name": "f"}}] * 2, r"tools\[1\] has the name 'f', which tools\[0\] has too"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "JSON schema of type object"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], "JSON schema of type object"),
        ([{"type": "function", "function": {"name": "f", "strict": 1}}], "true or false"),
    ],
)
def test_what_is_no_tool_is_refused(tools: list[dict[str, object]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tools_of(tools)


def test_tools_are_told_in_the_system_message() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    user = {"role": "user", "content": "hi"}
    [told, last] = messages_with_tools([user], tools)
    assert (told["role"], last) == ("system", user)
    assert '{"name": "f"}' in told["content"]
    [joined, _] = messages_with_tools([{"role": "system", "content": "be kind"}, user], tools)
    assert joined["content"] == "be kind\n\n" + told["content"]
    [parts, _] = messages_with_tools([{"role": "system", "content": [{"type": "text", "text": "a"}]}, user], tools)
    assert parts["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": told["content"]}]


ESCAPES = "plain\\n"
HOSTILE = {  # beginnings, and what goes on and on behind them
    "hermes": [
        (F[:-2], ESCAPES),
        ("", "<tool_call>"),
        ("", '<tool_call>{"name": "f"}'),
        ('<tool_call>{"name": "', "\\u"),
        ("", " <"),
    ],
    "llama3_json": [('{"name": "f", "parameters": ["', ESCAPES), ("{", '"a":['), ("", '{"name": "f"};'), (F[:-2], "[")],
    "pythonic": [("[f(a=", "9"), ("[f(a=", "["), ("[f(a='", "\\x"), ("[f(", "a=1,")],
    "mistral": [('[TOOL_CALLS]f{"', ESCAPES), ("", "[TOOL_CALLS]f{"), ("[TOOL_CALLS][", '{"name": "f"},'), ("", "[TOOL_CALLS")],
    "qwen3_coder": [
        ("<function=f><parameter=t>", "<"),
        ("<function=f><parameter=i>", "\n<"),
        ("", "<function=f>"),
        ("<function=f>", "<parameter=t></parameter>"),
        ("<tool_call><function=", "f"),
        ("", "<tool_call><function=f></tool_call>"),
    ],
    "granite": [(f"<|tool_call|>[{F[:-2]}", ESCAPES), ("<|tool_call|>[", '{"name": "f"},'), ("", "<tool_call>[")],
    "phi4_mini_json": [(f"functools[{F[:-2]}", ESCAPES), ("functools[", '{"name": "f"},'), ("", "functools")],
    "json": [("", " "), ("[", "{"), ('{"name": "f", "arguments": "', "\\n")],
}


@pytest.mark.parametrize("form", FORMATS)
def test_t18_hostile_answers_take_work_in_proportion(form: str) -> None:
    """A megabyte of one kind; of each, four times as much takes four times the calls, where sixteen would be quadratic."""

    def read_through(head: str, piece: str, size: int) -> None:
        written = head + piece * (size // len(piece))
        one = reader(form, thinks=True)
        for i in range(0, size, 1000):
            one.push(written[i : i + 1000])
        one.finish(is_cut=False)

    def calls(head: str, piece: str, size: int) -> int:
        profile = cProfile.Profile()
        profile.runcall(read_through, head, piece, size)
        return sum(entry.callcount for entry in profile.getstats())

    for head, piece in HOSTILE[form]:
        assert calls(head, piece, 1 << 13) < 4.5 * calls(head, piece, 1 << 11) + 500, (head, piece)
    read_through(*HOSTILE[form][0], 1 << 20)


def test_arguments_parse_as_python_means_them() -> None:
    one = reader("pythonic")
    [(_, _, arguments)] = read(one, ["[f(a='\\u00e9\\n\\t\\'', b=[], c=(1, 2.5), d={'x': {'y': -1}})]"])
    assert json.loads(arguments) == {"a": "é\n\t'", "b": [], "c": [1, 2.5], "d": {"x": {"y": -1}}}
