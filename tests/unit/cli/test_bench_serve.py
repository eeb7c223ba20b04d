"""``ramet bench serve``, as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from scripted_server import (
    DONE,
    MODELS,
    Asked,
    Script,
    Step,
    StepKind,
    answers,
    chunk,
    json_reply,
    served_in_thread,
    stream,
    usage,
)

RAMET = [sys.executable, "-m", "ramet", "bench", "serve"]
PLAIN = stream(chunk("a"), chunk("b"), usage(10, 2, 6), DONE)
NO_KEYS = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def bench(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RAMET, *args], capture_output=True, text=True, timeout=60, env=NO_KEYS | env, check=False)


def told(script: Script, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    with served_in_thread(script) as state:
        done = bench("--url", state.url, *args, **env)
    done.stdout = done.stdout.replace(state.url, "URL")
    done.stderr = done.stderr.replace(state.url, "URL")
    return done


def as_json(script: Script, *args: str) -> dict[str, object]:
    done = told(script, "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_table() -> None:
    done = told(answers(PLAIN), "--num-requests", "12", "--max-tokens", "2", "--slo-ttft", "60000")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    head, sessions, _, counts, *rest = done.stdout.splitlines()
    assert (head, sessions) == ("tiny at URL, chat", "chat: 3 sessions, 3 at a time; seed 0")
    assert counts.endswith("s: 12 answered, 0 failed")
    assert "hit rate       60.0%      72 of 120 prompt tokens" in rest
    assert any(line.startswith("goodput") and line.endswith("12 requests with TTFT <= 60000 ms") for line in rest)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("args", "num_sessions"),
    [
        (["--workload", "chat", "--turns", "4"], 3),
        (["--workload", "react", "--concurrency", "2"], 2),
        (["--workload", "tree-search", "--turns", "2", "--branches", "4"], 2),
        (["--workload", "no-share", "--rate", "200"], 10),
        (["--rate", "200", "--endpoint", "chat", "--seed", "3"], 2),
    ],
)
def test_json(args: list[str], num_sessions: int) -> None:
    found = as_json(answers(PLAIN), "--num-requests", "10", *args)
    assert found["sessions"] == num_sessions
    assert found["requests"] == {"planned": 10, "answered": 10, "failed": 0, "unsent": 0, "unfinished": 0}
    assert (found["prompt_tokens"], found["output_tokens"], found["hit_rate"]) == (100, 20, 0.6)
    assert found["workload"] == (args[1] if args[0] == "--workload" else "chat")
    assert "api_key" not in found


def test_few_shot_from_a_file(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"a{i}"}) + "\n" for i in range(4)), "utf-8")
    with served_in_thread(answers(PLAIN)) as state:
        done = bench("--url", state.url, "--workload", "few-shot", "--file", str(path), "--shots", "1", "--num-requests", "3")
        asked = [request.body["messages"][0]["content"] for request in state.asked[2:]]
    assert done.returncode == 0, done.stderr
    assert sorted(asked) == [f"Question: q0\nAnswer: a0\n\nQuestion: q{i}\nAnswer:" for i in (1, 2, 3)]


def test_two_runs_ask_the_same() -> None:
    def asked() -> list[str]:
        with served_in_thread(answers(PLAIN)) as state:
            assert bench("--url", state.url, "--num-requests", "6", "--seed", "5").returncode == 0
            return sorted(json.dumps(request.body) for request in state.asked)

    assert asked() == asked()


def test_refusals_are_counted_and_not_fatal() -> None:
    refusal = json_reply(429, {"error": {"message": "queue is full"}}, "retry-after: 1")
    done = told(answers(PLAIN, refusal, PLAIN), "--workload", "no-share", "--num-requests", "5", "--concurrency", "1")
    assert done.returncode == 0
    assert "4 answered, 1 failed" in done.stdout
    assert "     1 x HTTP 429: queue is full\n" in done.stdout


def test_a_run_without_an_answer_ends_in_1_with_its_figures() -> None:
    done = told(answers(json_reply(500, {"error": "defect"})), "--num-requests", "4")
    assert done.returncode == 1
    assert "0 answered, 1 failed, 3 not sent" in done.stdout
    assert "1 x HTTP 500: defect" in done.stdout


@pytest.mark.parametrize("variable", ["RAMET_API_KEY", "OPENAI_API_KEY"])
def test_the_key_of_the_environment(variable: str) -> None:
    def script(request: Asked) -> Sequence[Step]:
        if request.headers.get("authorization") != "Bearer right":
            return json_reply(401, {})
        return MODELS if request.path == "/v1/models" else PLAIN

    args = ("--num-requests", "1", "--workload", "no-share")
    assert told(script, *args, **{variable: "right"}).returncode == 0
    assert told(script, *args, "--api-key", "right", **{variable: "wrong"}).returncode == 0
    done = told(script, *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ramet: URL refuses the key, or wants one (HTTP 401); give it by --api-key or OPENAI_API_KEY\n"


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (
            ["--url", "http://127.0.0.1:9"],
            "no server answers at http://127.0.0.1:9 (Connection refused); start one (ramet serve)",
        ),
        (["--url", "ftp://x"], "--url 'ftp://x' is no http:// or https:// address"),
        (["--rate", "1", "--concurrency", "1"], "give one of the two"),
        (["--workload", "few-shot"], "--workload few-shot needs examples"),
        (["--workload", "chat", "--branches", "2"], "--branches has no meaning for --workload chat; it is for tree-search"),
        (["--workload", "no-share", "--turns", "2"], "it is for chat and react and tree-search"),
    ],
)
def test_what_is_wrong_is_one_line(args: list[str], fault: str) -> None:
    done = bench(*args)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ramet: ")
    assert fault in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_ends_with_the_figures_so_far() -> None:
    is_stuck = threading.Event()
    plain = answers(PLAIN)

    def script(request: Asked) -> Sequence[Step]:
        if request.body.get("messages", [{}])[0].get("role") == "system" and len(request.body["messages"]) > 2:
            is_stuck.set()
            return [StepKind.HANG]
        return plain(request)

    with served_in_thread(script) as state:
        args = [*RAMET, "--url", state.url, "--num-requests", "10", "--concurrency", "1"]
        with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=NO_KEYS) as running:
            assert is_stuck.wait(30)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, "")
    assert "s: 1 answered, 0 failed, 8 not sent, 1 cut off" in out
    assert "hit rate       60.0%" in out


def test_a_bar_on_a_terminal_and_nothing_of_it_in_the_output() -> None:
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    with served_in_thread(answers(PLAIN)) as state:
        args = [*RAMET, "--url", state.url, "--num-requests", "12"]
        done = subprocess.run(args, stdout=subprocess.PIPE, stderr=slave, timeout=60, env=NO_KEYS | {"TERM": "xterm"}, check=True)
    os.close(slave)
    drawn = os.read(master, 65536)
    os.close(master)
    assert b"12/12" in drawn
    assert b"\x1b" not in done.stdout
    assert b"12 answered" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from ramet.cli import app\n"
        "app(['bench', 'serve', '--help'], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "--workload" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert loaded & {"asyncio", "httptools", "msgspec", "numpy", "rich", "ssl", "uvloop"} == set()
