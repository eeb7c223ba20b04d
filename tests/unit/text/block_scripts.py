"""What models write whose calls stand between marks of their family, and what they say by that."""

from __future__ import annotations

from tool_scripts import ARGUMENTS, F, G, Script, call, text

DSML = "\uff5cDSML\uff5c"
DSML_CALL = f'<{DSML}invoke name="f">'
BLOCK_SCRIPTS = [
    # LFM2
    Script(
        "lfm2",
        "I look.\n<|tool_call_start|>[f(a=1, b='x', c={\"k\": [true, None]}), g()]<|tool_call_end|> Wait.",
        [text("I look."), call("f", '{"a": 1, "b": "x", "c": {"k": [true, null]}}'), call("g", "{}"), text("Wait.")],
    ),
    Script("lfm2", f"<|tool_call_start|>[{F}, {G}]<|tool_call_end|>", [call("f", ARGUMENTS), call("g", "{}")]),
    Script("lfm2", f"<|tool_call_start|>{F}<|tool_call_end|>", [call("f", ARGUMENTS)]),
    Script("lfm2", "<|tool_call_start|>new(a='<|tool_call_end|>')<|tool_call_end|>", [call("new", '{"a": "<|tool_call_end|>"}')]),
    Script("lfm2", "[f(a=1)] <|tool_call_start|>[1]", [text("[f(a=1)] <|tool_call_start|>[1]")]),
    Script("lfm2", "<|tool_call_start|>[f(a=1, b=x), g()]<|tool_call_end|>so", [call("f", '{"a": 1}'), text("so")]),
    Script("lfm2", "so <|tool_call_start|>[f(", [text("so"), call("f", "")], is_cut=True),
    Script("lfm2", "so <|tool_call_start|>[look", [text("so ")], is_cut=True),
    Script(
        "lfm2",
        "<think>hm</think><|tool_call_start|>[g()]<|tool_call_end|>",
        [("reasoning", None, "hm"), call("g", "{}")],
        thinks=True,
    ),
    # Hunyuan, Jamba
    Script(
        "hunyuan_a13b",
        f"<think>\nhm\n</think>\n<tool_calls>[{F}, {G}]</tool_calls>",
        [("reasoning", None, "hm"), call("f", ARGUMENTS), call("g", "{}")],
        thinks=True,
    ),
    Script(
        "hunyuan_a13b",
        f" I look.<tool_calls>[\n    {F},\n    {G}\n]</tool_calls>\n",
        [text(" I look."), call("f", ARGUMENTS), call("g", "{}")],
    ),
    Script("hunyuan_a13b", '<tool_calls>[{"name": "new"}] so', [call("new", "{}"), text("so")]),
    Script("hunyuan_a13b", "<tool_calls>[f()]</tool_calls>", [text("<tool_calls>[f()]</tool_calls>")]),
    Script("hunyuan_a13b", "<tool_calls>f", [text("<tool_calls>f")]),
    Script("hunyuan_a13b", '<tool_calls>[{"name": "f", "arguments": {"a": [1', [call("f", '{"a": [1')], is_cut=True),
    Script(
        "hunyuan_a13b",
        '<tool_calls>[{"name": "f", "arguments": {"a": 1, b}}]</tool_calls>.',
        [call("f", '{"a": 1}'), text(".")],
    ),
    Script(
        "hunyuan_a13b",  # as MiniMax M1 writes it
        '<tool_calls>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "new", "arguments": {}}\n</tool_calls>so',
        [call("f", '{"a": 1}'), call("new", "{}"), text("so")],
    ),
    Script("hunyuan_a13b", f"<tool_calls>[{G} {G}\n{{no", [call("g", "{}"), call("g", "{}"), text("{no")]),
    # OLMo 3
    Script(
        "olmo3",
        'Ah.\n<function_calls>f(a="x\n", b=true)\nlook.up()\ng(a=[1, None])</function_calls>',
        [text("Ah."), call("f", '{"a": "x\\n", "b": true}'), call("look.up", "{}"), call("g", '{"a": [1, null]}')],
    ),
    Script("olmo3", "<function_calls>\n[f(a=1), g()]\n</function_calls>", [call("f", '{"a": 1}'), call("g", "{}")]),
    Script("olmo3", "<function_calls>f(a=1), g() so", [call("f", '{"a": 1}'), call("g", "{}"), text("so")]),
    Script("olmo3", "<function_calls>f(a=1)\ng()]</function_calls>", [call("f", '{"a": 1}'), call("g", "{}")]),
    Script("olmo3", "<function_calls>ns/f:1(a=1)\nns/g:2()</function_calls>", [call("ns/f:1", '{"a": 1}'), call("ns/g:2", "{}")]),
    Script("olmo3", "<function_calls>f(a=b)", [text("<function_calls>f(a=b)")]),
    Script("olmo3", "<function_calls>f(a=1)\ng", [call("f", '{"a": 1}')], is_cut=True),
    Script("olmo3", f"<function_calls>[{F}]</function_calls>", [call("f", ARGUMENTS)]),
    # InternLM
    Script(
        "internlm",
        'Sure.<|action_start|><|plugin|>\n{"name": "f", "parameters": {"a": 1}}<|action_end|>\n',
        [text("Sure."), call("f", '{"a": 1}')],
    ),
    Script(
        "internlm",
        f"<|action_start|> <|plugin|>{F}<|action_end|><|action_start|><|plugin|>{G}",
        [call("f", ARGUMENTS), call("g", "{}")],
    ),
    Script("internlm", "<|action_start|><|interpreter|>\n1", [text("<|action_start|><|interpreter|>\n1")]),
    Script("internlm", "<|action_start|> f", [text("<|action_start|> f")]),
    Script("internlm", "<|action_start|><|plug", [], is_cut=True),
    Script("internlm", '<|action_start|><|plugin|>{"name": "f", "para', [call("f", "")], is_cut=True),
    # Seed-OSS
    Script(
        "seed_oss",
        "I look.\n<seed:tool_call>\n<function=f>\n<parameter=t>a <b>\n</parameter>\n<parameter=i>17</parameter>\n</function>\n"
        "</seed:tool_call>\n<seed:tool_call><function=new></function></seed:tool_call>",
        [text("I look."), call("f", '{"t": "a <b>\\n", "i": 17}'), call("new", "{}")],
    ),
    Script("seed_oss", "<function=f>\n<parameter=l>[1]</parameter></seed:tool_call>.", [call("f", '{"l": [1]}'), text(".")]),
    Script(
        "seed_oss",
        "<seed:think>hm <think></seed:think>\n<function=g></function>",
        [("reasoning", None, "hm <think>"), call("g", "{}")],
        thinks=True,
    ),
    Script("seed_oss", "<tool_call><function=new></function>", [text("<tool_call><function=new></function>")]),
    Script("seed_oss", "<seed:tool_call><function=f><parameter=t>ab</para", [call("f", '{"t": "ab')], is_cut=True),
    # MiniMax
    Script(
        "minimax_m2",
        'hm\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="t">a <b>\n</parameter>\n'
        '<parameter name="l">[1, {"a": "<"}]</parameter>\n<parameter name="n">null</parameter>\n</invoke>\n'
        '<invoke name="new">\n</invoke>\n</minimax:tool_call>\n',
        [
            ("reasoning", None, "hm"),
            text("I look."),
            call("f", '{"t": "a <b>\\n", "l": [1, {"a": "<"}], "n": null}'),
            call("new", "{}"),
        ],
        thinks=True,
        opening="<think>\n",
    ),
    Script(
        "minimax_m2",
        '<invoke name="f"><parameter name="l">\n[ "</parameter>", {"a":"</invoke>"} ]\n</parameter>'
        '<parameter name="any">{"a": True,}</parameter>\n<parameter name="i">["</parameter>\n'
        '<parameter name="b">[1, "a</parameter></invoke>',
        [
            call(
                "f",
                '{"l": [ "</parameter>", {"a":"</invoke>"} ], "any": {"a": true}, "i": "[\\"", "b": "[1, \\"a"}',
            )
        ],
    ),
    Script("minimax_m2", '<invoke name="f"><parameter name="l">["</parameter>', [call("f", "")], is_cut=True),
    Script("minimax_m2", '<invoke name="g"></invoke> so', [call("g", "{}"), text("so")]),
    Script("minimax_m2", '<invoke name="new"></invoke>', [text('<invoke name="new"></invoke>')]),
    Script(
        "minimax_m2",
        '<minimax:tool_call><invoke name="g"></minimax:tool_call><invoke name="new"></invoke>',
        [call("g", "{}"), text('<invoke name="new"></invoke>')],
    ),
    Script(
        "minimax_m2",
        '<minimax:tool_call><invoke name="new">{}</invoke><invoke name="newer">{"a": 1}</invoke></minimax:tool_call>'
        '<invoke name="new">{}</invoke>',
        [call("new", "{}"), call("newer", '{"a": 1}'), text('<invoke name="new">{}</invoke>')],
    ),
    Script("minimax_m2", '<minimax:tool_call>{"name": "f"}', [text('<minimax:tool_call>{"name": "f"}')]),
    Script("minimax_m2", '<minimax:tool_call><invoke name="f">{"a": [1]}</invoke>.', [call("f", '{"a": [1]}'), text(".")]),
    Script(
        "minimax_m2",
        '<minimax:tool_call><invoke name="f">{a}</invoke>',
        [text('<minimax:tool_call><invoke name="f">{a}</invoke>')],
    ),
    Script("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="i">1', [call("f", "")], is_cut=True),
    Script("minimax_m2", '<minimax:tool_call><invoke name="f', [], is_cut=True),
    Script("minimax_m2", '<minimax:tool_call><invoke name="f" x="1">', [text('<minimax:tool_call><invoke name="f" x="1">')]),
    # DeepSeek from V3.2 on
    Script(
        "deepseek_v32",
        f"hm</think>Ah.\n\n<{DSML}function_calls>\n{DSML_CALL}\n"
        f'<{DSML}parameter name="i" string="true">17 </b></{DSML}parameter>\n'
        f'<{DSML}parameter name="t" string="false">[1]</{DSML}parameter>\n<{DSML}parameter name="b">true</{DSML}parameter>\n'
        f'<{DSML}parameter name="any" string="false">no</{DSML}parameter>\n</{DSML}invoke>\n<{DSML}invoke name="new">\n'
        f"</{DSML}invoke>\n</{DSML}function_calls>",
        [
            ("reasoning", None, "hm"),
            text("Ah."),
            call("f", '{"i": "17 </b>", "t": [1], "b": true, "any": "no"}'),
            call("new", "{}"),
        ],
        thinks=True,
        opening="<think>",
    ),
    Script("deepseek_v32", f"{DSML_CALL}\n{ARGUMENTS}\n</{DSML}invoke> so", [call("f", ARGUMENTS), text("so")]),
    Script(
        "deepseek_v32",
        f"<{DSML}function_calls>f</{DSML}function_calls>",
        [text(f"<{DSML}function_calls>f</{DSML}function_calls>")],
    ),
    Script(
        "deepseek_v32",
        f'{DSML_CALL}<{DSML}parameter name="t" string="true">ab</{DSML}par',
        [call("f", '{"t": "ab')],
        is_cut=True,
    ),
    Script(
        "deepseek_v32",
        f'{DSML_CALL}<{DSML}parameter name="t" string="true">a</{DSML}parameter>?</{DSML}function_calls>.',
        [call("f", '{"t": "a"}'), text(".")],
    ),
    Script("deepseek_v32", f'{DSML_CALL}<{DSML}parameter name="t" string="tr', [call("f", "")], is_cut=True),
    Script(
        "deepseek_v4",
        f'<{DSML}tool_calls>\n{DSML_CALL}\n<{DSML}parameter name="t" string="true">a\nb</{DSML}parameter>\n</{DSML}invoke>\n'
        f"</{DSML}tool_calls>",
        [call("f", '{"t": "a\\nb"}')],
    ),
    Script("deepseek_v4", f"{DSML_CALL}</{DSML}invoke><{DSML}invoke", [call("f", "{}")], is_cut=True),
    # Gemma
    Script(
        "gemma4",
        "<|channel>thought\nhm <b>\n<channel|>Ah. "
        '<|tool_call>call:f{a:1,t:<|"|>"x" \\ {<b>\n<|"|>,l:[<|"|>y<|"|>,{k-1:true,<|"|>k 2<|"|>:None}],e:{}}<tool_call|>'
        "<|tool_call>call:look.up{}<tool_call|>",
        [
            ("reasoning", None, "hm <b>"),
            text("Ah."),
            call("f", '{"a":1,"t":"\\"x\\" \\\\ {<b>\\n","l":["y",{"k-1":true,"k 2":null}],"e":{}}'),
            call("look.up", "{}"),
        ],
        thinks=True,
    ),
    Script("gemma4", f"<|tool_call>call: new {ARGUMENTS}<tool_call|> so", [call("new", ARGUMENTS), text("so")]),
    Script("gemma4", "<|channel>x<channel|>", [text("<|channel>x<channel|>")], thinks=True),
    Script("gemma4", "call:f{a:1} <|tool_call>f{a:1}", [text("call:f{a:1} <|tool_call>f{a:1}")]),
    Script("gemma4", "<|tool_call>call:f{a:1,b:x}<tool_call|>so", [call("f", '{"a":1}'), text("so")]),
    Script(
        "gemma4",
        '<|tool_call>call:f{@id:1, a key\\ :{X-é:<|"|>x<|"|>}}<tool_call|>',
        [call("f", '{"@id":1, "a key\\\\":{"X-é":"x"}}')],
    ),
    Script("gemma4", "<|tool_call>call:f{ :1}", [text("<|tool_call>call:f{ :1}")]),
    Script("gemma4", "<|tool_call>call:f{<|b:1}<tool_call|>", [text("<|tool_call>call:f{<|b:1}<tool_call|>")]),
    Script("gemma4", '<|tool_call>call:f{a:<|"|>ab<|"', [call("f", '{"a":"ab')], is_cut=True),
    Script("gemma4", '<|tool_call>call:f{a:<|"|>ab<|"', [call("f", '{"a":"ab"}')]),
    Script("gemma4", '<|tool_call>call:f{<|b<|"|>:1}', [text('<|tool_call>call:f{<|b<|"|>:1}')]),
    Script("gemma4", "so <|tool_call>call:f{a", [text("so"), call("f", "")], is_cut=True),
    Script("gemma4", "so <|tool_call>call:f", [text("so ")], is_cut=True),
    Script(
        "functiongemma",
        "<start_function_call>call:f{t:<escape>London, <UK><escape>,i:3}<end_function_call><start_function_call>call:g{}",
        [call("f", '{"t":"London, <UK>","i":3}'), call("g", "{}")],
    ),
    Script("functiongemma", "<start_function_call>call:f{t:<escape>a<esc", [call("f", '{"t":"a')], is_cut=True),
]
