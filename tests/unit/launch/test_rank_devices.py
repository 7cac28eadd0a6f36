"""Ranks and the GPUs they compute on, as variables of the scheduler and the sampler's account tell."""

from pathlib import Path

import pytest

from tests.fakes.node import FakeNode
from tests.fakes.presets import hgx_h200, mi250_node
from tests.fakes.scenario import Scenario
from tests.sampling import Sampled, record
from triplepoint.launch.collect import devices_of_ranks, slots_of


def sampled(scenario: Scenario, folder: Path) -> Sampled:
    return record(scenario, folder, seconds=0.2)


def uuid(node: FakeNode, gpu: int) -> str:
    return node.scenario.gpus[gpu].uuid


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["gpu0", "gpu1", "gpu2", "gpu3"]),
        (["0", "1", "2", "3"], ["gpu0", "gpu1", "gpu2", "gpu3"]),
        (["3", "1", "0", "2"], ["gpu3", "gpu1", "gpu0", "gpu2"]),
        (["2"], ["gpu2", "gpu2", "gpu2", "gpu2"]),
    ],
)
def test_devices_of_ranks_follows_the_order_of_the_variable(
    visible: list[str] | None, expected: list[str], tmp_path: Path
) -> None:
    gpus = sampled(hgx_h200(4), tmp_path).recording.facts["gpus"]
    assert devices_of_ranks(visible, gpus, 4) == (expected, [])
    assert devices_of_ranks(visible, [], 4) == (expected, []), "without a recording too"


def test_devices_of_ranks_knows_uuids_and_their_beginnings(tmp_path: Path) -> None:
    found = sampled(hgx_h200(4), tmp_path)
    whole, short = uuid(found.node, 2), uuid(found.node, 1)
    others = [uuid(found.node, gpu) for gpu in (0, 2, 3)]
    length = next(n for n in range(5, 41) if not any(other.startswith(short[:n]) for other in others))
    visible = [whole, short[:length].upper().replace("GPU", "GPU")]
    assert devices_of_ranks(visible, found.recording.facts["gpus"], 2) == (["gpu2", "gpu1"], [])


def test_devices_of_ranks_of_amd_by_the_serial_number(tmp_path: Path) -> None:
    # ROCR_VISIBLE_DEVICES takes GPU-<unique id>; sampler and ranks number dies as HIP does.
    found = sampled(mi250_node(2), tmp_path)
    gpus = found.recording.facts["gpus"]
    for die in found.node.scenario.gpus:
        assert devices_of_ranks([f"GPU-{die.serial}"], gpus, 1)[0] == [f"gpu{die.hip_id}"] or not die.serial
    assert any(die.serial for die in found.node.scenario.gpus)


@pytest.mark.parametrize("style", ["MIG-{instance}", "MIG-GPU-{uuid}/1/0"])
def test_devices_of_ranks_knows_mig_instances(style: str, tmp_path: Path) -> None:
    found = sampled(hgx_h200(2).set_gpu(1, mig_instances=3), tmp_path)
    gpus = found.recording.facts["gpus"]
    assert (len(gpus[0]["instances"]), len(gpus[1]["instances"])) == (0, 3)
    instance = gpus[1]["instances"][2].removeprefix("MIG-")
    name = style.format(instance=instance, uuid=uuid(found.node, 1).removeprefix("GPU-"))
    assert devices_of_ranks([name], gpus, 1) == (["gpu1"], [])


@pytest.mark.parametrize("name", ["7", "GPU-00000000-dead", "MIG-12345678-9abc", "GPU-"])
def test_devices_of_ranks_says_what_it_cannot_find(name: str, tmp_path: Path) -> None:
    gpus = sampled(hgx_h200(2), tmp_path).recording.facts["gpus"]
    devices, lines = devices_of_ranks(["1", name], gpus, 4)
    assert devices == ["gpu1", name, "gpu1", name], "never the name of another GPU"
    assert lines == [
        f"device {name} was given to this node and is none of the 2 GPUs its sampler found; no telemetry of its rank"
    ]


def test_slots_of_without_configuration_are_the_boards(tmp_path: Path) -> None:
    gpus = sampled(hgx_h200(3), tmp_path).recording.facts["gpus"]
    assert slots_of(gpus, None) == ({gpu["device"]: gpu["module"] for gpu in gpus}, [])


def test_slots_of_takes_those_of_the_configuration(tmp_path: Path) -> None:
    gpus = sampled(hgx_h200(2), tmp_path).recording.facts["gpus"]
    assert slots_of(gpus, [21, 17]) == ({"gpu0": 21, "gpu1": 17}, [])
    by_address = {gpu["pci_address"].upper(): slot for gpu, slot in zip(gpus, (31, 30), strict=True)}
    assert slots_of(gpus, by_address) == ({"gpu0": 31, "gpu1": 30}, [])


def test_slots_of_address_without_a_gpu_is_said_and_the_rest_stays(tmp_path: Path) -> None:
    gpus = sampled(hgx_h200(2), tmp_path).recording.facts["gpus"]
    slots, lines = slots_of(gpus, {"0000:77:00.0": 5, gpus[1]["pci_address"]: 6})
    assert slots == {"gpu0": gpus[0]["module"], "gpu1": 6}
    assert lines == ["cluster.slots names 0000:77:00.0, where this node has no GPU; the others keep their slots"]


def test_slots_of_two_gpus_in_one_slot_gives_it_to_none(tmp_path: Path) -> None:
    gpus = sampled(hgx_h200(3), tmp_path).recording.facts["gpus"]
    slots, lines = slots_of(gpus, [9, 4, 9])
    assert slots == {"gpu1": 4}
    assert lines == ["slot 9 is that of gpu0 and gpu2; none of them is given one"]
