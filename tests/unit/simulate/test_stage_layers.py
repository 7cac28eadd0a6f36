"""Stages of unequal layers, and stages some of whose layers are recomputed: their work, memory and time."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.simulate.jobs import gpt, job, llama, mixtral
from tests.unit.simulate.test_run import planned
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import lighter_ends
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.simulate.fabric import fabric_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import memory_by_stage, peak_memory
from triplepoint.simulate.predict.prediction import predict
from triplepoint.simulate.work.blocks import split_layers

CONFIG = Path(__file__).parents[3] / "config"
CLUSTER = Catalogue(CONFIG).cluster("h200x32")
GPU = Catalogue(CONFIG).gpu("h200")
INTERLEAVED: dict[str, Any] = {"pp": 2, "vp": 2, "schedule": "interleaved_1f1b"}
ONE_F: dict[str, Any] = {"pp": 2, "schedule": "1f1b"}
PLACES: list[dict[str, Any]] = [
    {},
    ONE_F,
    INTERLEAVED,
    ONE_F | {"pipeline_layers": (3, 5)},
    INTERLEAVED | {"pipeline_layers": (1, 3, 3, 1)},
    {"tp": 2, "sequence_parallel": True},
]


def step_time_s(found: Job) -> float:
    real = replace(found, gpu=GPU, fabric=fabric_of(CLUSTER, GPU, CONFIG))
    return predict(real, None, CONFIG, with_power=False).step_time_s


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", [llama(), gpt(), mixtral()], ids=["llama", "gpt", "experts"])
def test_recomputing_more_layers_takes_longer_and_less_memory(model: Any, place: dict[str, Any]) -> None:
    most = max(place.get("pipeline_layers", [8 // (place.get("pp", 1) * place.get("vp", 1))]))
    jobs = [job(model, **place)]
    jobs += [job(model, recompute="full", recompute_layers=number, **place) for number in range(1, most)]
    jobs += [job(model, recompute="full", **place)]
    times, memory = [step_time_s(found) for found in jobs], [peak_memory(found).total for found in jobs]
    assert times == sorted(times)
    assert memory == sorted(memory, reverse=True)
    assert times[0] < times[1] <= times[-1]
    assert memory[0] > memory[1] >= memory[-1]


def test_all_layers_of_each_chunk_are_all_layers() -> None:
    every = job(recompute="full", **INTERLEAVED)
    said = job(recompute="full", recompute_layers=2, **INTERLEAVED)
    assert split_layers(said) == split_layers(every)
    assert memory_by_stage(said) == memory_by_stage(every)


@settings(max_examples=examples(20), deadline=None)
@given(
    vp=st.sampled_from([1, 2]),
    microbatches=st.sampled_from([4, 8, 16]),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_an_even_split_is_the_same_whether_said_or_not(vp: int, microbatches: int, recompute: Any) -> None:
    schedule = "interleaved_1f1b" if vp > 1 else "1f1b"
    common = {"pp": 4, "vp": vp, "schedule": schedule, "global_batch_size": 2 * microbatches, "recompute": recompute}
    plain = job(llama(), **common)
    said = job(llama(), pipeline_layers=(8 // (4 * vp),) * (4 * vp), **common)
    assert split_layers(said) == split_layers(plain)
    assert step_time_s(said) == step_time_s(plain)
    # Passes in flight are counted in the order of the schedule where layers are said, by formula where not; that one
    # takes the chunks of a stage for alike, which those with the embedding and the head are not quite.
    for one, other in list(zip(memory_by_stage(said), memory_by_stage(plain), strict=True))[1:-1]:
        assert one.activations == pytest.approx(other.activations, rel=1e-9)


def test_chunks_have_the_layers_said() -> None:
    stages = split_layers(job(pipeline_layers=(1, 3, 2, 2), **INTERLEAVED))
    assert [[chunk.num_layers for chunk in stage] for stage in stages] == [[1, 2], [3, 2]]
    assert [[chunk.is_first for chunk in stage] for stage in stages] == [[True, False], [False, False]]
    assert [[chunk.is_last for chunk in stage] for stage in stages] == [[False, False], [False, True]]


@pytest.mark.parametrize(("layers", "kept"), [((3, 2, 1, 2), 4 * 3 + 1), ((1, 2, 3, 2), 3 * 1 + 2 * 3)])
def test_passes_in_flight_of_unequal_chunks_by_hand(layers: tuple[int, ...], kept: int) -> None:
    """Of four micro-batches stage 0 begins with F0 F1 f0 f1 F2 b0 F3 b1 f2 (capitals: first chunk)."""

    def activations(**changes: Any) -> float:
        return memory_by_stage(job(global_batch_size=8, **changes))[0].activations

    of_layer = activations(model=llama(num_layers=2)) - activations(model=llama(num_layers=1))
    found = activations(model=llama(), pipeline_layers=layers, **INTERLEAVED)
    assert found == pytest.approx(kept * of_layer, rel=0.01)


def test_the_stage_with_more_layers_sets_the_pace() -> None:
    even, uneven = (job(llama(), pipeline_layers=layers, **ONE_F) for layers in ((4, 4), (2, 6)))
    # 32 micro-batches: the larger stage works on nearly all the time.
    assert 1.2 < step_time_s(uneven) / step_time_s(even) < 1.5


def test_traces_of_a_simulated_run_have_the_layers_of_their_stage(tmp_path: Path) -> None:
    run = planned("llama3-70b_h200x32_tp4-pp4")
    layout = run.point.layout.model_copy(update={"pipeline_layers": (10, 20, 20, 30)})
    small = {"global_batch_size": 8, "trace_ranks": (0, 24)}
    point = run.point.model_copy(update={"layout": layout, "recompute_layers": 15, **small})
    assert simulate_run(run.model_copy(update={"point": point}), tmp_path, CONFIG).status == "ok"

    def count(rank: int, pattern: str) -> int:
        with gzip.open(tmp_path / "traces" / f"rank{rank}.json.gz") as trace:
            names = [
                str(event.get("name")) for event in json.load(trace)["traceEvents"] if event.get("cat") == "kernel"
            ]
        return sum(pattern in name for name in names)

    for rank, layers, again in ((0, 10, 10), (24, 30, 15)):
        assert count(rank, "flash_fwd") == point.num_microbatches * (layers + again)
        assert count(rank, "flash_bwd_dq_dk_dv") == point.num_microbatches * layers


def test_fewer_layers_beside_the_head_even_the_stages_out() -> None:
    model = llama(vocab_size=65536)
    times = [step_time_s(job(model, pipeline_layers=layers, **ONE_F)) for layers in ((4, 4), (6, 2))]
    assert times[1] < times[0]


EMPTY: list[dict[str, Any]] = [
    {"pp": 4, "schedule": "1f1b", "pipeline_layers": (0, 4, 4, 0)},
    {"pp": 4, "schedule": "1f1b", "pipeline_layers": (3, 0, 3, 2)},
    {"pp": 2, "vp": 2, "schedule": "interleaved_1f1b", "pipeline_layers": (0, 4, 4, 0)},
]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("place", EMPTY)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_stages_without_layers_do_only_what_is_at_the_ends(place: dict[str, Any], recompute: Any) -> None:
    found = job(llama(), recompute=recompute, **place)
    assert [chunk.num_layers for stage in split_layers(found) for chunk in stage].count(0) >= 1
    real = replace(found, gpu=GPU, fabric=fabric_of(CLUSTER, GPU, CONFIG))
    prediction = predict(real, None, CONFIG)
    assert prediction.status == "ok" and prediction.step_time_s > 0 and prediction.power.gpu_power_w > 0
    uses = memory_by_stage(found)
    assert all(use.total > 0 for use in uses)


@settings(max_examples=examples(20), deadline=None)
@given(layers=st.integers(1, 40), stages=st.integers(1, 16))
def test_lighter_ends_hold_all_layers(layers: int, stages: int) -> None:
    found = lighter_ends(layers, stages)
    assert sum(found) == layers and len(found) == stages
    assert max(found) - min(found) <= 1
    assert found[-1] == min(found)
