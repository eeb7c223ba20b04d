"""Builds ``RowSampling`` from one dict a row, and says in the plainest way what the sampler should choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ramet.core.batch import RowSampling

__all__ = ["exact_probabilities", "rows_of"]

_FLOATS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_INTS = {"top_k": 0, "sample_index": 0, "num_logprobs": -1}


def rows_of(*rows: Mapping[str, Any]) -> RowSampling:
    """Keys: the fields of ``SamplingParams``, ``seed``, ``counter``, ``bias`` (id -> value), ``banned``, ``allowed``, ``mask``
    (ids), ``prompt`` and ``output`` (token ids for the penalties).
    """
    histories = [[*row.get("prompt", ()), *row.get("output", ())] for row in rows]
    biases = [row.get("bias", {}) for row in rows]
    bias_indptr, bias_ids = _ragged([list(bias) for bias in biases])
    banned_indptr, banned_ids = _ragged([list(row.get("banned", ())) for row in rows])
    allowed_indptr, allowed_ids = _ragged([list(row.get("allowed", ())) for row in rows])
    history_indptr, history_ids = _ragged(histories)
    masks = [row["mask"] for row in rows if "mask" in row]
    mask_indptr, _ = _ragged([[0] * ("mask" in row) for row in rows])
    plain: dict[str, Any] = {}
    for kind, defaults in ((np.float32, _FLOATS), (np.int32, _INTS)):
        plain |= {name: np.array([row.get(name, default) for row in rows], kind) for name, default in defaults.items()}
    return RowSampling(
        **plain,
        seed=np.array([row.get("seed", 0) for row in rows], np.uint64),
        counter=np.array([row.get("counter", 1) for row in rows], np.int64),
        bias_indptr=bias_indptr,
        bias_ids=bias_ids,
        bias_values=np.array([value for bias in biases for value in bias.values()], np.float32),
        banned_indptr=banned_indptr,
        banned_ids=banned_ids,
        allowed_indptr=allowed_indptr,
        allowed_ids=allowed_ids,
        history_indptr=history_indptr,
        history_ids=history_ids,
        history_prompt_lens=np.array([len(row.get("prompt", ())) for row in rows], np.int32),
        mask_indptr=mask_indptr,
        masks=np.array([_words(mask) for mask in masks], np.uint32) if masks else np.empty((0, 0), np.uint32),
    )


def _words(ids: Iterable[int], num_words: int = 16) -> list[int]:
    """A mask with the bits of ``ids``."""
    words = [0] * num_words
    for token_id in ids:
        words[token_id // 32] |= 1 << token_id % 32
    return words


def exact_probabilities(logits: np.ndarray, row: Mapping[str, Any]) -> np.ndarray:
    """float64[V]: what each token's chance should be, token by token, with Python numbers and full sorts."""
    scores = [float(x) for x in logits]
    for token_id, value in row.get("bias", {}).items():
        scores[token_id] += value
    prompt, output = list(row.get("prompt", ())), list(row.get("output", ()))
    repetition = float(np.float32(row.get("repetition_penalty", 1.0)))
    for token_id in set(prompt + output):
        scores[token_id] = scores[token_id] / repetition if scores[token_id] > 0 else scores[token_id] * repetition
    for token_id in set(output):
        scores[token_id] -= float(np.float32(row.get("frequency_penalty", 0.0))) * output.count(token_id)
        scores[token_id] -= float(np.float32(row.get("presence_penalty", 0.0)))
    allowed = set(row.get("allowed", ())) or set(range(len(scores)))
    allowed &= set(row.get("mask", allowed))
    candidates = sorted(allowed - set(row.get("banned", ())), key=lambda t: (-scores[t], t))
    temperature = float(np.float32(row.get("temperature", 1.0)))
    if temperature == 0:
        candidates, temperature = candidates[:1], 1.0
    weights = {t: np.exp((scores[t] - scores[candidates[0]]) / temperature) for t in candidates}
    candidates = [t for t in candidates if weights[t] >= float(np.float32(row.get("min_p", 0.0)))]
    if row.get("top_k", 0) > 0:
        candidates = candidates[: row["top_k"]]
    total, reached, nucleus = sum(weights[t] for t in candidates), 0.0, []
    top_p = float(np.float32(row.get("top_p", 1.0)))
    for token_id in candidates:
        if top_p < 1 and reached >= top_p * total:
            break
        nucleus.append(token_id)
        reached += weights[token_id]
    chances = np.zeros(len(scores))
    for token_id in nucleus:
        chances[token_id] = weights[token_id] / reached
    return chances


def _ragged(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return indptr, np.array([value for row in rows for value in row], np.int32)
