"""Whatever path a model takes under the masks of a schema, it gets to an end, and what it wrote is valid."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from byte_grammars import EOS, EXTRA_EOS, allowed, matcher

from ramet.core.ports import Matcher
from ramet.errors import GrammarError

PATTERNS = ["^[a-c]+$", "x", "^a", "b$", "^(ab|c){1,3}$", r"^\d{1,3}$", r"\.", "^[^a-z]*$", r"^\w\s\S$"]
VALUES: list[Any] = [1, "a", None, True, 2.5, [1], {"a": 1}, "é", '"', {"b": [None]}, []]
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NAMES = ["a", "b", "ab", "c d", "é", 'q"']
CLOSING = set(b'"}],:')


def number(rng: random.Random) -> Any:
    schema: dict[str, Any] = {"type": rng.choice(["integer", "number"])}
    schema |= {key: rng.choice([0, 1, -1, 2.5, 0.1, 100, -7, 12, 3.75, 1e3]) for key in BOUNDS if rng.random() < 0.3}
    return schema | ({"multipleOf": rng.choice([2, 0.5, 0.25, 3])} if rng.random() < 0.2 else {})


def string(rng: random.Random) -> Any:
    schema: dict[str, Any] = {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 9)}
    return schema | ({"pattern": rng.choice(PATTERNS)} if rng.random() < 0.4 else {})


def plain(rng: random.Random) -> Any:
    return rng.choice(
        [{"type": ["null", "integer"]}, {"type": "boolean"}, {"const": rng.choice(VALUES)}, {"enum": rng.sample(VALUES, 3)}]
    )


def thing(rng: random.Random, depth: int) -> Any:
    names = rng.sample(NAMES, rng.randrange(4))
    properties = {name: schema(rng, depth - 1) for name in names}
    required = [name for name in names if rng.random() < 0.6]
    others = rng.choice(
        [{"additionalProperties": False}, {"additionalProperties": schema(rng, depth - 1)}, {"maxProperties": len(names)}, {}]
    )
    return {"type": "object", "properties": properties, "required": required, **others}


def items(rng: random.Random, depth: int) -> Any:
    first = {"prefixItems": [schema(rng, depth - 1)]} if rng.random() < 0.4 else {}
    return {
        "type": "array",
        "minItems": rng.randrange(2),
        "maxItems": rng.randrange(1, 5),
        "items": schema(rng, depth - 1),
        **first,
    }


def schema(rng: random.Random, depth: int) -> Any:
    if depth == 0:
        return rng.choice([number, string, plain])(rng)
    if rng.random() < 0.15:
        return {rng.choice(["anyOf", "oneOf", "allOf"]): [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    return rng.choice([thing, items])(rng, depth)


def written(one: Matcher, rng: random.Random) -> bytes | None:
    """A path taken at random, with a leaning towards ends; None where it has none within 400 bytes."""
    text = bytearray()
    for _ in range(400):
        ids = sorted(allowed(one) - {EOS, EXTRA_EOS})
        if one.is_accepting and (not ids or rng.random() < 0.5):
            return bytes(text)
        assert ids, f"a dead end: {bytes(text)!r}"
        ends = [i for i in ids if i in CLOSING]
        text.append(rng.choice(ends if ends and rng.random() < 0.4 else ids))
        one.accept(text[-1])
    return None


@pytest.mark.parametrize("seed", range(4))
def test_every_path_ends_in_a_valid_document(seed: int) -> None:
    rng = random.Random(seed)
    num_valid = 0
    for _ in range(30):
        asked = schema(rng, 2)
        try:
            one = matcher({"json": asked})
        except GrammarError:
            continue
        for text in (written(one.fork(), rng), written(one, rng)):
            if text is not None:
                jsonschema.validate(json.loads(text), asked)
                num_valid += 1
    assert num_valid > 30
