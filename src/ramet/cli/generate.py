"""``ramet generate``: one prompt, one answer."""

from __future__ import annotations

import json
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
    from ramet.engine.assemble import RequestOutput

__all__ = ["generate"]


@click.command(cls=GroupedCommand)
@click.argument("words", metavar="[MODEL] PROMPT", nargs=-1)
@click.option("--chat", is_flag=True, cls=GroupedOption, group="prompt", help="send PROMPT as a user's message")
@click.option("--system", cls=GroupedOption, group="prompt", help="system message, with --chat")
@click.option("--lora", cls=GroupedOption, group="prompt", help="adapter, by its name in --lora-modules")
@click.option("--max-tokens", cls=GroupedOption, group="sampling", default=256, help="most tokens to generate")
@with_sampling_options
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="output", help="one JSON object instead of text")
@with_engine_options
def generate(
    *,
    words: tuple[str, ...],
    chat: bool,
    system: str | None,
    lora: str | None,
    max_tokens: int,
    sampling: dict[str, Any],
    as_json: bool,
    config: EngineConfig,
) -> None:
    """Complete PROMPT (- is standard input); print the answer as it comes."""
    if not 1 <= len(words) <= 2:
        raise click.UsageError(
            f"PROMPT, or MODEL and PROMPT, are wanted, not {len(words)} words; a prompt with spaces is in quotes."
        )
    *names, prompt = words
    config = with_named_model(config, names[0] if names else None)
    text = sys.stdin.read() if prompt == "-" else prompt
    if system is not None and not chat:
        raise InvalidRequest("--system needs --chat", "system")
    started = time.perf_counter()
    from ramet.llm import LLM

    with loading_progress() as report:
        llm = LLM.from_config(config, report)
    loaded = time.perf_counter()
    params = llm.default_sampling_params(max_tokens=max_tokens, **sampling)
    messages = [*([{"role": "system", "content": system}] if system is not None else []), {"role": "user", "content": text}]
    first_s, output = None, None
    for output in llm.stream(messages if chat else text, params, lora=lora):
        first_s = first_s or time.perf_counter() - loaded
        if not as_json:
            sys.stdout.write(output.outputs[0].delta)
            sys.stdout.flush()
    if output is None:
        return
    if output.outputs[0].error is not None:
        raise InvalidRequest(output.outputs[0].error)
    if as_json:
        total_s = time.perf_counter() - loaded
        print(json.dumps(_as_json(output, loaded - started, first_s or total_s, total_s), ensure_ascii=False))
    else:
        print()


def _as_json(output: RequestOutput, load_s: float, ttft_s: float, total_s: float) -> dict[str, Any]:
    answer, usage = output.outputs[0], output.usage
    decode_s, num_decoded = total_s - ttft_s, usage.completion_tokens - 1
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "finish_reason": answer.finish_reason,
        "seed": output.seed,
        "timings": {
            "load_s": round(load_s, 4),
            "ttft_s": round(ttft_s, 4),
            "total_s": round(total_s, 4),
            "decode_tokens_per_s": round(num_decoded / decode_s, 1) if num_decoded > 0 and decode_s > 0 else None,
        },
    }
