"""Calls of tools, read from what models of each family write: whole, cut at every place, and from hostile ones."""

from __future__ import annotations

import cProfile
import itertools
import json
import random

import pytest
from block_scripts import BLOCK_SCRIPTS, DSML, DSML_CALL
from tool_scripts import ARGUMENTS, DS, DS_CALL, DS_F, DS_SEP, K_CALL, K_SEP, TOOL_SCRIPTS, F, Parts, Script

from ramet.errors import InvalidRequest
from ramet.server.parts import CallIds
from ramet.text.tools.form import ToolFormat
from ramet.text.tools.formats import tool_format
from ramet.text.tools.reader import AnswerReader
from ramet.text.tools.tool import messages_with_tools, tools_of

FORMATS = (
    "hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "granite", "phi4_mini_json", "deepseek_v3", "deepseek_v31",
    "kimi_k2", "glm45", "gpt_oss", "json", "lfm2", "hunyuan_a13b", "olmo3", "internlm",
    "seed_oss", "minimax_m2", "deepseek_v32", "deepseek_v4", "functiongemma", "gemma4",
)  # fmt: skip
SCRIPTS = [*TOOL_SCRIPTS, *BLOCK_SCRIPTS]
PROPERTIES = {
    "t": {"type": "string"}, "i": {"type": "integer"}, "l": {"type": "array"}, "any": {},
    "n": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["x", "y"]}, "b": {"type": "boolean"},
}  # fmt: skip
TOOLS = tools_of(
    [{"type": "function", "function": {"name": name, "parameters": {"properties": PROPERTIES}}} for name in ("f", "g", "look.up")]
)


def reader(name: str, *, is_forced: bool = False, thinks: bool = False, opening: str = "") -> AnswerReader:
    form = tool_format(name, "", lambda mark: False)
    return AnswerReader(form, TOOLS, is_forced=is_forced, thoughts=form.thoughts if thinks else None, opening=opening)


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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.form}: {script.written[:40]}")
def test_what_is_written_is_read_wherever_it_is_cut(script: Script) -> None:
    def fresh() -> AnswerReader:
        return reader(script.form, thinks=script.thinks, opening=script.opening)

    written, parts = script.written, script.parts
    assert read(fresh(), [written], is_cut=script.is_cut) == parts
    assert read(fresh(), list(written), is_cut=script.is_cut) == parts
    for i in range(1, len(written)):
        pieces = [written[:i], written[i:]] if i % 2 else [written[:i], written[i : i + 3], written[i + 3 :]]
        assert read(fresh(), pieces, is_cut=script.is_cut) == parts


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


def test_kimi_gives_ids_itself() -> None:
    one = reader("kimi_k2")
    heads = ("functions.f:3", "g", "functions.f:3")
    read(one, ["".join(f"{K_CALL}{head}{K_SEP}{{}}" for head in heads)])
    assert [part.call_id for part in one.parts] == ["functions.f:3", None, "functions.f:3"]
    ids = [CallIds(ToolFormat(), "call_").of(i, part) for i, part in enumerate(one.parts[:2])]
    assert (ids[0], ids[1][:5], len(ids[1])) == ("functions.f:3", "call_", 29)
    both = CallIds(ToolFormat(), "call_")
    assert len({both.of(i, part) for i, part in enumerate(one.parts)}) == 3


def test_the_family_is_that_of_the_template() -> None:
    found = {
        "{{ '<tool_call>' }}": "_Hermes",
        "{{ '[TOOL_CALLS]' }}": "_Mistral",
        "{{ '<|python_tag|>' }}": "_Bare",
        "{{ tools }}": "_Bare",
        "<tool_call><function=x>": "ToolFormat",
        "<tool_call><function=x><parameter=y>": "_Xml",
        "<|tool_call|>": "_Bare",
        f"{DS}```json": "DeepSeek",
        DS: "DeepSeek31",
        "<|tool_calls_section_begin|>": "Kimi",
        "<tool_call><arg_key>": "_KeyValues",
        "<|channel|>": "Channels",
        "<tool_calls>": "Listed",
        "<tool_calls><tool_call><arg_key>": "_KeyValues",
        "<|tool_list_start|>": "Listed",
        "<|tool_call_start|>": "Listed",
        "<functions></functions> <function_calls>": "Listed",
        "<|action_start|>": "Listed",
        "<seed:tool_call><function=x><parameter=y>": "_Xml",
        "<minimax:tool_call>": "Tagged",
        "<|tool_call>call:": "_Gemma",
        "<start_function_call>": "_Gemma",
        f"{{% set d = '{DSML}' %}}<{{{{ d }}}}function_calls>": "Tagged",
        f"<{DSML}tool_calls>": "Tagged",
    }
    assert {source: type(tool_format("auto", source, lambda mark: False)).__name__ for source in found} == found
    for source in (
        "<tool_calls>", "<|tool_call_start|>", "<|action_start|>", "<minimax:tool_call>", "<seed:tool_call><parameter=",
        f"<{DSML}function_calls>", f"<{DSML}tool_calls>",
    ):  # fmt: skip
        assert source.startswith(tool_format("auto", source, lambda mark: False).marks[0])


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
    "deepseek_v3": [(f"{DS}{DS_CALL}{DS_F[:-6]}", ESCAPES), ("", DS), ("", f"{DS_CALL}function{DS_SEP}f\n"), (DS_CALL, "f")],
    "deepseek_v31": [(f"{DS_CALL}f{DS_SEP}[", "[],"), ("", f"{DS_CALL}f{DS_SEP}")],
    "kimi_k2": [(f"{K_CALL}functions.f:0{K_SEP}[", "1,"), (K_CALL, "functions.f:0"), (K_CALL, "a:1")],
    "glm45": [
        ("<tool_call>f<arg_key>t</arg_key><arg_value>", "</"),
        ("<tool_call>f", "<arg_key>i</arg_key><arg_value>1</arg_value>"),
        ("", "<tool_call>f<arg_key>"),
    ],
    "gpt_oss": [
        ("<|channel|>analysis<|message|>", "<|"),
        ("", "<|channel|>analysis<|message|>x<|end|>"),
        ("", "<|start|>"),
        ("<|channel|>", " to=functions.f"),
    ],
    "json": [("", " "), ("[", "{"), ('{"name": "f", "arguments": "', "\\n")],
    "lfm2": [
        ("<|tool_call_start|>[f(a='", "\\x"),
        ("", "<|tool_call_start|>"),
        ("<|tool_call_start|>[", "f(a=1),"),
        ("<|tool_call_start|>", "g "),
        ("<|tool_call_start|>", "g"),
    ],
    "hunyuan_a13b": [(f"<tool_calls>[{F[:-2]}", ESCAPES), ("", "<tool_calls>["), ("<tool_calls>", '{"name": "f"} ')],
    "olmo3": [("<function_calls>f(a='", "\\x"), ("<function_calls>", "f(a=1)\n"), ("<function_calls>", "f(a=[")],
    "seed_oss": [
        ("<function=f>", '<parameter=l>["</parameter>'),
        ("<function=f><parameter=l>", "["),
        ("<function=f>", '<parameter=l>["a", "</parameter>'),
        ("<seed:tool_call><function=f><parameter=t>", "</"),
        ("<seed:tool_call>", "<function=f>"),
        ("<seed:tool_call><function=f>", "<parameter=t></parameter>"),
    ],
    "minimax_m2": [
        ('<invoke name="f"><parameter name="t">', "<"),
        ("<minimax:tool_call>", '<invoke name="f">'),
        ('<minimax:tool_call><invoke name="', "f"),
        ('<minimax:tool_call><invoke name="f">', '<parameter name="'),
        ("", '<minimax:tool_call><invoke name="f">{}</invoke>'),
    ],
    "deepseek_v32": [
        (f'{DSML_CALL}<{DSML}parameter name="t" string="true">', f"</{DSML}"),
        (f'{DSML_CALL}{{"a": "', ESCAPES),
        (DSML_CALL, f'<{DSML}parameter name="t" string="'),
        ("", DSML_CALL),
    ],
    "functiongemma": [("<start_function_call>call:f{a:<escape>", "<"), ("", "<start_function_call>call:f{}")],
    "gemma4": [
        ('<|tool_call>call:f{a:<|"|>', "<|"),
        ("<|tool_call>call:f{a:[", '<|"|>x<|"|>,'),
        ("<|tool_call>call:f{", "a "),
        ("<|tool_call>call:f{", "a:1,"),
        ("<|tool_call>call:", "f"),
        ("", "<|tool_call>"),
        ("<|channel>thought\n", "<channel|"),
        ("<|tool_call>call:f{a:", "{b:"),
    ],
    "deepseek_v4": [("", f"<{DSML}tool_calls>"), (f"<{DSML}tool_calls>", DSML_CALL)],
    "internlm": [
        (f"<|action_start|><|plugin|>{F[:-2]}", ESCAPES),
        ("", "<|action_start|><|plugin|>"),
        ("<|action_start|>", "<|plugin|>"),
    ],
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
