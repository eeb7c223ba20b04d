from __future__ import annotations

import os
from pathlib import Path

import pytest
from set_clocks import Seconds
from vocabulary_files import vocabulary_metadata

from ramet.model.demo import DEMO_FILE, cache_folder
from ramet.model.gguf import read_gguf
from ramet.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository."""
    folder = Path(os.environ.get("RAMET_SHARED") or ROOT.parent / "shared") / "data"
    if not folder.is_dir():
        pytest.skip("the shared data are not here")
    return folder


@pytest.fixture(scope="session")
def gpt2(shared: Path) -> Tokenizer:
    return Tokenizer.from_gguf(vocabulary_metadata(shared / "tokenizers/llama.cpp/ggml-vocab-gpt-2.gguf"))


@pytest.fixture(scope="session")
def demo_metadata() -> dict[str, object]:
    """Metadata of the demo model, if it has been fetched."""
    path = cache_folder() / DEMO_FILE
    if not path.is_file():
        pytest.skip("the demo model has not been fetched")
    return read_gguf(path).metadata


@pytest.fixture(scope="session")
def demo(demo_metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(demo_metadata)


@pytest.fixture
def ticking() -> Seconds:
    """A tenth of a millisecond a look: a rendering may look 7500 times."""
    return Seconds(1e-4)
