"""The source is parsed once for all tests of this folder, and let go of behind them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from source_tree import forget


@pytest.fixture(scope="package", autouse=True)
def trees() -> Iterator[None]:
    yield
    forget()
