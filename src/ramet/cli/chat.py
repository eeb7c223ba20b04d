"""``ramet chat``: a conversation in the terminal; the history stays in the tree, so each turn computes only what is new."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ramet.cli.help import GroupedCommand, GroupedOption
from ramet.cli.options import with_engine_options, with_named_model, with_sampling_options
from ramet.cli.progress import loading_progress
from ramet.config import EngineConfig
from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.core.sampling import SamplingParams
    from ramet.engine.assemble import RequestOutput
    from ramet.llm import LLM

__all__ = ["chat"]

_HELP = "/reset starts over, /stats shows the cache, /exit leaves; Ctrl-C stops an answer"


@click.command(cls=GroupedCommand)
@click.argument("model_name", metavar="[MODEL]", required=False)
@click.option("--system", cls=GroupedOption, group="prompt", help="system message")
@click.option(
    "--max-tokens", type=int, cls=GroupedOption, group="sampling", help="tokens of an answer at most", unset="what fits"
)
@with_sampling_options
@with_engine_options
def chat(
    *, model_name: str | None, system: str | None, max_tokens: int | None, sampling: dict[str, Any], config: EngineConfig
) -> None:
    """Talk to MODEL, or to the demo model."""
    config = with_named_model(config, model_name)
    from ramet.llm import LLM

    with loading_progress() as report:
        llm = LLM.from_config(config, report)
    params = llm.default_sampling_params(max_tokens=max_tokens, **sampling)
    _ = llm.chat_template  # a model that cannot chat says so now
    print(f"{llm.description}\n{_HELP}")
    start = [{"role": "system", "content": system}] if system is not None else []
    history = list(start)
    while True:
        num_before = len(history)
        try:
            line = _ask()
            if line == "/exit":
                return
            if line == "/reset":
                history = list(start)
                print("(new conversation)")
            elif line == "/stats":
                _show_stats(llm)
            elif line.startswith("/"):
                print(_HELP)
            elif line:
                _turn(llm, history, line, params)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # anywhere but in the midst of an answer, which it only stops
            del history[num_before:]
            print("\n(/exit or Ctrl-D leaves)")


def _ask() -> str:
    if sys.stdin.isatty():
        import readline  # noqa: F401  (line editing and history for input())

        return input("\n> ").strip()
    return input().strip()


def _turn(llm: LLM, history: list[dict[str, str]], line: str, params: SamplingParams) -> None:
    """Send a line, print the answer as it comes, and that it is no whole one. What is stopped or cut stays in the history."""
    history.append({"role": "user", "content": line})
    began, first_s, last = time.perf_counter(), 0.0, None
    try:
        for last in llm.stream(history, params):
            first_s = first_s or time.perf_counter() - began
            sys.stdout.write(last.outputs[0].delta)
            sys.stdout.flush()
        if last is not None and last.outputs[0].finish_reason == "length":
            sys.stdout.write(f" (cut after {last.usage.completion_tokens:,} tokens)")
    except InvalidRequest as error:
        history.pop()
        print(f"ramet: {error} (/reset starts over)")
        return
    except KeyboardInterrupt:
        sys.stdout.write(" (stopped)")
    print()
    if last is None:
        history.pop()
        return
    if last.outputs[0].error is not None:
        print(f"ramet: {last.outputs[0].error}")
    history.append({"role": "assistant", "content": last.outputs[0].text})
    if sys.stdout.isatty():
        print(_figures(last, first_s, time.perf_counter() - began))


def _figures(output: RequestOutput, first_s: float, total_s: float) -> str:
    usage = output.usage
    speed = max(usage.completion_tokens - 1, 0) / (total_s - first_s) if total_s > first_s else 0.0
    return f"[reused {usage.cached_tokens} of {usage.prompt_tokens}, {first_s * 1000:.0f} ms, {speed:.0f} tok/s]"


def _show_stats(llm: LLM) -> None:
    for name, value in llm.cache_stats().items():
        print(f"{name:>24}  {value}")
