"""Chat templates: the prompts of transformers, the rules for messages, and requests that are refused."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from set_clocks import Seconds

from ramet.errors import InvalidRequest, ModelError
from ramet.text.chat import ChatTemplate, check_variables
from ramet.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
GOLDEN = json.loads((ROOT / "tests/golden/templates.json").read_text(encoding="utf-8"))
TEMPLATES: dict[str, str] = GOLDEN["templates"]
WITHOUT_TOOLS = {"demo", "gemma", "phi", "olmo", "mixtral"}
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}" + (
    "{{ c.function.arguments.items() | list }}){% endfor %}{% endfor %}"
)


def template(source: Any = PLAIN, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", clock=Seconds(), **options)


def say(text: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def call(arguments: Any = "{}", name: Any = "f") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


# --- against transformers


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=[f"{c['template']}-{i}" for i, c in enumerate(GOLDEN["cases"])])
def test_prompts_are_those_of_transformers(case: dict[str, Any]) -> None:
    request = dict(case["request"])
    variables = request.pop("variables", {})
    chat = template(TEMPLATES[case["template"]], strftime_now=datetime(2026, 7, 4).strftime)
    if case["template"] in WITHOUT_TOOLS and request.get("tools"):
        with pytest.raises(InvalidRequest, match="no place for tools"):  # transformers renders as if none had been given
            chat.render(**request, **variables)
    elif "expected" in case:
        assert chat.render(**request, **variables) == case["expected"]
    else:
        with pytest.raises(InvalidRequest) as raised:
            chat.render(**request, **variables)
        assert case["error"] in str(raised.value)


def test_goldens_are_of_both_kinds() -> None:
    assert sum("expected" in case for case in GOLDEN["cases"]) >= 110
    assert any("error" in case for case in GOLDEN["cases"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a":  1}', '{"a":  1}'), ({"a": "한"}, '{"a": "한"}'), ("", "{}"), (" ", "{}")],
)
def test_arguments_that_a_template_adds_to_a_text_stay_text(arguments: Any, text: str) -> None:
    """As DeepSeek's do; to transformers one gives them as text, too."""
    adds = "{% for m in messages %}{% set c = m.tool_calls[0] %}{{ c['type'] + ' ' + c['function']['arguments'] }}{% endfor %}"
    calls = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    assert template(adds).render([calls]) == f"function {text}"
    with pytest.raises(InvalidRequest, match="not JSON"):
        template(adds).render([calls | {"tool_calls": [call("{")]}])


@pytest.mark.parametrize("name", ["no_tools", "get_weather_no_system_prompt", "parallel_calls", "several_calls"])
def test_prompts_are_those_of_mistral(shared: Path, name: str) -> None:
    """Requests as they come over the wire: arguments as JSON text, content null. (Two samples more put two system messages
    together, which their templates do not.)
    """
    folder = shared / "tokenizers/mistral/samples" / name
    sample = json.loads((folder / "sample.json").read_text())
    expected = (folder / "text_v3.txt").read_text().replace("▁", " ")
    assert template(TEMPLATES["mistral"]).render(sample["messages"], sample["tools"]) == expected


def test_the_demo_models_template_and_tokenizer(demo_metadata: dict[str, object], demo: Tokenizer) -> None:
    assert demo_metadata["tokenizer.chat_template"] == TEMPLATES["demo"]
    chat = ChatTemplate(TEMPLATES["demo"], demo.bos_token, demo.eos_token, clock=Seconds())
    ids = demo.encode_chat(chat.render([say("hi")]))
    assert ids[:2] == [1, 9690]
    assert ids[-4:] == demo.encode("<|im_start|>assistant\n")
    assert ids.count(1) == 3


# --- templates


def test_no_template_is_told_and_none_is_guessed() -> None:
    with pytest.raises(InvalidRequest, match="none is guessed"):
        template(None).render([say("hi")])


def test_named_templates() -> None:
    chat = template({"default": "D", "tool_use": "T{{ tools|length }}"})
    assert chat.render([say("a")]) == "D"
    assert chat.render([say("a")], []) == "D"
    assert chat.render([say("a")], [{"type": "function"}]) == "T1"


def test_named_templates_without_a_default() -> None:
    assert template({"tool_use": "T{{ tools|length }}"}).render([say("a")], [{}]) == "T1"
    with pytest.raises(InvalidRequest, match="none by default"):
        template({"tool_use": "T"}).render([say("a")])


@pytest.mark.parametrize("source", ["{% if %}", "{{ x|nope }}", "{{ '", "{% for %}", {"tool_use": "{% if %}"}])
def test_bad_templates_are_model_errors(source: Any) -> None:
    with pytest.raises(ModelError, match="template"):
        template(source)


def test_tokens_and_time_are_absent_where_they_are_not_given() -> None:
    source = "{{ bos_token is defined }} {{ eos_token }} {{ strftime_now is defined }}"
    assert ChatTemplate(source, clock=Seconds()).render([say("a")]) == "False  False"
    assert template(source, strftime_now=lambda form: form).render([say("a")]) == "True </s> True"


def test_the_templates_own_refusal_is_passed_on() -> None:
    with pytest.raises(InvalidRequest, match="refuses these messages: no cats, please"):
        template("{{ raise_exception('no cats, please') }}").render([say("a")])


# --- messages


def test_b140_parts_null_and_empty_content() -> None:
    two = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat = template()
    assert chat.render([say(two)]) == chat.render([say("one\ntwo")]) == "[user]one\ntwo"
    for nothing in ([], None):
        turn = say(nothing, "assistant", tool_calls=[call()])
        assert chat.render([say("a"), turn]) == "[user]a[assistant](f[])"
    without = {"role": "assistant", "tool_calls": [call()]}
    assert chat.render([say("a"), without]) == "[user]a[assistant](f[])"
    result = say([{"type": "text", "text": "22"}], "tool", tool_call_id="1")
    assert chat.render([say("a"), without, result]) == "[user]a[assistant](f[])[tool]22"
    assert template(TEMPLATES["demo"]).render([say("a"), without, result]).count("22<|im_end|>") == 1


def test_null_content_is_none_only_for_templates_that_ask() -> None:
    asking = (
        "{% for m in messages %}{% if m['content'] is none %}nothing{% else %}{{ m['content'] + '!' }}{% endif %}{% endfor %}"
    )
    assert template(asking).render([say(None, "assistant")]) == "nothing"
    assert template("{{ messages[0].content + '!' }}").render([say(None, "assistant")]) == "!"


def test_developer_is_system_for_templates_that_do_not_know_it() -> None:
    assert template().render([say("a", "developer")]) == "[system]a"
    knowing = PLAIN + "{% if messages[0].role == 'developer' %}!{% endif %}"
    assert template(knowing).render([say("a", "developer")]) == "[developer]a!"


def test_arguments_are_objects_for_the_template() -> None:
    for arguments in ('{"a": [1, 2.5]}', {"a": [1, 2.5]}):
        assert template().render([say("", "assistant", tool_calls=[call(arguments)])]) == "[assistant](f[('a', [1, 2.5])])"
    assert template().render([say("", "assistant", tool_calls=[call("")])]) == "[assistant](f[])"


def test_nothing_of_the_callers_is_changed() -> None:
    messages = [say([{"type": "text", "text": "a"}]), say(None, "assistant", tool_calls=[call('{"x": 1}')], name=None)]
    before = json.dumps(messages)
    template().render(messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        ([say("a"), "b"], "messages[1]"),
        ([{"content": "a"}], "messages[0].role"),
        ([say("a", role=3)], "messages[0].role"),  # type: ignore[arg-type]
        ([say(3)], "messages[0].content"),
        ([say(None)], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([say([])], "messages[0].content"),
        ([say(["a"])], "messages[0].content[0]"),
        ([say([{"type": "image_url", "image_url": {"url": "x"}}])], "messages[0].content[0] is 'image_url'"),
        ([say([{"type": "text"}])], "messages[0].content[0].text"),
        ([say("", "assistant", tool_calls="f")], "messages[0].tool_calls"),
        ([say("", "assistant", tool_calls=[3])], "messages[0].tool_calls[0]"),
        ([say("", "assistant", tool_calls=[call(name=None)])], "messages[0].tool_calls[0]"),
        ([say("", "assistant", tool_calls=[call("{")])], "messages[0].tool_calls[0].function.arguments is not JSON"),
        ([say("", "assistant", tool_calls=[call("[1]")])], "messages[0].tool_calls[0].function.arguments"),
        ([say("", "assistant", tool_calls=[call('{"a": NaN}')])], "messages[0].tool_calls[0].function.arguments"),
        ([say("", "assistant", tool_calls=[call("[" * 100_000)])], "messages[0].tool_calls[0].function.arguments"),
        ([say("a", extra=object())], "messages[0].extra"),
        ([say("a", extra=float("inf"))], "messages[0].extra"),
        ([say("a", extra={1: 2})], "messages[0].extra"),
    ],
)
def test_bad_messages_are_named(messages: Any, where: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        template().render(messages)
    assert where in str(raised.value)


def test_deep_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="levels deep"):
        template().render([say("a", extra=deep)])


@pytest.mark.parametrize(
    ("messages", "tools", "variables"),
    [
        ([say("a\ud83d")], None, {}),
        ([say([{"type": "text", "text": "\udc00"}])], None, {}),
        ([say("", "assistant", tool_calls=[call('{"a": "\\ud83d"}')])], None, {}),
        ([say("a")], [{"type": "function", "function": {"name": "\ud83d"}}], {}),
        ([say("a")], [{"\ud83d": 1}], {}),
        ([say("a")], None, {"note": "\ud83d"}),
    ],
)
def test_b157_lone_surrogates_are_refused(messages: Any, tools: Any, variables: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        template().render(messages, tools, **variables)


def test_tools_are_told_where_that_is_wanted_and_the_template_has_no_place() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(InvalidRequest, match="no place for tools"):
        template().render([say("hi")], tools)
    told = template().render([say("hi")], tools, tells_tools=True)
    assert told.startswith("[system]You can call")
    assert told.endswith('{"name": "f"}[user]hi')
    for system in (say("be kind", "system"), say([{"type": "text", "text": "be kind"}], "system"), say("be kind", "developer")):
        joined = template().render([system, say("hi")], tools, tells_tools=True)
        assert joined == told.replace("[system]", "[system]be kind\n\n")
    knowing = template("{% if tools %}!{% endif %}" + PLAIN)
    assert knowing.render([say("hi")], tools, tells_tools=True) == "![user]hi"
    with pytest.raises(InvalidRequest) as raised:  # places are those of the request, without the message that was put before
        template().render([say("a"), say("", "assistant", tool_calls=[call("{")])], tools, tells_tools=True)
    assert "messages[1]." in str(raised.value)
    with pytest.raises(InvalidRequest) as raised:
        template().render(
            [say("a"), say("", "assistant")], tools, add_generation_prompt=False, continue_final_message=True, tells_tools=True
        )
    assert "messages[1]." in str(raised.value)


@pytest.mark.parametrize("tools", ["f", 3, ["f"], {"a": 1}])
def test_bad_tools_are_named(tools: Any) -> None:
    with pytest.raises(InvalidRequest, match="tools"):
        template().render([say("a")], tools)


# --- variables and continuing


@pytest.mark.parametrize(
    "variables",
    [
        {"chat_template": "x"},
        {"messages": []},
        {"tools": []},
        {"bos_token": "x"},
        {"tells_tools": True},
        {"_x": 1},
        {"a b": 1},
        {"x": object()},
        [],
        "x",
    ],
)
def test_a_request_may_not_bring_a_template_or_the_models_own(variables: Any) -> None:
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        check_variables(variables)


def test_variables_reach_the_template() -> None:
    assert check_variables(None) == {}
    assert template("{{ a }}{{ documents }}").render([say("x")], **check_variables({"a": [1]})) == "[1]None"
    with pytest.raises(InvalidRequest, match="chat_template"):
        template().render([say("x")], chat_template="{{ 1 }}")


def test_continue_final_message() -> None:
    chat = template("{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</{{ m.role }}>{% endfor %}")
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert chat.render([say("a"), say("so ", "assistant")], **options) == "<user>a</user><assistant>so"
    with pytest.raises(InvalidRequest, match="exclude"):
        chat.render([say("a"), say("so", "assistant")], continue_final_message=True)
    with pytest.raises(InvalidRequest, match="nothing to continue"):
        chat.render([say("a"), say("", "assistant")], **options)
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        template("{{ messages[0].content }}").render([say("a"), say("so", "assistant")], **options)
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        template("{{ messages[0].content[2:] }}").render([say("so", "assistant")], **options)
