"""Servers that all tests of this folder share: started when the first asks, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.http import TOOLS_TEMPLATE, Served, serve_tiny, write_tiny


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Over a tiny model whose chat template has no place for tools."""
    with serve_tiny(write_tiny(tmp_path_factory.mktemp("tiny"))) as served:
        yield served


@pytest.fixture(scope="session")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Over the same model with a template that takes tools and writes out their calls."""
    with serve_tiny(write_tiny(tmp_path_factory.mktemp("tools"), chat_template=TOOLS_TEMPLATE)) as served:
        yield served
