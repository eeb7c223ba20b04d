"""The figures of a run as a table of 80 columns, and as a JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ramet.cli.load.figures import Bounds, Figures, Spread

__all__ = ["as_json", "table"]

_LAGGING_MS = 20.0  # requests sent later than this, at p99, make latencies that are the client's own


def table(figures: Figures, bounds: Bounds) -> str:
    """For people. Every line says its unit; what is not known says why."""
    return "\n".join([*_counts(figures), "", *_latencies(figures), "", *_rates(figures, bounds), *_notes(figures)])


def as_json(figures: Figures, bounds: Bounds) -> dict[str, Any]:
    """For programs: times in milliseconds but ``duration_s``; null is not known, or not asked."""
    return {
        "duration_s": round(figures.duration_s, 4),
        "requests": {
            "planned": figures.num_planned,
            "answered": figures.num_answered,
            "failed": figures.num_failed,
            "unsent": figures.num_unsent,
            "unfinished": figures.num_unfinished,
        },
        "errors": figures.errors,
        "error_texts": figures.error_texts,
        **{f"{name}_ms": _rounded(spread) for name, spread in _spreads(figures)},
        "lag_ms": _rounded(figures.lag_ms),
        "requests_per_s": round(figures.per_s(figures.num_answered), 4),
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
        "output_tokens": figures.output_tokens,
        "output_tokens_estimated": figures.is_estimated,
        "prompt_tokens_per_s": round(figures.per_s(figures.prompt_tokens), 2),
        "output_tokens_per_s": round(figures.per_s(figures.output_tokens), 2),
        "hit_rate": None if figures.hit_rate is None else round(figures.hit_rate, 6),
        "slo": asdict(bounds),
        "goodput_per_s": None if figures.num_good is None else round(figures.per_s(figures.num_good), 4),
    }


def _spreads(figures: Figures) -> list[tuple[str, Spread | None]]:
    return [("ttft", figures.ttft_ms), ("tpot", figures.tpot_ms), ("itl", figures.itl_ms), ("e2e", figures.e2e_ms)]


def _rounded(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {name: round(value, 4) for name, value in asdict(spread).items()}


def _counts(figures: Figures) -> Iterator[str]:
    parts = [f"{figures.num_answered} answered", f"{figures.num_failed} failed"]
    if figures.num_unsent:
        parts.append(f"{figures.num_unsent} not sent")
    if figures.num_unfinished:
        parts.append(f"{figures.num_unfinished} cut off")
    yield f"{figures.num_planned} requests in {figures.duration_s:.1f} s: {', '.join(parts)}"
    for kind, num in figures.errors.items():
        text = f"{num:>6} x {kind}: {figures.error_texts[kind]}".rstrip(": ")
        yield text if len(text) <= 80 else text[:77] + "..."


def _latencies(figures: Figures) -> Iterator[str]:
    yield f"{'ms':<6}{'p50':>12}{'p90':>12}{'p99':>12}{'mean':>12}{'max':>12}{'values':>10}"
    for name, spread in _spreads(figures):
        if spread is None:
            yield f"{name.upper():<6}{'no value':>12}"
        else:
            shown = "".join(f"{value:>12,.1f}" for value in (spread.p50, spread.p90, spread.p99, spread.mean, spread.max))
            yield f"{name.upper():<6}{shown}{spread.num:>10,}"


def _rates(figures: Figures, bounds: Bounds) -> Iterator[str]:
    yield f"requests  {figures.per_s(figures.num_answered):>10,.2f} /s"
    yield f"tokens in {figures.per_s(figures.prompt_tokens):>10,.1f} /s   {figures.prompt_tokens:,} in all"
    yield f"tokens out{figures.per_s(figures.output_tokens):>10,.1f} /s   {figures.output_tokens:,} in all"
    if figures.hit_rate is None:
        yield "hit rate    not told: no usage.prompt_tokens_details.cached_tokens"
    else:
        reused = f"{figures.cached_tokens or 0:,} of {figures.prompt_tokens:,} prompt tokens"
        yield f"hit rate  {figures.hit_rate:>10.1%}      {reused}"
    if figures.num_good is None:
        yield "goodput     not asked: --slo-ttft MS, --slo-tpot MS"
        return
    limits = (("TTFT", bounds.ttft_ms), ("TPOT", bounds.tpot_ms))
    kept = " and ".join(f"{name} <= {limit:g} ms" for name, limit in limits if limit is not None)
    yield f"goodput   {figures.per_s(figures.num_good):>10,.2f} /s   {figures.num_good} requests with {kept}"


def _notes(figures: Figures) -> Iterator[str]:
    notes = []
    if figures.lag_ms is not None and figures.lag_ms.p99 > _LAGGING_MS:
        notes.append(f"note: requests were sent up to {figures.lag_ms.p99:,.0f} ms late (p99); this client is too busy")
    if figures.is_estimated:
        notes.append("note: some answers came without usage; one token a chunk was assumed for them")
    if notes:
        yield from ("", *notes)
