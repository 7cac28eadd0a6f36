"""What a node was given, on NVIDIA and on AMD."""

import os

from triplepoint.launch.slurm import missing_devices, placement, rank_environment, visible_devices


def test_visible_devices_have_a_variable_for_each_vendor() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "4,5", "ROCR_VISIBLE_DEVICES": "6"}
    assert visible_devices("cuda", environment) == ("4", "5")
    assert visible_devices("rocm", environment) == ("6",)
    assert visible_devices("rocm", {"CUDA_VISIBLE_DEVICES": "1"}) is None


def test_missing_devices_names_variable_and_numbers() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}
    found = missing_devices("cuda", 8, environment)
    assert found == "CUDA_VISIBLE_DEVICES names 7 devices (0,1,2,3,4,5,6), 8 ranks need one each"
    assert missing_devices("cuda", 7, environment) is None
    assert missing_devices("cuda", 8, {}) is None
    assert missing_devices("cpu", 8, environment) is None


def test_rank_environment_of_rocm_filters_devices_once() -> None:
    given = {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5", "A": "b"}
    assert rank_environment("rocm", given) == {"ROCR_VISIBLE_DEVICES": "4,5", "A": "b"}
    assert rank_environment("cuda", given) == given
    assert rank_environment("cpu", {"A": "b"}) == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}, "which none of them uses"
    by_hand = {"HIP_VISIBLE_DEVICES": "4,5"}
    assert rank_environment("rocm", by_hand) == by_hand


def test_placement_gives_processors_as_ranges() -> None:
    before = os.sched_getaffinity(0)
    found = placement({"SLURM_TOPOLOGY_ADDR": "spine.leaf1.n1", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert found["switches"] == "spine.leaf1.n1"
    assert found["devices"] == ("0", "1")
    numbers = [part.partition("-") for part in found["cpus"].split(",")]
    assert {n for a, _, b in numbers for n in range(int(a), int(b or a) + 1)} == before
