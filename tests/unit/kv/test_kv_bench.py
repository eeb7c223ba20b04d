from ramet.cli.bench_cache import run


def test_the_bench_times_every_call(capsys):
    results = run(20, num_documents=3, num_shared=40, num_document=20, num_own=10, num_evicted=16, json=True)
    assert capsys.readouterr().out == ""
    assert set(results) == {"1", "16"}
    for timings in results.values():
        assert set(timings) == {"match", "insert", "evict", "evict, tree 1/10", "yardstick"}
        assert timings["match"]["num_calls"] == timings["insert"]["num_calls"] == 20
        assert all(0 < timing["median_us"] <= timing["p99_us"] for timing in timings.values())
    assert results["1"]["evict"]["num_calls"] == -(-(40 + 3 * 20 + 20 * 10) // 16), "every token was stored once and evicted"


def test_the_table_is_printed_for_people(capsys):
    run(5, num_documents=2, num_shared=32, num_document=16, num_own=16, page_sizes=(4,))
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:6]] == [
        ["4", "match"],
        ["4", "insert"],
        ["4", "evict"],
    ]
