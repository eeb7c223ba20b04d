"""Servers that all tests of this folder share: started when the first asks, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.http import TOOLS_TEMPLATE, Served, serve_tiny, write_tiny
from support.serve_process import ServeProcess, serving

SLOW_TEMPLATE = (
    "{% if messages[0]['content'] == 'slow' %}"
    "{% for i in range(9999) %}{% for j in range(9999) %}{{ i * j }}{% endfor %}{% endfor %}"
    "{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}"
)


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


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A process of its own, for tests that leave it as they find it; eight sequences run at once, and "slow" takes its template
    longer than it may take."""
    folder = tmp_path_factory.mktemp("process")
    model = write_tiny(folder / "model", chat_template=SLOW_TEMPLATE)
    with serving(model, folder / "log", "--threads", "1", "--max-running-seqs", "8") as made:
        yield made
