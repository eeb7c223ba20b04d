"""The worked example of docs/design/scheduling.md, run: each row of its table is what happens."""

from __future__ import annotations

import re
from pathlib import Path

from support.engines import Bench

PAGE = Path(__file__).parents[3] / "docs" / "design" / "scheduling.md"


def test_each_row_of_the_table_is_what_happens() -> None:
    bench = Bench(page_size=4, num_pages=7, max_batch_tokens=8, chunked_prefill_size=6, max_running_seqs=3)
    shared = list(range(10, 18))
    for name, prompt in (("A", [*shared, 18]), ("B", [*shared, 30, 31])):
        bench.submit(prompt, request_id=name, max_tokens=12, temperature=0.0, ignore_eos=True)
    happened = []
    while bench.engine.has_work:
        bench.engine.begin_step()
        live = {seq.request.request_id: seq for seq in bench.scheduler.sequences}
        cells = [str(len(happened) + 1)]
        for name in "AB":
            seq = live.get(name)
            cells.append("" if seq is None else f"{seq.num_computed_tokens} + {seq.num_in_flight_tokens} of {len(seq.tokens)}")
            cells.append("" if seq is None else " ".join(map(str, seq.pages.view())))
        happened.append([*cells, str(bench.kv.stats().num_free_pages)])
        bench.finish_step()
    told = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in re.findall(r"^\| \d+ \|.*$", PAGE.read_text(), re.MULTILINE)
        if row.count("|") == 7  # the page has another table, of drafts
    ]
    assert len(told) == 8
    assert [happened[int(row[0]) - 1] for row in told] == told
    bench.check_idle()
    bench.check_against_cold()
