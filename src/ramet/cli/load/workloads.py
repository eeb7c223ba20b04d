"""What is asked of the server: programs, which are requests that depend on each other.

A program is a tree of turns. A turn adds messages to all that was said on the way to it, and is one request; the turns after it
start together once its answer is there, and see that answer. A conversation is a tree without branches.

The same seed gives the same texts on every machine: words come from a generator that is seeded by name and number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice

from ramet.cli.load.examples import Example
from ramet.errors import ConfigError

__all__ = ["SHAPES", "Message", "Shape", "Turn", "poisson_arrivals", "programs"]

Message = dict[str, str]

_WORD_LIST = (  # each is one token in the usual vocabularies
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work number night point home water room mother area money story fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea body information back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force education "
    "foot boy age policy music market sense nation plan college interest death experience effect use class control field "
    "development role effort rate heart drug show leader light voice wife police mind price report decision son view "
    "relationship town road arm difference value building action season society tax director position player record paper "
    "space ground form event matter center couple site project activity star table need court oil situation cost industry "
    "figure street image phone data picture practice piece land product doctor wall patient worker news test movie north "
    "love support technology step baby computer type attention film tree source truth page letter summer sound river window"
)
_WORDS = _WORD_LIST.split()
_SENTENCE_WORDS = 12


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: ``messages`` are added to what was said before; ``then`` follow its answer, all at once."""

    messages: tuple[Message, ...]
    then: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a program is. ``shared_tokens`` are of what the requests begin with, ``prompt_tokens`` of what each adds, both
    about (a word is taken for a token). ``turns`` are the requests of a conversation or the levels of a tree, in which each
    answer is followed by ``branches`` requests.
    """

    shared_tokens: int
    prompt_tokens: int
    turns: int
    branches: int = 1


SHAPES = {  # of each workload, unless the caller says otherwise; few-shot takes its sizes from its file
    "chat": Shape(shared_tokens=500, prompt_tokens=60, turns=5),
    "react": Shape(shared_tokens=1000, prompt_tokens=150, turns=8),
    "tree-search": Shape(shared_tokens=1000, prompt_tokens=30, turns=3, branches=3),
    "few-shot": Shape(shared_tokens=0, prompt_tokens=0, turns=1),
    "no-share": Shape(shared_tokens=0, prompt_tokens=500, turns=1),
}

_Texts = Iterator[Iterable[tuple[Message, ...]]]  # for each program, what its requests add, level by level


def programs(
    name: str, num_requests: int, seed: int, shape: Shape, examples: Sequence[Example] = (), num_shots: int = 0
) -> list[Turn]:
    """Programs of workload ``name`` that make ``num_requests`` requests in all; the last one is cut to fit.

    ``few-shot`` shows the first ``num_shots`` of ``examples`` before each of the others. Raises ``ConfigError`` where these are
    too few.
    """
    texts = _few_shot(examples, num_shots) if name == "few-shot" else _MADE_UP[name](f"{seed}/{name}", shape)
    found: list[Turn] = []
    while num_requests > 0:
        added = list(islice(next(texts), num_requests))
        found.append(_program(added, shape.branches))
        num_requests -= len(added)
    return found


def poisson_arrivals(num_programs: int, rate: float, seed: int) -> list[float]:
    """Seconds from the start at which programs arrive, ``rate`` a second in the mean, whatever the server does."""
    rng = random.Random(f"{seed}/arrivals")
    now, arrivals = 0.0, []
    for _ in range(num_programs):
        now += rng.expovariate(rate)
        arrivals.append(now)
    return arrivals


def _program(texts: Sequence[tuple[Message, ...]], branches: int) -> Turn:
    """The tree whose node i has the children ``i * branches + 1`` and on, as a heap is numbered: level by level."""
    turns: dict[int, Turn] = {}
    for node in reversed(range(len(texts))):
        first = node * branches + 1
        after = range(first, min(first + branches, len(texts)))
        turns[node] = Turn(texts[node], tuple(turns[child] for child in after))
    return turns[0]


def _chat(seed: str, shape: Shape) -> _Texts:
    """Conversations that share a system prompt."""
    system = _said("system", f"{seed}/system", shape.shared_tokens)
    for number in count():
        own = [(_said("user", f"{seed}/{number}/{turn}", shape.prompt_tokens),) for turn in range(shape.turns)]
        yield [(system, *own[0]), *own[1:]]


def _react(seed: str, shape: Shape) -> _Texts:
    """Agents that share a system prompt; each has a task, then one observation after each answer, in one growing history."""
    system = _said("system", f"{seed}/system", shape.shared_tokens)
    for number in count():
        own = [_text(f"{seed}/{number}/{turn}", shape.prompt_tokens) for turn in range(shape.turns)]
        said = [f"Task: {own[0]}", *(f"Observation {step}: {text}" for step, text in enumerate(own[1:], 1))]
        users: list[tuple[Message, ...]] = [({"role": "user", "content": text},) for text in said]
        yield [(system, *users[0]), *users[1:]]


def _tree_search(seed: str, shape: Shape) -> _Texts:
    """A long problem, then branches from each answer, level by level. Programs share nothing."""
    size = sum(shape.branches**level for level in range(shape.turns))  # may be more than anyone will ask
    for number in count():
        root = _said("system", f"{seed}/{number}/root", shape.shared_tokens)
        own = (_said("user", f"{seed}/{number}/{node}", shape.prompt_tokens) for node in range(size))
        yield ((message,) if node else (root, message) for node, message in enumerate(own))


def _no_share(seed: str, shape: Shape) -> _Texts:
    """Single prompts with nothing in common."""
    for number in count():
        yield [(_said("user", f"{seed}/{number}", shape.prompt_tokens),)]


_MADE_UP: dict[str, Callable[[str, Shape], _Texts]] = {
    "chat": _chat,
    "react": _react,
    "tree-search": _tree_search,
    "no-share": _no_share,
}


def _few_shot(examples: Sequence[Example], num_shots: int) -> _Texts:
    """The same worked examples before different questions, in the file's order and over again when it is at its end."""
    shots, asked = examples[:num_shots], examples[num_shots:]
    if not asked:
        raise ConfigError(
            f"few-shot needs a question after the {num_shots} examples that it shows; the file has {len(examples)} examples. "
            "Give a longer --file or fewer --shots"
        )
    head = "".join(f"Question: {example.question}\nAnswer: {example.answer}\n\n" for example in shots)
    for example in cycle(asked):
        yield [({"role": "user", "content": f"{head}Question: {example.question}\nAnswer:"},)]


def _said(role: str, seed: str, num_tokens: int) -> Message:
    return {"role": role, "content": _text(seed, num_tokens)}


def _text(seed: str, num_tokens: int) -> str:
    words = random.Random(seed).choices(_WORDS, k=num_tokens)
    for end in range(_SENTENCE_WORDS - 1, num_tokens, _SENTENCE_WORDS):
        words[end] = "."
    return " ".join(words).replace(" .", ".")
