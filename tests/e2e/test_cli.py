"""The commands, as a person types them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tiny_models import TINY_MODELS, write_folder

RAMET = [sys.executable, "-m", "ramet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(TINY_MODELS["llama"], tmp_path_factory.mktemp("llama")))


def ramet(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RAMET, *args], input=stdin, capture_output=True, text=True, timeout=60, env=os.environ | env)


def test_generate_prints_the_answer(folder: str) -> None:
    done = ramet("generate", "hello", "--model", folder, "--temperature", "0", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert done.stderr == ""


def test_generate_json_has_what_it_promises(folder: str) -> None:
    done = ramet("generate", "hello", "--model", folder, "--temperature", "0", "--max-tokens", "5", "--json")
    answer = json.loads(done.stdout)
    assert len(answer["token_ids"]) <= 5
    assert (answer["prompt_tokens"], answer["cached_tokens"]) == (5, 0)
    assert answer["finish_reason"] in ("length", "stop")
    assert answer["timings"].keys() >= {"load_s", "ttft_s", "total_s"}
    assert isinstance(answer["text"], str)


def test_prompt_from_standard_input(folder: str) -> None:
    args = ("--model", folder, "--temperature", "0", "--max-tokens", "5", "--json")
    assert (
        json.loads(ramet("generate", "-", *args, stdin="hello").stdout)["token_ids"]
        == (json.loads(ramet("generate", "hello", *args).stdout)["token_ids"])
    )


def test_chat_option_and_stop(folder: str) -> None:
    done = ramet("generate", "--chat", "hi", "--system", "be brief", "--model", folder, "--max-tokens", "3", "--json")
    assert json.loads(done.stdout)["prompt_tokens"] > 30


def test_options_come_from_the_environment(folder: str) -> None:
    done = ramet("generate", "hello", "--max-tokens", "2", "--json", RAMET_MODEL=folder, RAMET_PAGE_SIZE="0")
    assert done.returncode == 1
    assert done.stderr == "ramet: page_size is a whole number from 1 to 128, not 0 (--page-size)\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("generate", "x", "--model", "/no/such/file.gguf"), "no file or folder"),
        (("generate", "x", "--model", __file__), "neither a .gguf file nor a folder"),
        (("generate", "x", "--model", "{folder}", "--temperature", "nan"), "temperature"),
        (("generate", "x", "--model", "{folder}", "--max-tokens", "9999"), "max_tokens"),
        (("generate", "", "--model", "{folder}"), "empty"),
        (("generate", "x", "--model", "{folder}", "--kv-cache-memory", "100TiB"), "--kv-cache-memory"),
        (("generate", "x", "--system", "s", "--model", "{folder}"), "--chat"),
        (("generate", "x", "--model", "{folder}", "--isa", "mmx"), "mmx"),
    ],
)
def test_errors_are_one_line(folder: str, args: tuple[str, ...], words: str) -> None:
    done = ramet(*(arg.format(folder=folder) for arg in args))
    assert done.returncode == 1
    assert re.fullmatch(r"ramet: [^\n]+\n", done.stderr), done.stderr
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", [("generate", "hello"), ("generate", "hello", "--json"), ("chat",)])
def test_a_disk_that_is_full_is_one_line(folder: str, command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        args = [*RAMET, *command, "--model", folder, "--max-tokens", "3"]
        done = subprocess.run(args, input="hi\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(r"ramet: [^\n]*No space[^\n]*\n", done.stderr), done.stderr


def test_a_reader_that_leaves_is_no_traceback(folder: str) -> None:
    args = [*RAMET, "generate", "hello", "--model", folder, "--max-tokens", "200"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["generate hello", "chat"])
def test_streams_may_be_closed(folder: str, command: str, closed: str) -> None:
    line = f"exec {sys.executable} -m ramet {command} --model {folder} --max-tokens 3 {closed}"
    done = subprocess.run(["/bin/sh", "-c", line], input=b"hi\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_text_that_the_terminal_cannot_show(folder: str) -> None:
    done = ramet("generate", "é", "--model", folder, "--max-tokens", "30", "--temperature", "0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


def test_input_that_is_no_text(folder: str) -> None:
    args = [*RAMET, "generate", "-", "--model", folder]
    env = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(args, input=b"\xff\xfe", capture_output=True, env=env, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(rb"ramet: [^\n]*surrogate[^\n]*\n", done.stderr), done.stderr


def test_no_speed_without_two_tokens(folder: str) -> None:
    done = ramet("generate", "hello", "--model", folder, "--max-tokens", "0", "--json")
    assert json.loads(done.stdout)["timings"]["decode_tokens_per_s"] is None


def test_unknown_options_are_usage_errors(folder: str) -> None:
    done = ramet("generate", "x", "--max-token", "5")
    assert done.returncode == 2
    assert "--max-tokens" in done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, ramet.cli; print([m for m in ('numpy', 'tokenizers', 'jinja2', 'ramet._native') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    assert "generate" in ramet("--help").stdout
    assert re.fullmatch(r"ramet \d+\.\d+\.\d+\n", ramet("--version").stdout)


@pytest.mark.parametrize("args", [("--version",), ("--help",), (), ("serve", "--help"), ("generate", "--help=all")])
def test_what_only_tells_loads_little(args: tuple[str, ...]) -> None:
    """Modules are counted, not seconds, which another process can take."""
    code = "import sys\nfrom ramet.cli import main\ntry: main()\nexcept SystemExit: pass\nprint('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "ramet.cli" in loaded, done.stderr
    assert not loaded & {"numpy", "tokenizers", "jinja2", "rich", "yaml", "asyncio", "msgspec", "uvicorn", "ramet._native"}
    assert {name for name in loaded if name.startswith("ramet.")} <= LIGHT
    assert len(loaded) < 260


LIGHT = {"ramet.errors", "ramet.config", "ramet.cli"} | {
    f"ramet.cli.{name}" for name in ("serve", "generate", "options", "help", "config_file", "progress")
}


def test_model_and_prompt_without_flags(folder: str) -> None:
    done = ramet("generate", folder, "hello", "--temperature", "0", "--max-tokens", "2", "--json")
    assert json.loads(done.stdout)["prompt_tokens"] == 5
    assert ramet("chat", folder, stdin="/exit\n").returncode == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("generate",), "PROMPT, or MODEL and PROMPT, are wanted, not 0 words"),
        (("generate", "Once", "upon", "a"), "a prompt with spaces is in quotes"),
        (("generate", "./m", "x", "--model", "./other"), "Two models are named"),
        (("chat", "./m", "--model", "./other"), "Two models are named"),
        (("serve", "./m", "./n"), "extra argument"),
    ],
)
def test_wrong_words_are_usage_errors(args: tuple[str, ...], words: str) -> None:
    done = ramet(*args)
    assert done.returncode == 2
    assert words in done.stderr


def test_options_come_from_a_file(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "ramet.yaml"
    file.write_text(f"model: {folder}\npage-size: 8\nport: 9000\nprefix_cache: none\n")
    done = ramet("chat", "--config", str(file), "--max-tokens", "2", stdin="hello\nand again\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *num_hit_tokens  0$", done.stdout, re.MULTILINE)
    assert ramet("generate", "x", "--config", str(file), "--page-size", "0").stderr.startswith(
        "ramet: page_size is a whole number"
    )
    file.write_text("page-sise: 8")
    done = ramet("generate", "x", "--config", str(file))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "unknown key 'page-sise'; nearest: page-size" in done.stderr


def test_variables_that_set_nothing_are_refused() -> None:
    done = ramet("generate", "x", RAMET_PAGESIZE="8")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ramet: the variable RAMET_PAGESIZE sets nothing; nearest: RAMET_PAGE_SIZE, ")


def test_doctor_tells_without_secrets(tmp_path: Path) -> None:
    done = ramet("doctor", "--json", RAMET_API_KEY="canary", RAMET_ISA="generic", RAMET_CACHE=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["kernels"].startswith("generic of ")
    assert found["demo model"].startswith("not there")
    assert "canary" not in done.stdout


def test_chat_keeps_its_history_in_the_tree(folder: str) -> None:
    lines = "hello, my dear little tree\nwhat now\n/stats\n/reset\n/what\n/exit\n"
    done = ramet("chat", "--model", folder, "--temperature", "0", "--max-tokens", "8", stdin=lines)
    assert done.returncode == 0, done.stderr
    stats = dict(re.findall(r"^ *(num_\w+)  (\d+)$", done.stdout, re.MULTILINE))
    assert int(stats["num_hit_tokens"]) > 20
    assert done.stdout.count(" (cut after 8 tokens)\n") == 2
    assert "(new conversation)" in done.stdout
    assert "/reset starts over" in done.stdout


def test_chat_says_when_the_context_is_full(folder: str) -> None:
    done = ramet("chat", "--model", folder, "--max-tokens", "4", stdin="x" * 300 + "\nok\n")
    assert done.returncode == 0
    assert "/reset starts over" in done.stdout.split("\n", 2)[2]


def test_ctrl_c_stops_the_answer_and_not_the_program(folder: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(RAMET[0], [*RAMET, "chat", "--model", folder, "--temperature", "0"])
    try:
        _read_until(terminal, "> ")
        os.write(terminal, b"hello\n")
        _read_until(terminal, "hello")  # the echo: the answer is under way, or done
        os.write(terminal, b"\x03")
        _read_until(terminal, "> ")
        os.write(terminal, b"/stats\n")
        _read_until(terminal, "num_hit_tokens")
        os.write(terminal, b"/exit\n")
        assert _exit_code(pid) == 0
    finally:
        os.close(terminal)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _read_until(terminal: int, words: str, limit_s: float = 30) -> None:
    seen, deadline = "", time.monotonic() + limit_s
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            pytest.fail(f"{words!r} did not come; the screen was {seen[-500:]!r}")
        seen += os.read(terminal, 4096).decode(errors="replace")


def _exit_code(pid: int, limit_s: float = 20) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    pytest.fail("the program did not leave")


def test_the_package_is_light() -> None:
    """No torch and no transformers behind the runtime dependencies."""
    from importlib.metadata import requires

    runtime = [line for line in requires("ramet") or [] if "extra ==" not in line]
    assert not [line for line in runtime if re.match(r"(torch|transformers|scipy|pandas)\b", line)]
