from tests.points import planned, tiny_point
from tests.synthetic import Spec, manifest_of
from triplepoint.report.machines import describe_facts, sum_up

PLANNED = planned(tiny_point())

EMPTY = dict.fromkeys(
    (
        "step_time_error",
        "memory_error",
        "gpu_power_error",
        "gpu_temp_error_c",
        "predicted_step_time_lo_s",
        "predicted_step_time_hi_s",
        "step_time_s",
    )
) | {"prediction_absent": None}


def test_sum_up_by_hand() -> None:
    interval = {"predicted_step_time_lo_s": 1.0, "predicted_step_time_hi_s": 2.0}
    points = [
        EMPTY | interval | {"step_time_error": 0.10, "memory_error": -0.02, "step_time_s": 1.5},
        EMPTY | interval | {"step_time_error": -0.30, "step_time_s": 2.5},
        EMPTY
        | interval
        | {"step_time_error": 0.20, "step_time_s": 1.0, "gpu_power_error": 0.05, "gpu_temp_error_c": -4.0},
        EMPTY | {"prediction_absent": "processors are not simulated"},
    ]
    assert sum_up(points) == [
        ("Step time", "3 runs, off by 20.0 % in the median, -30.0 % at worst"),
        ("Memory", "1 runs, off by 2.0 % in the median, -2.0 % at worst"),
        ("GPU power", "1 runs, off by 5.0 % in the median, +5.0 % at worst"),
        ("Hottest GPU", "1 runs, off by 4.0 K in the median, -4.0 K at worst"),
        ("Interval", "2 of 3 measured step times lie in the 90 % interval"),
        ("No prediction", "1 runs: processors are not simulated"),
    ]


def test_sum_up_of_simulated_runs_is_nothing() -> None:
    assert sum_up([EMPTY]) == []


def test_said_keeps_different_answers_apart() -> None:
    manifests = [
        manifest_of(Spec("tiny-llama", {"dp": 2}), PLANNED).model_copy(update={"facts": facts})
        for facts in ({"nccl": "2.27.5"}, {"nccl": "2.28.1", "samples": "packed"}, {"nccl": "2.27.5", "cuda": None})
    ]
    assert describe_facts(manifests) == [("NCCL", "2.27.5; 2.28.1"), ("Samples", "packed")]
