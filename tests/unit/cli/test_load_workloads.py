"""What a workload asks: the same for the same seed, as many requests as wanted, shared where it says so and nowhere else."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.cli.load.examples import Example, read_examples
from ramet.cli.load.server import Asking
from ramet.cli.load.workloads import SHAPES, Message, Shape, Turn, poisson_arrivals, programs
from ramet.errors import ConfigError

SMALL = Shape(shared_tokens=40, prompt_tokens=10, turns=3)
TREE = Shape(shared_tokens=40, prompt_tokens=10, turns=3, branches=2)
EXAMPLES = [Example(f"what is {i} + {i}?", f"{2 * i}") for i in range(4)]
SHARED = os.environ.get("RAMET_SHARED") or Path(__file__).resolve().parents[4] / "shared"


def histories(program: Turn, before: tuple[Message, ...] = ()) -> list[list[Message]]:
    """The messages of every request of a program, when each answer is the word "answer"."""
    said = (*before, *program.messages)
    after = (*said, {"role": "assistant", "content": "answer"})
    return [list(said), *(history for turn in program.then for history in histories(turn, after))]


def texts(program: Turn) -> list[str]:
    return [message["content"] for history in histories(program) for message in history]


@pytest.mark.parametrize("name", SHAPES)
@given(num_requests=st.integers(1, 40), seed=st.integers(0, 3))
def test_as_many_requests_as_wanted_and_the_same_for_a_seed(name, num_requests, seed):
    shape = TREE if name == "tree-search" else SMALL
    made = programs(name, num_requests, seed, shape, EXAMPLES, 2)
    assert sum(len(histories(program)) for program in made) == num_requests
    assert made == programs(name, num_requests, seed, shape, EXAMPLES, 2)
    if name != "few-shot":
        other = programs(name, num_requests, seed + 1, shape, EXAMPLES, 2)
        assert not set(texts(made[0])) & set(texts(other[0])) - {"answer"}, "another seed shares no text"


def test_texts_are_those_of_every_machine():
    (program,) = programs("no-share", 1, 7, Shape(0, 14, 1))
    told = "baby decision class story form college girl tax story wife industry. center interest"
    assert program.messages[0]["content"] == told


def test_chat_is_conversations_that_share_a_system_prompt():
    first, second = programs("chat", 6, 0, SMALL)
    for program in (first, second):
        roles = [[message["role"] for message in history] for history in histories(program)]
        assert roles == [["system", *["user", "assistant"] * turn, "user"] for turn in range(3)]
    system, *_ = histories(first)[0]
    assert histories(second)[0][0] == system
    assert len(system["content"].replace(".", " .").split()) == 40
    own = [message["content"] for program in (first, second) for message in histories(program)[-1] if message["role"] == "user"]
    assert len(set(own)) == 6, "and nothing else"


def test_react_is_one_growing_history():
    (program,) = programs("react", 3, 0, SMALL)
    *_, last = histories(program)
    assert [message["content"].split()[0] for message in last if message["role"] == "user"] == [
        "Task:",
        "Observation",
        "Observation",
    ]
    for shorter, longer in pairwise(histories(program)):
        assert longer[: len(shorter)] == shorter


def test_tree_search_branches_from_each_answer_level_by_level():
    whole, cut = programs("tree-search", 7 + 4, 0, TREE)
    assert [len(turn.then) for turn in (whole, *whole.then)] == [2, 2, 2]
    assert [len(branch.then) for turn in whole.then for branch in turn.then] == [0, 0, 0, 0]
    assert (len(cut.then), len(cut.then[0].then), len(cut.then[1].then)) == (2, 1, 0), "cut at the end of its last level"
    assert len({str(history[0]) for history in histories(whole)}) == 1, "one root"
    assert histories(cut)[0][0] != histories(whole)[0][0], "of its own"


def test_a_tree_larger_than_anyone_can_ask_is_never_made_whole():
    (program,) = programs("tree-search", 3, 0, Shape(shared_tokens=40, prompt_tokens=10, turns=200, branches=64))
    assert len(program.then) == 2


def test_no_share_shares_nothing():
    starts = [program.messages[0]["content"].split()[:4] for program in programs("no-share", 60, 0, SMALL)]
    assert len(set(map(tuple, starts))) == 60


# --- few-shot ---


def test_few_shot_shows_the_same_examples_before_different_questions():
    made = programs("few-shot", 3, 0, SHAPES["few-shot"], EXAMPLES, 2)
    head = "Question: what is 0 + 0?\nAnswer: 0\n\nQuestion: what is 1 + 1?\nAnswer: 2\n\n"
    asked = [program.messages[0]["content"] for program in made]
    assert asked == [f"{head}Question: what is {i} + {i}?\nAnswer:" for i in (2, 3, 2)], "over again at the end of the file"


def test_few_shot_needs_a_question_after_its_examples():
    with pytest.raises(ConfigError, match="the file has 4 examples"):
        programs("few-shot", 1, 0, SHAPES["few-shot"], EXAMPLES, 4)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '{"question": "q", "answer": "a", "more": 1}\n\n{"input": "r", "target": "b"}\n', [("q", "a"), ("r", "b")]),
        ("a.txt", "one\ntwo\nthree\n\n \nfour\nfive\n", [("one\ntwo", "three"), ("four", "five")]),
        ("a.txt", "alone", [("alone", "")]),
    ],
)
def test_files_of_examples(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text, "utf-8")
    assert read_examples(tmp_path / name) == [Example(question, answer) for question, answer in expected]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"{]", "line 1, is no JSON object"),
        (b'{"question": "q", "answer": "a"}\n[1]', "line 2, is no JSON object"),
        (b'{"question": "q", "answer": 3}', r"has keys \['answer', 'question'\]; wanted are texts under question and answer"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_files_that_hold_no_examples(tmp_path, data, fault):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(ConfigError, match=fault):
        read_examples(tmp_path / "a.jsonl")


def test_gsm8k_shares_what_it_is_known_to_share():
    path = Path(SHARED) / "data" / "gsm8k" / "test.jsonl"
    if not path.exists():
        pytest.skip("the shared data is not here")
    made = programs("few-shot", 200, 0, SHAPES["few-shot"], read_examples(path), 5)
    seen: set[str] = set()
    num_reused = num_all = 0
    for program in made:
        text = program.messages[0]["content"]
        prefixes = [text[:end] for end in range(64, len(text) + 1, 64)]
        num_reused += 64 * sum(prefix in seen for prefix in prefixes)
        num_all += len(text)
        seen.update(prefixes)
    assert (round(num_all / 1e6, 2), round(num_reused / num_all, 3)) == (0.49, 0.876)


# --- as requests ---


@pytest.mark.parametrize("name", ["chat", "react", "tree-search"])
def test_a_longer_prompt_begins_with_the_shorter_one_and_its_answer(name):
    asking = Asking("tiny", "completions", 5, 1.0)
    (program,) = programs(name, 3, 0, SMALL)
    prompts = [json_of(asking, history)["prompt"] for history in histories(program)]
    for shorter, longer in pairwise(prompts):
        assert longer.startswith(f"{shorter} answer\n\nUser: ")
        assert longer.endswith("\n\nAssistant:")


def test_a_lone_message_is_the_prompt_itself():
    asking = Asking("tiny", "completions", 5, 1.0, is_eos_ignored=True)
    assert json_of(asking, [{"role": "user", "content": "Once"}]) == {
        "model": "tiny",
        "prompt": "Once",
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def json_of(asking: Asking, messages: list[Message]) -> dict[str, object]:
    return json.loads(asking.body(messages))


# --- arrivals ---


def test_arrivals_are_poisson_and_the_same_for_a_seed():
    arrivals = poisson_arrivals(4000, 8.0, 1)
    assert arrivals == poisson_arrivals(4000, 8.0, 1)
    assert arrivals[:2] != poisson_arrivals(2, 8.0, 2)
    assert poisson_arrivals(10, 8.0, 1) == arrivals[:10]
    gaps = [after - before for before, after in pairwise([0.0, *arrivals])]
    mean = sum(gaps) / len(gaps)
    assert min(gaps) > 0
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert sum(gap**2 for gap in gaps) / len(gaps) == pytest.approx(2 * mean**2, rel=0.1), "as spread as an exponential"
