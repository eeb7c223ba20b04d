"""Makes ``templates.json``: chat templates, requests, and the prompts that ``transformers`` renders from them.

Run in an environment with transformers (5.24 made the present file): ``python tests/golden/templates.py``.
"""

import json
from datetime import datetime
from pathlib import Path

from template_sources import TEMPLATES
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'weather of a <place>\n& "now"',
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Straße, 東京"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "more": {"type": "object", "additionalProperties": {"type": "number"}},
                    "any": {"type": ["string", "null"]},
                },
                "required": ["place"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "the time", "parameters": {"type": "object", "properties": {}}},
    },
]
HELLO = [{"role": "user", "content": "Hello <b>&amp; 'you'</b>  "}]
SYSTEM = [{"role": "system", "content": " Be brief. "}, *HELLO]
TURNS = [
    *SYSTEM,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n Hi!\n"},
    {"role": "user", "content": "한국어 🌶\n\nand?"},
]
CALLS = [
    *HELLO,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2]}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"deg": -1.5}'},
]
THOUGHT = [*HELLO, {"role": "assistant", "content": "Yes.", "reasoning_content": "\nlet me see\n"}]
TWO_USERS = [*HELLO, *HELLO]
OPEN = [*HELLO, {"role": "assistant", "content": "The answer is "}]

REQUESTS = [
    {"messages": HELLO},
    {"messages": SYSTEM},
    {"messages": TURNS, "add_generation_prompt": False},
    {"messages": HELLO, "tools": TOOLS},
    {"messages": SYSTEM, "tools": TOOLS},
    {"messages": CALLS, "tools": TOOLS},
    {"messages": THOUGHT, "add_generation_prompt": False},
    {"messages": TWO_USERS},
    {"messages": OPEN, "add_generation_prompt": False, "continue_final_message": True},
    {"messages": HELLO, "variables": {"enable_thinking": False, "date_string": "2 Feb 2002"}},
    {"messages": HELLO, "variables": {"documents": [{"title": "A", "text": "a"}, {"title": "B", "text": "b"}]}},
]


class _FixedDay(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 7, 4, 12, 30)


def main() -> None:
    chat_template_utils.datetime = _FixedDay
    cases = []
    for name, template in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>", chat_template=template
        )
        for request in REQUESTS:
            case = {"template": name, "request": request}
            rest = {key: value for key, value in request.items() if key not in ("messages", "variables")}
            options = {"add_generation_prompt": True, **rest, **request.get("variables", {})}
            try:
                case["expected"] = tokenizer.apply_chat_template(request["messages"], tokenize=False, **options)
            except Exception as error:
                case["error"] = str(error)
            cases.append(case)
    golden = {"templates": TEMPLATES, "cases": cases}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
