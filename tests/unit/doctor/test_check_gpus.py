import pytest

from tests.fakes.presets import hgx_a100, hgx_h200, mi250_node
from tests.fakes.scenario import Rule
from tests.fakes.wave import constant
from tests.unit.doctor.facts import CATALOGUE, expected, one, read
from triplepoint.doctor.check import Expected, GpuFacts, NodeFacts
from triplepoint.doctor.check_node import check_gpus
from triplepoint.doctor.check_nodes import check_agreement
from triplepoint.doctor.node import read_node
from triplepoint.telemetry import nvml_library

H200 = expected("h200x32")


def test_check_gpus_healthy_node_is_all_well() -> None:
    checks = check_gpus(read(hgx_h200()), H200)
    assert {check.name: check.status for check in checks} == dict.fromkeys(
        ["gpu count", "gpu type", "power limit", "clocks", "slowdown", "memory errors", "pcie", "nvlink/xgmi"]
        + ["other work", "gpu telemetry", "xid errors"],
        "ok",
    )
    assert one(checks, "nvlink/xgmi").found == "gpu0-7: 18 links up"


def test_check_gpus_lower_power_limit_names_the_gpu_and_both_limits() -> None:
    check = one(check_gpus(read(hgx_h200().set_gpu(3, limit_w=500.0)), H200), "power limit")
    assert (check.status, check.found) == ("warn", "gpu3: 500 W, default 700 W")


def test_check_gpus_limit_below_the_description_is_told() -> None:
    scenario = hgx_h200().set_all(limit_w=600.0, default_limit_w=600.0)
    check = one(check_gpus(read(scenario), H200), "power limit")
    assert (check.status, check.found) == ("warn", "gpu0-7: 600 W, config/gpus/h200.yaml has 700 W")


def test_check_gpus_held_down_by_hardware_fails() -> None:
    scenario = hgx_h200().set_gpu(5, load=constant(1.0), hw_thermal=constant(1.0))
    check = one(check_gpus(read(scenario, at_s=5.0), H200), "slowdown")
    assert check.status == "fail"
    assert check.found.startswith("gpu5: ")
    assert "hardware thermal slowdown" in check.found


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({"ecc_uncorrected": 2}, "fail", "gpu1: 2 uncorrected errors since the driver was loaded"),
        ({"remapped_rows": 3}, "warn", "gpu1: 3 rows or pages taken out of use"),
    ],
)
def test_check_gpus_memory_errors(changes: dict[str, float], status: str, found: str) -> None:
    check = one(check_gpus(read(hgx_h200().set_gpu(1, **changes)), H200), "memory errors")
    assert (check.status, check.found) == (status, found)


def test_check_gpus_missing_gpu_fails() -> None:
    check = one(check_gpus(read(hgx_h200(7)), H200), "gpu count")
    assert (check.status, check.found, check.expected) == ("fail", "7", "8, config/clusters/h200x32.yaml")


def test_check_gpus_lost_gpu_is_named_and_the_others_are_still_checked() -> None:
    scenario = hgx_h200()
    scenario.errors.append(Rule("nvmlDeviceGetHandleByIndex_v2", 15, gpu=6))
    checks = check_gpus(read(scenario), H200)
    assert one(checks, "gpu count").status == "fail"
    assert one(checks, "gpu count").found == "8; gpu6: lost (GPU is lost)"
    assert one(checks, "power limit").found == "gpu0-5,7: 700 W"


def test_check_gpus_unplugged_gpu_is_missed() -> None:
    check = one(check_gpus(read(hgx_h200().set_gpu(6, unplug_s=1.0), at_s=2.0), H200), "gpu count")
    assert (check.status, check.found) == ("fail", "7")


@pytest.mark.parametrize(
    ("name", "status"), [("a100", "ok"), ("a800", "fail"), ("a100-pcie", "fail"), ("a100-40gb", "fail")]
)
def test_check_gpus_type_by_its_name_in_that_of_the_driver(name: str, status: str) -> None:
    assert one(check_gpus(read(hgx_a100()), Expected(gpu=CATALOGUE.gpu(name))), "gpu type").status == status


def test_check_gpus_other_type_fails() -> None:
    check = one(check_gpus(read(hgx_a100()), H200), "gpu type")
    assert (check.status, check.found) == ("fail", "gpu0-7: NVIDIA A100-SXM4-80GB, 80.0 GiB")


def test_check_gpus_hidden_from_torch_fails() -> None:
    facts = read(hgx_h200()).model_copy(update={"num_torch_devices": 2})
    check = one(check_gpus(facts, H200), "gpu count")
    assert (check.status, check.found) == ("fail", "the driver shows 8, torch sees 2")


def test_check_gpus_counter_without_permission_is_named() -> None:
    scenario = hgx_h200()
    scenario.errors.append(Rule("nvmlDeviceGetTotalEnergyConsumption", 4, gpu=2))
    check = one(check_gpus(read(scenario), H200), "gpu telemetry")
    assert check.status == "warn"
    assert check.found == "gpu2: gpu_energy_j (Insufficient Permissions)"


@pytest.mark.parametrize(
    ("name", "changes", "status", "found"),
    [
        ("pcie", {"pcie_width": 8}, "fail", "gpu4: x8 of x16"),
        ("pcie", {"pcie_generation": 4, "max_pcie_generation": 5}, "warn", "gpu4: generation 4 x16, the GPU has 5"),
        ("nvlink/xgmi", {"num_links_up": 17}, "fail", "gpu4: 17 of 18 links up"),
        ("memory errors", {"is_repair_pending": True}, "fail", "gpu4: a repair waits for a reset"),
        ("memory errors", {"has_repair_failed": True}, "fail", "gpu4: rows could not be remapped"),
        ("memory errors", {"has_ecc": False}, "warn", "gpu4: error correction is off"),
        ("clocks", {"default_clock_mhz": 1980.0, "clock_limit_mhz": 1500.0}, "warn", "gpu4: set to 1500 MHz, default "),
        ("other work", {"num_processes": 1}, "warn", "gpu4: 1 process"),
    ],
)
def test_check_gpus_one_odd_gpu(name: str, changes: dict[str, object], status: str, found: str) -> None:
    facts = read(hgx_h200())
    gpus = [gpu.model_copy(update=changes if gpu.index == 4 else {}) for gpu in facts.gpus]
    check = one(check_gpus(facts.model_copy(update={"gpus": tuple(gpus)}), H200), name)
    assert check.status == status
    assert check.found.startswith(found)


def test_check_gpus_mi250_by_configuration_only() -> None:
    facts = read(mi250_node())
    assert facts.vendor == "amd"
    checks = check_gpus(facts, expected("mi250x32"))
    statuses = {check.name: check.status for check in checks}
    assert {name for name, status in statuses.items() if status == "fail"} == set()
    assert one(checks, "power limit").found == "gpu0,2,4,6: 500 W"  # the other die of a package has no sensor
    assert one(checks, "clocks").found == "gpu0-7: at most 1700 MHz"
    assert statuses["xid errors"] == "skipped"


def test_check_gpus_none_where_they_are_expected_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_library, "LIBRARY", "libno-such-library.so.1")
    facts = read_node(0, ("nvidia",))
    (check,) = check_gpus(facts, H200)
    assert (check.status, check.found) == ("fail", "NVML: NVML Shared Library Not Found")
    (check,) = check_gpus(facts, Expected())
    assert check.status == "skipped"


def named(node: int, **changes: object) -> NodeFacts:
    """One of several nodes of two GPUs that are alike but for what is said."""
    gpus = tuple(GpuFacts(index=index, power_limit_w=700.0, **changes) for index in range(2))
    return NodeFacts(
        node=node, host=f"n{node}", vendor="nvidia", gpus=gpus, versions={"driver": "575"}, num_cores=8,
        memory_bytes=1 << 40,
    )  # fmt: skip


def test_check_agreement_names_who_is_odd() -> None:
    nodes = [named(0), named(1), named(2).model_copy(update={"versions": {"driver": "570"}, "num_cores": 4})]
    odd = nodes[1].gpus[1].model_copy(update={"power_limit_w": 600.0})
    nodes[1] = nodes[1].model_copy(update={"gpus": (nodes[1].gpus[0], odd)})
    checks = check_agreement(nodes)
    assert one(checks, "same versions").found == "driver: n2 has 570, most 575"
    assert one(checks, "same gpus").found == "power limit (W): n1 gpu1 has 600.0, most 700.0"
    assert one(checks, "same hosts").found == "processors: n2 has 4, most 8"


def test_check_agreement_alike_is_well() -> None:
    assert {check.status for check in check_agreement([named(0), named(1)])} == {"ok"}
