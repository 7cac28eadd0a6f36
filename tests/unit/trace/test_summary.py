"""What `triplepoint trace` prints of each rank and of all together."""

from dataclasses import dataclass

from tests.unit.trace.rank.parsed import parse
from tests.unit.trace.traces import ALL_REDUCE, GEMM, event, kernel
from triplepoint.trace.compare import Comparison, compare_ranks
from triplepoint.trace.loose_traces import summarise
from triplepoint.trace.rank_results import RankSummary

NOTHING = compare_ranks([], [])


def lines(summary: RankSummary, comparison: Comparison = NOTHING) -> list[str]:
    return [" ".join(line.split()) for line in summarise([summary], comparison).splitlines()]


def test_summarise_a_device_by_hand() -> None:
    args = {"Process Group Description": "mesh_tp"}
    parsed = parse([kernel(GEMM, 0, 60), kernel(ALL_REDUCE, 50, 30, stream=9, **args), kernel(GEMM, 90, 10)])
    assert lines(parsed.summary) == [
        "rank 5: 0.100 ms with 3 GPU events",
        "compute 0.070 ms 70.00 %",
        "comm exposed 0.020 ms 20.00 %",
        "comm overlapped 0.010 ms 10.00 %",
        "memory exposed 0.000 ms 0.00 %",
        "idle 0.010 ms 10.00 %",
        "mostly gemm 0.070 ms, comm/all_reduce[tp] 0.020 ms",
        "idle because idle/other 0.010 ms",
    ]


def test_summarise_a_cpu() -> None:
    assert lines(parse([event("aten::mm", 0, 100)]).summary)[0] == "rank 5: 0.100 ms with CPU work"


def test_summarise_without_work() -> None:
    assert lines(parse([]).summary) == ["rank 5: no work in the trace"]


def test_summarise_damage_is_told() -> None:
    events = [*[kernel(GEMM, 0, 10)] * 3, kernel(GEMM, 5, -1), kernel(GEMM, 6, -1)]
    assert lines(parse(events).summary)[0] == (
        "rank 5: 0.010 ms with 1 GPU events; 2 damaged events, 2 duplicate events left out"
    )
    assert lines(parse(events[3:]).summary) == ["rank 5: no work in the trace; 2 damaged events"]


def test_summarise_names_no_more_than_the_longest() -> None:
    names = ("gemm", "layer_norm", "softmax_k", "flash_fwd_kernel", "adam_k", "embedding_k", "Cijk_x", "conv2d_k")
    events = [kernel(f"{name}_{i}", 100 * i, 10 + i) for i, name in enumerate(names * 3)]
    mostly = next(line for line in lines(parse(events).summary) if line.startswith("mostly"))
    assert 1 <= mostly.count(" ms") <= 8


def test_summarise_ranks_together_by_hand() -> None:
    one = parse([kernel(GEMM, 0, 60), kernel(ALL_REDUCE, 50, 30, stream=9)]).summary
    two = parse([kernel(GEMM, 0, 20)]).summary
    first = summarise([one, two], NOTHING).splitlines()[0]
    shares = "compute 80.0 %, comm exposed 20.0 %, comm overlapped 10.0 %, memory exposed 0.0 %, idle 0.0 %"
    assert first == f"2 ranks together: {shares}"


@dataclass(frozen=True)
class Standing:
    rank: int
    is_straggler: bool
    compute_excess: float
    share_last: float


def test_summarise_all_ranks() -> None:
    standings = [Standing(0, False, 0.0, 0.1), Standing(3, True, 0.125, 0.9)]
    comparison = Comparison({}, [], standings, {}, [], ["2 collectives are in some traces only"])  # type: ignore[arg-type]
    assert lines(parse([]).summary, comparison) == [
        "rank 3 is a straggler: computes 12.5 % longer than its peers, comes last to 90 % of its collectives",
        "rank 5: no work in the trace",
        "2 collectives are in some traces only",
    ]
