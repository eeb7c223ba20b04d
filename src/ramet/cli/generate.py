"""``ramet generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramet.cli.options import with_engine_options
from ramet.cli.progress import loading_progress
from ramet.config import EngineConfig
from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.engine.assemble import RequestOutput

__all__ = ["generate"]


@with_engine_options
def generate(
    *,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.", show_default=False)],
    chat: Annotated[bool, typer.Option("--chat", help="send the prompt as a user's message through the chat template")] = False,
    system: Annotated[str | None, typer.Option("--system", help="system message, with --chat")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="tokens to generate at most")] = 256,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 is greedy; the model's default if left out.")
    ] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="nucleus sampling")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="sample from the k likeliest tokens")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="stop string; may be repeated")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="makes a sampled answer repeatable")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")] = False,
    config: EngineConfig,
) -> None:
    """Complete a prompt and print the answer as it comes."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if system is not None and not chat:
        raise InvalidRequest("--system needs --chat", "system")
    started = time.perf_counter()
    from ramet.llm import LLM

    with loading_progress() as report:
        llm = LLM.from_config(config, report)
    loaded = time.perf_counter()
    asked = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k, "stop": stop, "seed": seed}
    params = llm.default_sampling_params(**{name: value for name, value in asked.items() if value is not None and value != []})
    messages = [*([{"role": "system", "content": system}] if system is not None else []), {"role": "user", "content": text}]
    first_s, output = None, None
    for output in llm.stream(messages if chat else text, params):
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
