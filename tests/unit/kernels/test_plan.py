"""The attention plan of the CPU backend: what it refuses, and that shared pages are one task."""

from __future__ import annotations

import numpy as np
import pytest

from ramet._native import Plan
from ramet.core.ids import Int32


def ints(*values: int) -> Int32:
    return np.array(values, np.int32)


def test_branches_share_tasks() -> None:
    """Four decoding rows at position 600 see spans of 256 positions: two whole ones, and the rest."""

    def num_tasks(tables: list[list[int]]) -> int:
        indptr = np.cumsum([0, *(len(table) for table in tables)]).astype(np.int32)
        return Plan(64, ints(0, 1, 2, 3, 4), ints(*[600] * 4), indptr, np.concatenate(tables).astype(np.int32)).num_tasks

    root = list(range(8))
    assert num_tasks([[*root, 10 + 2 * i, 11 + 2 * i] for i in range(4)]) == 1 + 1 + 4
    assert num_tasks([[20 * i + page for page in range(10)] for i in range(4)]) == 12


@pytest.mark.parametrize(
    ("page_size", "query_indptr", "positions", "page_indptr", "page_ids", "message"),
    [
        (0, [0, 1], [0], [0, 1], [0], "page_size"),
        (16, [0, 2], [0], [0, 1], [0], "query_indptr"),
        (16, [0, 1], [0], [0, 2], [0], "page_indptr"),
        (16, [0, 1], [16], [0, 1], [0], "beyond its 16 slots"),
        (16, [0, 2], [5, 4], [0, 1], [0], "rise"),
        (16, [0, 1], [-1], [0, 1], [0], "rise"),
        (16, [0, 1], [0], [0, 1], [-3], "negative"),
        (16, [0, 1], [0], [0], [], "B \\+ 1"),
    ],
)
def test_refusals(
    page_size: int, query_indptr: list[int], positions: list[int], page_indptr: list[int], page_ids: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(page_size, ints(*query_indptr), ints(*positions), ints(*page_indptr), ints(*page_ids))
