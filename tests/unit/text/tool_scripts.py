"""What models of each family write, and what they say by that."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.text.tools.sections import DeepSeek, Kimi

ARGUMENTS = '{"a": 2, "b": [1, "x}"], "c": true, "d": "\\"é\\u00e9<tool_call>"}'
Parts = list[tuple[str, str | None, str]]


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
DS, DS_CALL, DS_SEP, DS_NEXT, DS_LAST = DeepSeek.marks
DS_F, DS_G = (f"function{DS_SEP}{name}\n```json\n{said}\n```" for name, said in (("f", ARGUMENTS), ("g", "{}")))
K, K_CALL, K_SEP, K_END, K_LAST = Kimi.marks
H = "<|channel|>"
TOOL_SCRIPTS = [
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
    Script(
        "hermes",
        '<tool_call>{"name": "\\udc00f", "arguments": "\\ud83d\\ude00 \\ud83d"}</tool_call>',
        [call("\ufffdf", '"\U0001f600 \ufffd"')],
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
    # DeepSeek
    Script(
        "deepseek_v3",
        f"Ah.{DS}{DS_CALL}{DS_F}{DS_NEXT}{DS_CALL}{DS_G}{DS_LAST}",
        [text("Ah."), call("f", ARGUMENTS), call("g", "{}")],
    ),
    Script("deepseek_v3", f"{DS_CALL}{DS_F}", [call("f", ARGUMENTS)]),
    Script("deepseek_v3", f"{DS}f", [text(f"{DS}f")]),
    Script("deepseek_v3", f"so {DS}{DS_CALL}function{DS_SEP}f\n```js", [text("so ")], is_cut=True),
    Script("deepseek_v3", f'{DS}{DS_CALL}function{DS_SEP}f\n```json\n{{"a": 1', [call("f", '{"a": 1')], is_cut=True),
    Script(
        "deepseek_v3",
        f'{DS}{DS_CALL}function{DS_SEP}f\n```json\n{{"a": 1, b}}\n```{DS_NEXT}{DS_LAST} so',
        [call("f", '{"a": 1}'), text("so")],
    ),
    Script(
        "deepseek_v31",
        f"{DS}{DS_CALL}f{DS_SEP}{ARGUMENTS}{DS_NEXT}{DS_CALL}g{DS_SEP}{{}}{DS_LAST}",
        [call("f", ARGUMENTS), call("g", "{}")],
    ),
    Script("deepseek_v31", f"{DS}{DS_CALL}f{DS_SEP}1", [text(f"{DS}{DS_CALL}f{DS_SEP}1")]),
    Script(
        "deepseek_v31",
        f"<think>x</think>{DS}{DS_CALL}new{DS_SEP}{{}}",
        [("reasoning", None, "x"), call("new", "{}")],
        thinks=True,
    ),
    # Kimi
    Script(
        "kimi_k2",
        f"Ah. {K}{K_CALL}functions.f:0{K_SEP}{ARGUMENTS}{K_END}{K_CALL}functions.look.up:12{K_SEP} {{}}{K_END}{K_LAST}",
        [text("Ah."), call("f", ARGUMENTS), call("look.up", "{}")],
    ),
    Script("kimi_k2", f"{K_CALL}g{K_SEP}{{}}{K_END} so", [call("g", "{}"), text("so")]),
    Script("kimi_k2", f'{K}{K_CALL}functions.f:0{K_SEP}{{"a": [1{K_END}{K_LAST}', [call("f", '{"a": [1]}')]),
    Script("kimi_k2", f"a < b {K_END}", [text(f"a < b {K_END}")]),
    Script("kimi_k2", f"so {K}{K_CALL}functions.f:0", [text("so ")], is_cut=True),
    # GLM
    Script(
        "glm45",
        "I look.\n<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>\na <b> \n</arg_value>\n"
        "<arg_key>i</arg_key>\n<arg_value>17</arg_value>\n"
        "</tool_call>\n<tool_call>g\n</tool_call>",
        [text("I look."), call("f", '{"t": "\\na <b> \\n", "i": 17}'), call("g", "{}")],
    ),
    Script(
        "glm45",
        "<tool_call>f<arg_key>l</arg_key><arg_value>[1]</arg_value><arg_key>n</arg_key><arg_value>null</arg_value></tool_call>",
        [call("f", '{"l": [1], "n": null}')],
    ),
    Script("glm45", "<tool_call>f<arg_key>i</arg_key>5</tool_call> so", [call("f", "{}"), text("so")]),
    Script("glm45", "<tool_call>f<arg_key>t</arg_key><arg_value>ab</arg", [call("f", '{"t": "ab"}')]),
    Script("glm45", "<tool_call>f<arg_key>t</arg_key><arg_value>ab</arg", [call("f", '{"t": "ab')], is_cut=True),
    Script("glm45", "<tool_call> is a mark, f", [text("<tool_call> is a mark, f")]),
    Script("glm45", "so <tool_call>f\n<arg", [text("so ")], is_cut=True),
    # gpt-oss
    Script(
        "gpt_oss",
        f"{H}analysis<|message|>I look.<|end|><|start|>assistant{H}commentary to=functions.f <|constrain|>json<|message|>"
        f"{ARGUMENTS}<|call|>",
        [("reasoning", None, "I look."), call("f", ARGUMENTS)],
    ),
    Script(
        "gpt_oss",
        f"{H}analysis<|message|>a<|end|><|start|>assistant{H}analysis<|message|>b<|end|>"
        f"<|start|>assistant{H}commentary<|message|>So:<|end|>"
        f"<|start|>assistant to=functions.look.up{H}commentary json<|message|>{{}}<|call|>",
        [("reasoning", None, "a\n\nb"), text("So:"), call("look.up", "{}")],
    ),
    Script("gpt_oss", f" to=functions.f{H}commentary <|constrain|>json<|message|>{{}}<|call|>", [call("f", "{}")]),
    Script("gpt_oss", f"{H}final<|message|>1 < 2 <|x|><|return|>", [text("1 < 2 <|x|>")]),
    Script("gpt_oss", f"{H}analysis<|message|>hm", [("reasoning", None, "hm")], is_cut=True),
    Script("gpt_oss", f"{H}commentary to=functions.f<|mess", [], is_cut=True),
    Script(
        "gpt_oss", f"{H}commentary to=functions.f<|message|>f(1)<|call|>", [text(f"{H}commentary to=functions.f<|message|>f(1)")]
    ),
    Script("gpt_oss", f'{H}commentary to=functions.f<|message|>{{"a": 1, b}}<|call|>', [call("f", '{"a": 1}')]),
    Script("gpt_oss", "plain, of none of these", [text("plain, of none of these")]),
]
