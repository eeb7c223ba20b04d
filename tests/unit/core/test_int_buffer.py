"""``IntBuffer`` behaves as a list of int32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.ids import IntBuffer

INT32 = st.integers(-(2**31), 2**31 - 1)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), INT32),
        st.tuples(st.just("extend"), st.lists(INT32, max_size=40)),
        st.tuples(st.just("replace"), st.integers(0, 60), st.lists(INT32, max_size=5)),
        st.tuples(st.just("clear")),
    ),
    max_size=25,
)


@given(st.lists(INT32, max_size=20), MOVES)
def test_it_is_a_list_of_int32(start, moves):
    model = list(start)
    buffer = IntBuffer(start)
    for move in moves:
        match move:
            case ("append", value):
                model.append(value)
                buffer.append(value)
            case ("extend", values):
                model.extend(values)
                buffer.extend(np.array(values, np.int32))
            case ("replace", at, values) if at + len(values) <= len(model):
                model[at : at + len(values)] = values
                buffer.replace(at, np.array(values, np.int32))
            case ("replace", at, values):
                with pytest.raises(IndexError):
                    buffer.replace(at, np.array(values, np.int32))
            case ("clear",):
                model.clear()
                buffer.clear()
        assert len(buffer) == len(model)
        assert buffer.view().tolist() == model
        assert buffer.view().dtype == np.int32


def test_index():
    buffer = IntBuffer([4, 5, 6])
    assert [buffer[i] for i in (0, 2, -1, -3)] == [4, 6, 6, 4]
    assert type(buffer[0]) is int
    for outside in (3, -4, 10**9):
        with pytest.raises(IndexError):
            buffer[outside]


def test_index_never_reaches_the_spare_room():
    buffer = IntBuffer([4])
    buffer.append(5)
    with pytest.raises(IndexError):
        buffer[2]
    buffer.clear()
    with pytest.raises(IndexError):
        buffer[0]
    with pytest.raises(IndexError):
        buffer[-1]


def test_views_share_memory_and_end_at_the_size():
    buffer = IntBuffer(range(5))
    view = buffer.view(1, 3)
    view[0] = 9
    assert buffer[1] == 9
    assert buffer.view(3, 100).tolist() == [3, 4]
    assert buffer.view(5).tolist() == []


def test_the_source_is_copied():
    source = np.array([1, 2], np.int32)
    buffer = IntBuffer(source)
    source[0] = 7
    assert buffer[0] == 1


def test_appending_is_amortised():
    buffer, moves, last = IntBuffer(), 0, None
    for i in range(10_000):
        buffer.append(i)
        base = buffer.view().base
        moves += base is not last
        last = base
    assert moves < 15
