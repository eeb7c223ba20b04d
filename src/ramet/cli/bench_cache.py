"""``ramet bench cache``: what the prefix cache itself costs, on prompts that share a system prompt and a document.

Each prompt is looked up, locked, its new part published, and unlocked, as a served request would; then the tree is evicted
piece by piece. No model runs: the figures are of the index alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ramet.core.ids import Int32
from ramet.core.request import Namespace
from ramet.kv.prefix import PrefixKey
from ramet.kv.radix import RadixCache

__all__ = ["Timing", "run"]

_PROBES, _PROBE_BYTES = 16, 64  # what the yardstick looks up
_YARDSTICK_EVERY = 8  # prompts: often enough to see the same load, seldom enough not to disturb what is timed
_SMALLER = 10  # evict is timed once more on a tree this many times smaller: its cost should not depend on the size


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one kind of call."""

    median_us: float
    p99_us: float
    num_calls: int


def run(
    num_prompts: int = 2000,
    *,
    num_documents: int = 50,
    num_shared: int = 2000,
    num_document: int = 1000,
    num_own: int = 300,
    num_evicted: int = 600,
    page_sizes: Sequence[int] = (1, 16),
    json: bool = False,
) -> dict[str, Any]:
    """Time ``match``, ``insert`` and ``evict`` of the radix cache, and a yardstick; prints a table unless ``json``.

    A prompt is ``num_shared`` tokens common to all, ``num_document`` of one of ``num_documents``, and ``num_own`` of its own.
    ``num_evicted`` are the tokens an ``evict`` call takes. Returns ``{page size: {call: {median_us, p99_us, num_calls}}}``.
    """
    prompts = _prompts(num_prompts, num_documents, (num_shared, num_document, num_own))
    results: dict[str, Any] = {}
    for page_size in page_sizes:
        timings = _time(prompts, page_size, num_evicted)
        smaller = _time(prompts[: max(1, num_prompts // _SMALLER)], page_size, num_evicted)
        timings[f"evict, tree 1/{_SMALLER}"] = smaller["evict"]
        results[str(page_size)] = {name: asdict(timing) for name, timing in timings.items()}
    if not json:
        _show(results, num_prompts, num_shared + num_document + num_own, num_evicted)
    return results


def _prompts(num_prompts: int, num_documents: int, sizes: tuple[int, int, int]) -> list[PrefixKey]:
    rng = np.random.default_rng(0)
    num_shared, num_document, num_own = sizes

    def draw(size: int) -> Int32:
        return rng.integers(0, 50_000, size, dtype=np.int32)

    shared = draw(num_shared)
    documents = [draw(num_document) for _ in range(num_documents)]
    rows = (np.concatenate((shared, documents[i % num_documents], draw(num_own))) for i in range(num_prompts))
    return [PrefixKey(Namespace(), tokens) for tokens in rows]


def _time(prompts: list[PrefixKey], page_size: int, num_evicted: int) -> dict[str, Timing]:
    cache = RadixCache(page_size)
    clock = time.perf_counter_ns
    match_ns, insert_ns, evict_ns, yardstick_ns = [], [], [], []
    next_page = 0
    for index, prompt in enumerate(prompts):
        num_pages = len(prompt.tokens) // page_size
        key = PrefixKey(prompt.namespace, prompt.tokens[: num_pages * page_size])
        start = clock()
        match = cache.match(key)
        match_ns.append(clock() - start)
        lock = cache.lock(match)
        pages = np.arange(next_page, next_page + num_pages - len(match.pages), dtype=np.int32)
        next_page += len(pages)
        start = clock()
        inserted = cache.insert(key, pages, lock)
        insert_ns.append(clock() - start)
        cache.unlock(inserted.lock)
        if index % _YARDSTICK_EVERY == 0:
            far = prompts[index - len(prompts) // 2].tokens  # as cold as the next prompt
            start = clock()
            _yardstick(far)
            yardstick_ns.append(clock() - start)
    wanted = -(-num_evicted // page_size)
    while cache.stats().num_evictable_pages:
        start = clock()
        cache.evict(wanted)
        evict_ns.append(clock() - start)
    return {
        "match": _timing(match_ns),
        "insert": _timing(insert_ns),
        "evict": _timing(evict_ns),
        "yardstick": _timing(yardstick_ns),
    }


def _yardstick(tokens: Int32) -> None:
    """Fixed work of a lookup's kind and no cache in it: copy a prompt, and look parts of it up in a dict that has none."""
    data = tokens.tobytes()
    nothing: dict[bytes, None] = {}
    for at in range(0, _PROBES * _PROBE_BYTES, _PROBE_BYTES):
        nothing.get(data[at : at + _PROBE_BYTES])


def _timing(durations_ns: list[int]) -> Timing:
    median, p99 = np.percentile(np.array(durations_ns) / 1000, (50, 99)).tolist()
    return Timing(round(median, 2), round(p99, 2), len(durations_ns))


def _show(results: dict[str, Any], num_prompts: int, num_tokens: int, num_evicted: int) -> None:
    print(f"radix cache, {num_prompts} prompts of {num_tokens} tokens; evict takes {num_evicted} tokens")
    print(f"yardstick: copy a prompt, {_PROBES} dict lookups, no cache; counted in yardsticks, medians of busy machines compare")
    print(f"{'page size':>9}  {'call':<16}{'median µs':>10}{'p99 µs':>10}{'calls':>8}{'yardsticks':>12}")
    for page_size, timings in results.items():
        for name, timing in timings.items():
            ratio = timing["median_us"] / timings["yardstick"]["median_us"]
            figures = f"{timing['median_us']:>10.2f}{timing['p99_us']:>10.2f}{timing['num_calls']:>8}{ratio:>12.2f}"
            print(f"{page_size:>9}  {name:<16}{figures}")
