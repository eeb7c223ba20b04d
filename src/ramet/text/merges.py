"""Merges of vocabularies that give each token a rank instead: SentencePiece's scores, tiktoken's ranks.

Those tokenizers join whichever two neighbours make the best ranked token. The ``tokenizers`` package wants the pairs written
out: every way to cut a token in two tokens, the best ranked token first. (The same conversion as transformers makes.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ramet.errors import ModelError

__all__ = ["merges_of_ranks"]

_MAX_WORK = 1 << 28  # characters looked at; 20 times what the largest known vocabulary takes


def merges_of_ranks(ranked: Iterable[str], ids: Mapping[str, int], where: str) -> list[tuple[str, str]]:
    """Merges of ``ranked``, the tokens that merging may make, best first; the parts of each are among ``ids``.

    Raises ``ModelError`` where the tokens are so long that this would take minutes.
    """
    ranked = list(ranked)
    if sum(len(token) ** 2 for token in ranked) > _MAX_WORK:
        longest = max(map(len, ranked))
        raise ModelError(f"{where}: tokens of up to {longest} characters; so long ones are in no vocabulary that merges make")
    merges: list[tuple[str, str]] = []
    for token in ranked:
        cuts = [(left, token[i:]) for i in range(1, len(token)) if (left := token[:i]) in ids and token[i:] in ids]
        if len(cuts) > 1:
            cuts.sort(key=lambda cut: (ids[cut[0]], ids[cut[1]]))
        merges += cuts
    return merges
