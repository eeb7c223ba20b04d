"""What a served model says, put into its mouth: a grammar that allows one text alone, in place of what the request asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
from support.http import Served

from ramet.core.grammar import GrammarSpec
from ramet.server.generation import Generation, Prompted
from ramet.structured.compiler import GrammarCompiler, TokenTable

_EOS, _SPECIAL = 256, 257


@contextmanager
def saying(served: Served, text: str) -> Iterator[None]:
    """All answers are ``text`` meanwhile, to its end or as far as the request lets it go."""
    client = served.services.client
    submit = client.submit
    script = GrammarSpec("choice", json.dumps([text]))

    def scripted(prompts: Sequence[Prompted], request_id: str) -> list[Generation]:
        held = [replace(one, sampling=replace(one.sampling, structured_outputs=script)) for one in prompts]
        return submit(held, request_id)

    client.submit = scripted  # type: ignore[method-assign]
    try:
        yield
    finally:
        client.submit = submit  # type: ignore[method-assign]


@cache
def _compiler(special: str) -> GrammarCompiler:
    pieces = [bytes([i]) for i in range(256)] + [b"<eos>", special.encode()]
    return GrammarCompiler(TokenTable(pieces, frozenset({_EOS, _SPECIAL}), [_EOS], len(pieces)))


def ends(spec: GrammarSpec, text: str, special: str = "<mark>") -> Literal["whole", "open", "refused"]:
    """Whether a grammar takes ``text`` for an answer, for the beginning of one, or not at all. ``special`` is one token in it."""
    matcher = _compiler(special).matcher(spec, frozenset({_EOS})).result()
    row = np.zeros(matcher.num_words, np.uint32)
    first, *others = (list(part.encode()) for part in text.split(special))
    for token_id in first + [token_id for other in others for token_id in (_SPECIAL, *other)]:
        if matcher.is_finished:
            return "refused"
        matcher.fill_mask(row)
        if not row[token_id // 32] >> (token_id % 32) & 1:
            return "refused"
        matcher.accept(token_id)
    return "whole" if matcher.is_accepting else "open"
