"""Texts of requests are in the log where --log-requests asks for them, and nowhere else."""

from __future__ import annotations

import logging

import pytest
from support.http import serve_tiny, write_tiny

from ramet.config import ServerConfig

CANARY = "zebra-canary"


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize(("stream", "status"), [(False, 200), (True, 200), (None, 400)])
def test_prompts_are_logged_where_that_is_asked_for(
    is_asked: bool, stream: bool | None, status: int, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny(tmp_path_factory.mktemp("tiny"))
    with caplog.at_level(logging.DEBUG), serve_tiny(folder, ServerConfig(log_requests=is_asked)) as server:
        body = {"prompt": [CANARY + "\n" + 20_000 * "x" if status == 400 else CANARY, "b"], "stream": stream, "max_tokens": 2}
        assert server.post("/v1/completions", body, x_request_id="mine").status_code == status
        server.until_idle()
    told = [record.getMessage() for record in caplog.records if CANARY in record.getMessage()]
    assert told == ([f"mine asked: {CANARY}"] if is_asked and status == 200 else [])


def test_prompts_of_token_ids_are_logged_as_such(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny(tmp_path_factory.mktemp("tiny"))
    with caplog.at_level(logging.INFO), serve_tiny(folder, ServerConfig(log_requests=True)) as server:
        assert server.post("/generate", {"input_ids": [5, 6]}, x_request_id="mine").status_code == 200
        server.until_idle()
    assert "mine asked: [5, 6]" in [record.getMessage() for record in caplog.records]
