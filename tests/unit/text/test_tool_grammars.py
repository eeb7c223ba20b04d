"""What a grammar of each family takes for an answer, and that its reader finds there the calls that it was held to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from block_scripts import DSML
from support.scripted import ends

from ramet.core.grammar import GrammarSpec
from ramet.text.tools.form import ToolFormat
from ramet.text.tools.formats import tool_format
from ramet.text.tools.reader import AnswerReader
from ramet.text.tools.sections import DeepSeek, Kimi
from ramet.text.tools.tool import tools_of

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"t": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": ["x", "y"]}, "l": {"$ref": "#/$defs/l"}},
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"l": {"type": "array", "items": {"type": "boolean"}}},
}
TOOLS = tools_of([{"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}}])
ARGUMENTS = '{"t": "a<b", "n": %s, "e": "x", "l": [true]}'
OBJECT = f'{{"name": "f", "arguments": {ARGUMENTS}}}'
DS = DeepSeek.marks
KINDS = ("string", "integer", "boolean")
SECTIONS = {"deepseek_v32": "function_calls", "deepseek_v4": "tool_calls"}
DSML_CALL = (
    f'\n<{DSML}invoke name="f">\n<{DSML}parameter name="t" string="true">a<b</{DSML}parameter>\n'
    f'<{DSML}parameter name="n" string="false">%s</{DSML}parameter>\n'
    f'<{DSML}parameter name="e" string="true">x</{DSML}parameter>\n'
    f'<{DSML}parameter name="l" string="false">[true]</{DSML}parameter>\n</{DSML}invoke>\n'
)
CALLS = {  # of f in each form, behind its mark; the token of it where it is one
    "hermes": ("<tool_call>", "\n" + OBJECT + "\n</tool_call>"),
    "qwen3_coder": (
        "<tool_call>",
        "\n<function=f>\n<parameter=t>\na<b\n</parameter>\n<parameter=n>\n%s\n</parameter>\n<parameter=e>\nx\n</parameter>\n"
        "<parameter=l>\n[true]\n</parameter>\n</function>\n</tool_call>",
    ),
    "llama3_json": ("<|python_tag|>", OBJECT.replace("arguments", "parameters")),
    "pythonic": ("<|python_start|>", '[f(n=%s, t="a<b", e="x", l=[true])]'),
    "mistral": ("[TOOL_CALLS]", "[" + OBJECT + "]"),
    "granite": ("<|tool_call|>", "[" + OBJECT + "]"),
    "phi4_mini_json": ("functools", "[" + OBJECT + "]"),
    "deepseek_v3": (DS[0], f"{DS[1]}function{DS[2]}f\n```json\n{ARGUMENTS}\n```{DS[3]}{DS[4]}"),
    "deepseek_v31": (DS[0], f"{DS[1]}f{DS[2]}{ARGUMENTS}{DS[3]}{DS[4]}"),
    "kimi_k2": (Kimi.marks[0], f"{Kimi.marks[1]}functions.f:0{Kimi.marks[2]}{ARGUMENTS}{Kimi.marks[3]}{Kimi.marks[4]}"),
    "glm45": (
        "<tool_call>",
        "f\n<arg_key>t</arg_key>\n<arg_value>a<b</arg_value>\n<arg_key>n</arg_key>\n<arg_value>%s</arg_value>\n"
        "<arg_key>e</arg_key>\n<arg_value>x</arg_value>\n<arg_key>l</arg_key>\n<arg_value>[true]</arg_value>\n</tool_call>",
    ),
    "json": ("", OBJECT),
    "seed_oss": (
        "<seed:tool_call>",
        "\n<function=f>\n<parameter=t>a<b</parameter>\n<parameter=n>%s</parameter>\n<parameter=e>x</parameter>\n"
        "<parameter=l>[true]</parameter>\n</function>\n</seed:tool_call>",
    ),
    "minimax_m2": (
        "<minimax:tool_call>",
        '\n<invoke name="f">\n<parameter name="t">a<b</parameter>\n<parameter name="n">%s</parameter>\n'
        '<parameter name="e">x</parameter>\n<parameter name="l">[true]</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "gemma4": ("<|tool_call>", 'call:f{n:%s,t:<|"|>a<b<|"|>,e:<|"|>x<|"|>,l:[true]}<tool_call|>'),
    "functiongemma": (
        "<start_function_call>",
        "call:f{n:%s,t:<escape>a<b<escape>,e:<escape>x<escape>,l:[true]}<end_function_call>",
    ),
    **{name: (f"<{DSML}{section}>", DSML_CALL + f"</{DSML}{section}>") for name, section in SECTIONS.items()},
    "lfm2": ("<|tool_call_start|>", '[f(n=%s, t="a<b", e="x", l=[true])]<|tool_call_end|>'),
    "hunyuan_a13b": ("<tool_calls>", f"[\n    {OBJECT}\n]</tool_calls>"),
    "olmo3": ("<function_calls>", 'f(n=%s, t="a<b", e="x", l=[true])</function_calls>'),
    "internlm": ("<|action_start|>", f"<|plugin|>\n{OBJECT.replace('arguments', 'parameters')}<|action_end|>"),
}
HARMONY = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGUMENTS}"
MARKED = (
    "hermes", "qwen3_coder", "mistral", "deepseek_v3", "deepseek_v31", "kimi_k2", "glm45", "lfm2", "hunyuan_a13b", "olmo3",
    "internlm", "seed_oss", "minimax_m2", "gemma4", "functiongemma", *SECTIONS,
)  # fmt: skip


def renamed(call: str, name: str = "h") -> str:
    """The call of another tool."""
    for before in ('"name": "', 'name="', "call:", "function=", "functions.", f"function{DS[2]}", "[", ""):
        if f"{before}f" in call:
            return call.replace(f"{before}f", f"{before}{name}", 1)
    raise AssertionError(call)


def free(form: ToolFormat) -> GrammarSpec:
    return GrammarSpec("grammar", "start: answer\n" + form.free_lark(TOOLS, 16))


def read(form: ToolFormat, text: str) -> list[tuple[str, str]]:
    one = AnswerReader(form, TOOLS)
    one.push(text)
    one.finish(is_cut=False)
    return [(part.kind, part.text) for part in one.parts]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_special", [False, True], ids=["text", "special"])
def test_a_strict_tool_is_kept_to_where_the_model_chooses(name: str, is_special: bool) -> None:
    mark, call = CALLS[name]
    form = tool_format(name, "", lambda text: is_special and text == mark)
    if name == "mistral" and not is_special:
        assert form.free_lark(TOOLS, 16) == ""
        return
    spec, special = free(form), mark if is_special and mark else "<mark>"
    for text in ("", "Yes: 1 < 2.", "a list [1, 2] and {", "<tool> [TOOL] func"):
        assert ends(spec, text, special) == "whole", text
        assert read(form, text) == ([("text", text)] if text else [])
    starts = [mark] if name in MARKED else [mark, ""]
    for head in [*starts, *(["Well.\n" + mark] if mark else [])]:
        assert ends(spec, head + call % 7, special) == "whole", head
        assert ends(spec, (head + call % 7)[:-1], special) == "open"
        assert ends(spec, head + call % '"7"', special) == "refused"
        assert ends(spec, head + renamed(call % 7), special) == "refused"
        *before, (kind, arguments) = read(form, head + call % 7)
        assert before == ([("text", "Well.")] if head.startswith("Well") else [])
        assert kind == "call"
        assert json.loads(arguments) == {"t": "a<b", "n": 7, "e": "x", "l": [True]}


@pytest.mark.parametrize("name", [name for name in MARKED if name != "mistral"])
def test_all_calls_that_are_read_are_kept_to(name: str) -> None:
    """Those without the mark that should come first, and those that are one too many."""
    mark, call = CALLS[name]
    form = tool_format(name, "", lambda text: False)
    spec = GrammarSpec("grammar", "start: answer\n" + form.free_lark(TOOLS, 2))
    good, bad = ((call % value).lstrip("\n[") for value in (7, '"7"'))
    for written in (good, f"So {good} and {good}"):
        if read(form, written)[-1][0] == "call":
            assert ends(free(form), written) == "whole"
    for written in (
        bad,
        f"So {bad}",
        f"So {good} and {bad}",
        good + bad,
        good * 3,
        (mark + call % 7) * 3,
        (mark + call % 7) * 2 + good,
    ):
        num_calls = sum(kind == "call" for kind, _ in read(form, written))
        if num_calls > 2 or (num_calls and '"7"' in written):
            assert ends(spec, written) == "refused", written


def test_the_later_form_of_mistral() -> None:
    form = tool_format("mistral", "[ARGS]", lambda text: text == "[TOOL_CALLS]")
    spec = free(form)
    assert ends(spec, 'So [TOOL_CALLS]f{"n": 1}[TOOL_CALLS]f{"n": 2}', "[TOOL_CALLS]") == "whole"
    assert ends(spec, 'So [TOOL_CALLS]f{"n": "', "[TOOL_CALLS]") == "refused"
    assert ends(spec, "So [TOOL_CALLS]g", "[TOOL_CALLS]") == "refused"


@pytest.mark.parametrize("name", [*CALLS, "gpt_oss"])
def test_calls_that_have_to_come(name: str) -> None:
    form = tool_format(name, "", lambda text: False)
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark(TOOLS, 16))
    mark, call = CALLS.get(name, ("", HARMONY))
    if name not in MARKED or name == "mistral":
        mark = ""  # it may be left out, or the prompt ends with it
    assert ends(spec, mark + call % 7) == "whole"
    [(kind, arguments)] = read(form, form.opening(TOOLS) + mark + call % 7)
    assert kind == "call"
    assert json.loads(arguments) == {"t": "a<b", "n": 7, "e": "x", "l": [True]}
    assert ends(spec, mark + renamed(call % 7)) == "refused"
    assert ends(spec, mark + call % '"7"') == "refused"
    assert ends(spec, "no") == "refused"


@pytest.mark.parametrize(
    ("name", "first", "between", "last"),
    [
        ("lfm2", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        ("hunyuan_a13b", "<tool_calls>[", ", ", "]</tool_calls>"),
        ("hunyuan_a13b", "<tool_calls>[\n    ", ",\n    ", "\n]</tool_calls>"),
        ("olmo3", "<function_calls>", "\n", "</function_calls>"),
        ("minimax_m2", "<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
        ("gemma4", "<|tool_call>", "<tool_call|><|tool_call>", "<tool_call|>"),
        ("seed_oss", "<seed:tool_call>\n", "\n</seed:tool_call>\n<seed:tool_call>\n", "\n</seed:tool_call>"),
    ],
)
def test_several_calls(name: str, first: str, between: str, last: str) -> None:
    form = tool_format(name, "", lambda text: False)
    call = {
        "lfm2": "f(n=1)",
        "hunyuan_a13b": '{"name": "f", "arguments": {"n": 1}}',
        "olmo3": "f(n=1)",
        "gemma4": "call:f{n:1}",
        "minimax_m2": '<invoke name="f">\n<parameter name="n">1</parameter>\n</invoke>',
        "seed_oss": "<function=f>\n<parameter=n>1</parameter>\n</function>",
    }[name]
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark(TOOLS, 2))
    assert ends(spec, first + call + last) == "whole"
    assert ends(spec, first + call + between + call + last) == "whole"
    assert ends(spec, first + call + between + call + between + call + last) == "refused"
    found = read(form, first + call + between + call + last)
    assert [(kind, json.loads(arguments)) for kind, arguments in found] == [("call", {"n": 1})] * 2


def test_calls_that_python_has_no_words_for() -> None:
    """Those of a tool whose arguments are said otherwise than by their names are objects."""
    [tool] = tools_of([{"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{"required": ["a"]}]}}}])
    form = tool_format("gemma4", "", lambda text: False)
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark([tool], 1))
    written = '<|tool_call>call:f{"a": ["x"]}<tool_call|>'
    assert ends(spec, written) == "whole"
    assert read(form, written) == [("call", '{"a": ["x"]}')]
    form = tool_format("deepseek_v4", "", lambda text: False)
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark([tool], 1))
    assert ends(spec, CALLS["deepseek_v4"][0] + CALLS["deepseek_v4"][1] % 7) == "whole"
    for name, mark in (("lfm2", "<|tool_call_start|>"), ("olmo3", "<function_calls>")):
        form = tool_format(name, "", lambda text: False)
        spec = GrammarSpec("grammar", "start: calls\n" + form.lark([tool], 2))
        written = mark + '[{"name": "f", "arguments": {"a": 1}}]' + form.marks[1]
        assert ends(spec, written) == "whole"
        assert read(form, written) == [("call", '{"a": 1}')]


def test_a_word_in_tags_may_be_a_token() -> None:
    form = tool_format("deepseek_v32", "", lambda text: text == DSML)
    written = CALLS["deepseek_v32"][0] + CALLS["deepseek_v32"][1] % 7
    for spec in (free(form), GrammarSpec("grammar", "start: calls\n" + form.lark(TOOLS, 1))):
        assert ends(spec, written, DSML) == "whole"
        assert ends(spec, written.replace("a<b", "a </ b"), DSML) == "whole"
        assert ends(spec, written.replace(">7<", '>"7"<'), DSML) == "refused"
    assert ends(free(form), "1 < 2.\n\n" + written, DSML) == "whole"
    assert ends(free(form), "1 < 2 <", DSML) == "whole"


@pytest.mark.parametrize(
    ("schema", "kind", "value", "is_kept"),
    [
        ({"type": ["string", "null"]}, "true", "x", True),
        ({"type": ["string", "null"]}, "false", "null", True),
        ({"type": ["string", "null"]}, "false", "7", False),
        ({"type": "string"}, "false", '"x"', False),
        ({"enum": ["<", "<="]}, "true", "<=", True),
        ({"enum": ["<", "<="]}, "true", "=", False),
        ({"enum": ["<", 1, None]}, "true", "<", True),
        ({"enum": ["<", 1, None]}, "false", "1", True),
        ({"enum": ["<", 1, None]}, "true", "null", False),
        ({}, "false", "[1]", True),
        ({}, "true", "x", False),
    ],
)
def test_a_tag_says_whether_its_value_is_a_text(schema: dict[str, Any], kind: str, value: str, is_kept: bool) -> None:
    [tool] = tools_of([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": schema}}}}])
    form = tool_format("deepseek_v4", "", lambda text: False)
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark([tool], 1))
    written = (
        f'{form.marks[0]}\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="{kind}">{value}</{DSML}parameter>\n'
        f"</{DSML}invoke>\n{form.marks[1]}"
    )
    assert ends(spec, written) == ("whole" if is_kept else "refused")
    [(_, arguments)] = read(form, written)
    assert json.loads(arguments) == {"a": value if kind == "true" else json.loads(value)}


def test_quotes_may_be_a_token() -> None:
    form = tool_format("gemma4", "", lambda text: text == '<|"|>')
    written = "<|tool_call>" + CALLS["gemma4"][1] % 7
    for spec in (free(form), GrammarSpec("grammar", "start: calls\n" + form.lark(TOOLS, 1))):
        assert ends(spec, written, '<|"|>') == "whole"
        assert ends(spec, written.replace('<|"|>', '"'), '<|"|>') == "refused"


@pytest.mark.parametrize(
    ("name", "written", "found"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", {"a": "1"}),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", {"a": "1"}),
        ("pythonic", '[f(a=1, b="x")]', {"a": 1, "b": "x"}),
        ("pythonic", "[f()]", {}),
        ("lfm2", "<|tool_call_start|>[f(a=[1])]<|tool_call_end|>", {"a": [1]}),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x<|"|>,b:[1]}<tool_call|>', {"a": "x", "b": [1]}),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="f">\n</invoke>\n</minimax:tool_call>', {}),
    ],
)
def test_a_tool_that_names_no_arguments_may_have_any(name: str, written: str, found: dict[str, Any]) -> None:
    """So are those that are not strict, where an answer is held to something else."""
    [tool] = tools_of([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    form = tool_format(name, "", lambda text: False)
    spec = GrammarSpec("grammar", "start: answer\n" + form.free_lark([tool], 2))
    assert ends(spec, written) == "whole"
    [(_, arguments)] = read(form, written)
    assert json.loads(arguments) == found
    assert form.unkept(tool) is None
    [closed] = tools_of([{"type": "function", "function": {"name": "f"}}])
    assert ends(GrammarSpec("grammar", "start: answer\n" + form.free_lark([closed], 2)), written) == (
        "refused" if found else "whole"
    )
    [typed] = tools_of(
        [{"type": "function", "function": {"name": "f", "parameters": {"additionalProperties": {"type": "null"}}}}]
    )
    assert (form.unkept(typed) is None) == (name in ("pythonic", "lfm2"))


def test_channels_without_a_call() -> None:
    form = tool_format("gpt_oss", "", lambda text: False)
    spec = free(form)
    assert ends(spec, "<|channel|>final<|message|>Yes: 1 < 2.") == "whole"
    assert ends(spec, "<|channel|>analysis<|message|>f?<|end|><|start|>assistant<|channel|>final<|message|>") == "whole"
    assert ends(spec, "<|channel|>analysis<|message|>f?<|end|><|start|>assistant" + HARMONY % 7) == "whole"
    assert ends(spec, HARMONY % '"7"') == "refused"


def test_the_later_form_of_glm() -> None:
    form = tool_format("glm45", "<arg_key>{k}</arg_key><arg_value>", lambda text: False)
    written = CALLS["glm45"][0] + (CALLS["glm45"][1] % 7).replace("\n", "")
    assert ends(free(form), written) == "whole"
    assert [kind for kind, _ in read(form, written)] == ["call"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"type": "string", "maxLength": 3}}}, "maxLength of a"),
        ({"properties": {"a": {"anyOf": [{"type": "string", "pattern": "x"}, {"type": "null"}]}}}, "pattern of a"),
        ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"properties": {"a b": {}}}, "names"),
        ({"required": ["a"]}, "required"),
        ({"properties": {"b": {}}, "required": ["a"]}, "required"),
        ({"properties": {"a": False}}, "may not be"),
        ({"properties": {"a": {"$ref": "#"}}}, r"$ref"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"items": {"$ref": "#/properties/a"}}}}, "$ref"),
        ({"properties": {"a": {"enum": ["x", "</parameter>"]}}}, "what a, a text, may be"),
        ({"properties": {"a": {"type": "integer", "enum": ["x", 1]}}}, "what a, a text, may be"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}}}, None),
        ({"properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 3}}}}, None),
    ],
)
def test_what_a_form_without_quotes_cannot_keep_to(schema: dict[str, Any], words: str | None) -> None:
    [tool] = tools_of([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    unkept = tool_format("qwen3_coder", "", lambda text: False).unkept(tool)
    assert unkept is None if words is None else words in (unkept or "")
    assert tool_format("hermes", "", lambda text: False).unkept(tool) is None
    spec = GrammarSpec("grammar", "start: calls\n" + tool_format("qwen3_coder", "", lambda text: False).lark([tool], 1))
    assert ends(spec, "<tool_call>\n<function=f>\n</function>\n</tool_call>") == "whole"


ONE_VALUE = {
    "qwen3_coder": ("<tool_call>\n<function=f>\n<parameter=a>\n", "%s", "\n</parameter>\n</function>\n</tool_call>"),
    "glm45": ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>", "%s", "</arg_value>\n</tool_call>"),
    "gemma4": ("<|tool_call>call:f{a:", '<|"|>%s<|"|>', "}<tool_call|>"),
}


@pytest.mark.parametrize("name", ONE_VALUE)
@pytest.mark.parametrize(
    ("schema", "kept", "refused"),
    [
        ({"anyOf": [{"type": "string", "enum": ["x", "y z"]}, {"type": "null"}]}, ["y z", None], ["z"]),
        ({"type": ["string", "null"], "enum": ["x", None]}, ["x", None], [""]),
        ({"type": ["string", "null"], "enum": ["x"]}, ["x"], ["", None]),
        ({"enum": ["x", 1]}, ["x"], ["1", None]),
        ({"oneOf": [{"const": "x"}, {"const": "y"}]}, ["x", "y"], ["z", None]),
        ({"oneOf": [{"enum": ["x", "y"]}, {"const": "x"}]}, ["y"], ["x"]),
        ({"type": "string", "allOf": [{"enum": ["x", "y"]}, {"const": "y"}]}, ["y"], ["x", "z"]),
        ({"enum": ["x", "y"], "const": "y"}, ["y"], ["x"]),
        ({"anyOf": [{"const": "x"}, {"type": "string"}]}, ["x", "z"], []),
        ({"anyOf": [{"const": "x"}, {"$ref": "#/$defs/n"}]}, ["x"], ["1"]),
    ],
)
def test_texts_are_those_of_the_schema(
    name: str, schema: dict[str, Any], kept: list[str | None], refused: list[str | None]
) -> None:
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": {"n": {"type": "integer"}}}
    [tool] = tools_of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    form = tool_format(name, "", lambda text: False)
    assert form.unkept(tool) is None
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark([tool], 1))
    before, quotes, behind = ONE_VALUE[name]
    for value in [*kept, *refused]:
        written = before + ("null" if value is None else quotes % value) + behind
        assert (value, ends(spec, written)) == (value, "whole" if value in kept else "refused")
        one = AnswerReader(form, [tool])
        one.push(written)
        if value in kept:
            assert [json.loads(part.text) for part in one.parts] == [{"a": value}]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("tool_name", ["ns.f", "a/b:c", "f-1"])
def test_tools_with_odd_names(name: str, tool_name: str) -> None:
    [tool] = tools_of([{"type": "function", "function": {"name": tool_name, "parameters": PARAMETERS}}])
    form = tool_format(name, "", lambda text: False)
    spec = GrammarSpec("grammar", "start: calls\n" + form.lark([tool], 2))
    mark, call = CALLS[name]
    written = ("" if name not in MARKED or name == "mistral" else mark) + renamed(call % 7, tool_name)
    assert ends(spec, written) == "whole"
    one = AnswerReader(form, [tool], is_forced=True, opening=form.opening([tool]))
    one.push(written)
    assert [(part.kind, part.name) for part in one.parts] == [("call", tool_name)]


@pytest.mark.parametrize("name", [*CALLS, "gpt_oss"])
@pytest.mark.parametrize("needed", [["a0"], []])
def test_many_tools_with_many_arguments(name: str, needed: list[str]) -> None:
    """Grammars are bounded, and it takes one that is small to hold an answer to calls of that many."""
    tools = tools_of(
        [
            {"type": "function", "function": {"name": f"f{i}", "parameters": {"properties": properties, "required": needed}}}
            for i in range(40)
            for properties in [{f"a{j}": {"type": KINDS[j % 3], "description": f"{i} {j}"} for j in range(12)}]
        ]
    )
    form = tool_format(name, "", lambda text: False)
    assert ends(GrammarSpec("grammar", "start: calls\n" + form.lark(tools, 16)), "") == "open"


def test_an_argument_may_refer_to_definitions() -> None:
    parameters = {"additionalProperties": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    [tool] = tools_of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    spec = GrammarSpec("grammar", "start: calls\n" + tool_format("pythonic", "", lambda text: False).lark([tool], 1))
    assert [ends(spec, written) for written in ("[f(a=1)]", "[f(a=true)]")] == ["whole", "refused"]
