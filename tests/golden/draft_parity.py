"""What drafts change, of answers nothing and of steps much: ``python tests/golden/draft_parity.py [NUMBER_OF_DOCUMENTS]``.

Asks the demo model for documents of 41 schemas, every other one greedy and the rest seeded (500 unless a number is named):
without drafts, with jump-forward, and with n-grams beside it. Then for texts that copy their prompt and for free ones, without
n-grams and with them, in turn. Prints how many drafts were made and held, what share of the tokens they are, steps and speed.
Exits 1 where an answer differs. Takes four minutes on two cores.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("", "e2e", "unit/structured")]

from byte_grammars import COMPILER  # noqa: E402
from test_random_schemas import schema  # noqa: E402
from test_structured import PERSON  # noqa: E402

from ramet import LLM, GrammarError, SamplingParams  # noqa: E402
from ramet.core.grammar import GrammarSpec  # noqa: E402

WAYS: dict[str, dict[str, Any]] = {
    "no drafts": {"jump_forward": "off"},
    "jump-forward": {},
    "n-grams": {"jump_forward": "off", "speculative": "ngram"},
    "both": {"speculative": "ngram"},
}
NUM_SCHEMAS, NUM_TEXTS = 40, 12
WORDS = ["the", "ship", "left", "at", "noon", "with", "nine", "crates", "of", "tea", "two", "men", "a", "dog", "an", "old", "map"]

Asked = tuple[list[str], list[SamplingParams]]
Result = tuple[Any, ...]


class Told(NamedTuple):
    answers: list[Result]
    num_steps: int
    num_drafts: int
    num_held: int
    seconds: float

    def line(self, way: str) -> str:
        tokens = sum(len(answer[0]) for answer in self.answers)
        share = self.num_held / max(1, self.num_drafts)
        return (
            f"  {way:13} {tokens:7,} tokens {self.num_steps:6,} steps   {self.num_held:6,} of {self.num_drafts:6,} drafts held "
            f"({share:.2f}), {self.num_held / tokens:.2f} of all tokens   {tokens / self.seconds:5.0f} tok/s"
        )


def main() -> int:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    copied = texts(lambda said: f"Repeat this text twice.\n{said}\n{said}\n")
    free = texts(lambda said: f"Write a story about {said}\n")
    num_differ = compared(f"{number} documents, 16 streams", documents(number), ["no drafts", "jump-forward", "both"], 16)
    num_differ += compared("texts that copy, 1 stream", copied, ["no drafts", "n-grams"] * 2, 1)
    num_differ += compared("free texts, 1 stream", free, ["no drafts", "n-grams"] * 2, 1)
    return int(num_differ > 0)


def compared(title: str, asked: Asked, ways: list[str], num_streams: int) -> int:
    """How many answers of the other ways are not the first one's."""
    print(title, flush=True)
    first, *others = (tell(way, asked, num_streams).answers for way in ways)
    differ = [i for other in others for i, pair in enumerate(zip(first, other, strict=True)) if pair[0] != pair[1]]
    print(f"  {len(differ)} differ {differ[:9] or ''}", flush=True)
    return len(differ)


def documents(number: int) -> Asked:
    rng = random.Random(0)
    schemas: list[Any] = [PERSON]
    while len(schemas) <= NUM_SCHEMAS:
        one = schema(rng, 2)
        with suppress(GrammarError):
            COMPILER.check(GrammarSpec("json", json.dumps(one)))
            schemas.append(one)
    params = [
        SamplingParams(max_tokens=120, structured_outputs={"json": schemas[i % len(schemas)]}, **manner(i)) for i in range(number)
    ]
    return [f"Document {i} as JSON.\n" for i in range(number)], params


def texts(prompt: Callable[[str], str]) -> Asked:
    rng = random.Random(1)
    prompts = [prompt(" ".join(rng.choices(WORDS, k=40)) + ".") for _ in range(NUM_TEXTS)]
    return prompts, [SamplingParams(max_tokens=64, **manner(i)) for i in range(NUM_TEXTS)]


def manner(i: int) -> dict[str, Any]:
    return {"temperature": 0} if i % 2 else {"temperature": 0.8, "seed": i}


def tell(way: str, asked: Asked, num_streams: int) -> Told:
    """The answers of an engine of its own, and what they took; its line is printed."""
    with LLM(kv_cache_memory="256MiB", max_running_seqs=num_streams, **WAYS[way]) as llm:
        began_s = time.monotonic()
        outputs = llm.generate(*asked)
        seconds = time.monotonic() - began_s
        stats = llm._engine.stats().scheduler
    answers = [(out.outputs[0].token_ids, out.outputs[0].finish_reason, out.outputs[0].text) for out in outputs]
    told = Told(answers, stats.num_steps, stats.num_draft_tokens, stats.num_accepted_draft_tokens, seconds)
    print(told.line(way), flush=True)
    return told


if __name__ == "__main__":
    sys.exit(main())
