"""What ``--help`` shows: a line a flag, within 80 columns, and a search that finds."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from ramet.cli import app
from ramet.cli.help import nearest

SERVED = {
    "model": ["--model", "--max-model-len", "--quantization", "--threads", "--served-model-name"],
    "memory": ["--kv-cache-memory", "--kv-cache-dtype", "--max-running-seqs"],
    "cache": ["--prefix-cache", "--page-size", "--share-cache"],
    "network": ["--host", "--port", "--api-key", "--api-key-file", "--admin-api-key"],
}


def shown(*args: str) -> str:
    done = CliRunner().invoke(app, args, prog_name="ramet")
    assert done.exit_code == 0, done.output
    return done.output


def flags(text: str) -> list[str]:
    return re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)


def groups(text: str) -> dict[str, list[str]]:
    parts = re.split(r"^(\w+)\n(?=  --)", text, flags=re.MULTILINE)
    return {name: flags(part) for name, part in zip(parts[1::2], parts[2::2], strict=True)}


def test_alone_it_says_what_it_is_on_14_lines():
    text = shown()
    assert text == shown("--help")
    assert len(text.splitlines()) == 14
    assert max(map(len, text.splitlines())) <= 80
    assert re.findall(r"^  (\w+) {2,}[A-Z]", text, re.MULTILINE) == ["serve", "chat", "generate", "bench", "doctor"]


def test_every_command_of_the_front_page_is_there():
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        assert command.name == name
    assert app.get_command(context, "no-such") is None


def test_the_help_of_serve_is_the_16_flags_that_people_use():
    text = shown("serve", "--help")
    assert len(text.splitlines()) <= 40
    assert groups(text) == SERVED
    assert sum(map(len, groups(text).values())) == 16
    everything = shown("serve", "--help=all")
    assert text.splitlines()[-1] == f"--help=all for {len(flags(everything))} flags, --help=WORD to search"
    assert "-h" in shown("serve", "-h=all")


@pytest.mark.parametrize("command", ["serve", "chat", "generate"])
@pytest.mark.parametrize("page", ["--help", "--help=all"])
def test_lines_fit_the_screen_and_words_do_not_touch(command, page):
    lines = shown(command, page).splitlines()
    assert max(map(len, lines)) <= 80
    for line in lines:
        variable = re.search(r"(.)\bRAMET_\w+$", line)
        assert variable is None or variable[1] == " "
    if page == "--help":
        assert len(lines) <= 40


def test_each_line_has_the_text_the_default_and_the_variable():
    lines = shown("serve", "--help").splitlines()
    assert "  --page-size          tokens a page, 1 to 128 [16]              RAMET_PAGE_SIZE" in lines
    assert next(line for line in lines if "--share-cache" in line).split()[-2:] == ["[off]", "RAMET_SHARE_CACHE"]
    assert next(line for line in lines if "--threads" in line).split()[-3:] == ["[all", "cores]", "RAMET_THREADS"]


def test_aliases_are_shown_with_all_or_when_they_are_asked_for():
    assert "--max-num-seqs" not in shown("serve", "--help")
    assert "--max-num-seqs" in shown("serve", "--help=all")
    assert "--max-num-seqs" in shown("serve", "--help=num-seqs")
    assert "--max-num-seqs" not in shown("serve", "--help=running-seqs")
    assert flags(shown("serve", "--help=disable-radix-cache")) == ["--prefix-cache"]
    assert "--disable-radix-cache (= none)" in shown("serve", "--help=all")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("page-size", ["--page-size"]),
        ("page_size", ["--page-size"]),
        ("PAGE-SIZE", ["--page-size"]),
        ("max", ["--max-model-len", "--max-total-tokens", "--max-running-seqs", "--max-batch-tokens", "--max-body-size"]),
        ("cache", ["--prefix-cache", "--page-size", "--schedule-policy", "--share-cache", "--kv-cache-memory"]),
        ("sigterm", ["--drain-timeout-s"]),
    ],
)
def test_a_word_finds_flags_by_name_group_and_text(word, wanted):
    assert set(flags(shown("serve", f"--help={word}"))) >= set(wanted)


def test_a_word_that_finds_nothing_is_told_the_nearest():
    assert "Nearest: --page-size" in shown("serve", "--help=pagge-size")


def test_help_goes_before_all_else_that_is_wrong():
    assert shown("serve", "--help", "--port", "x") == shown("serve", "--help")
    assert shown("serve", "--help", "--config", "/no/such/file") == shown("serve", "--help")


@pytest.mark.parametrize(
    ("command", "flag", "names"),
    [
        ("serve", "--prot", "--port, "),
        ("serve", "--block-sizes", "--block-size, "),
        ("generate", "--max-token=5", "--max-tokens, "),
        ("chat", "--xyzzy", ", "),
    ],
)
def test_an_unknown_flag_is_told_the_two_nearest(command, flag, names):
    done = CliRunner().invoke(app, [command, flag])
    assert done.exit_code == 2
    (found,) = re.findall(r"^Error: No such option: --[\w-]+\. Nearest: (--[\w-]+, --[\w-]+)$", done.output, re.MULTILINE)
    assert names in found


def test_an_unknown_command_is_told_the_known():
    done = CliRunner().invoke(app, ["srve"])
    assert done.exit_code == 2
    assert "No such command: srve. There are serve, chat" in done.output


def test_nearest_is_best_first():
    assert nearest("prot", ["host", "port", "isa"]) == ["port", "host"]
