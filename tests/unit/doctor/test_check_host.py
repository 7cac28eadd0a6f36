import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.presets import hgx_h200
from tests.unit.doctor.facts import expected, one, read
from triplepoint.doctor.check import Check, Expected, NodeFacts, by_gpu, fold, odd_ones
from triplepoint.doctor.check_node import check_host
from triplepoint.doctor.node import read_ports, read_sensors, read_xids
from triplepoint.launch.slurm import ranges

H200 = expected("h200x32-1x100")
"""With one adapter a node, as the made-up nodes have."""


def make_port(sys: Path, adapter: str, **files: str) -> None:
    port = sys / "class/infiniband" / adapter / "ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "counters/port_xmit_data").write_text("0\n")
    for name, text in (
        {"state": "4: ACTIVE", "link_layer": "InfiniBand", "rate": "100 Gb/sec (4X EDR)"} | files
    ).items():
        (port / name).write_text(f"{text}\n")


def facts(sys: Path, **changes: object) -> NodeFacts:
    fields = {"node": 0, "host": "n0", "vendor": "none", "num_cores": 2, "memory_bytes": 1 << 34}
    return NodeFacts(**(fields | {"ports": read_ports(sys), "telemetry": read_sensors(sys)} | changes))


def test_check_host_of_fake_node_reads_its_sensors_and_ports() -> None:
    checks = check_host(read(hgx_h200()), H200)
    assert one(checks, "host telemetry").status == "ok"
    assert one(checks, "network counters").status == "ok"
    network = one(checks, "network ports")
    assert (network.status, network.found) == ("ok", "mlx5_0/1: InfiniBand ACTIVE 100 Gb/s")


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, "ok"),
        ({"state": "2: INIT"}, "fail"),
        ({"rate": "50 Gb/sec (2X EDR)"}, "fail"),
    ],
)
def test_check_host_network_port_against_the_cluster(tmp_path: Path, files: dict[str, str], status: str) -> None:
    make_port(tmp_path, "mlx5_0", **files)
    assert one(check_host(facts(tmp_path), H200), "network ports").status == status


def test_check_host_more_ports_than_described_warns(tmp_path: Path) -> None:
    make_port(tmp_path, "mlx5_0")
    make_port(tmp_path, "mlx5_1")
    assert one(check_host(facts(tmp_path), H200), "network ports").status == "warn"


def test_check_host_no_adapter_is_skipped_unless_expected(tmp_path: Path) -> None:
    assert one(check_host(facts(tmp_path), Expected()), "network ports").status == "skipped"
    assert one(check_host(facts(tmp_path), H200), "network ports").status == "fail"


def test_check_host_unreadable_counter_is_told(tmp_path: Path) -> None:
    make_port(tmp_path, "mlx5_0")
    (tmp_path / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data").unlink()
    check = one(check_host(facts(tmp_path), H200), "network counters")
    assert check.status == "warn"
    assert "port_xmit_data: No such file" in check.found


def test_check_host_driver_too_old_for_torch_fails(tmp_path: Path) -> None:
    versions = {"driver": "535.1", "cuda driver": "12.2", "torch": "2.13.0", "cuda of torch": "13.0", "nccl": "2.29.7"}
    checks = check_host(facts(tmp_path, vendor="nvidia", versions=versions), H200)
    assert one(checks, "driver").status == "fail"
    assert one(checks, "collective library").found == "nccl 2.29.7"


def test_check_host_torch_for_processors_on_a_gpu_node_fails(tmp_path: Path) -> None:
    versions = {"driver": "575.1", "cuda driver": "13.0", "torch": "2.13.0+cpu"}
    checks = check_host(facts(tmp_path, vendor="nvidia", versions=versions), H200)
    assert one(checks, "driver").status == "fail"
    assert one(checks, "collective library").status == "fail"


@pytest.mark.parametrize(("shm", "status"), [(64 << 20, "warn"), (1 << 34, "ok"), (None, "fail")])
def test_check_host_shared_memory(tmp_path: Path, shm: int | None, status: str) -> None:
    assert one(check_host(facts(tmp_path, shm_bytes=shm), Expected()), "shared memory").status == status


def test_read_xids_takes_the_drivers_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;usb 1-1: new device\n4,2,2,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n")
    assert read_xids(log) == ("Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",)
    assert read_xids(tmp_path / "none") is None


def test_fold_joins_nodes_and_puts_the_worst_first() -> None:
    checks = [Check("pcie", "ok", "x16", nodes=(f"n{node}",)) for node in (0, 2)]
    checks += [Check("clocks", "ok", "1980", nodes=("n0",)), Check("pcie", "fail", "x8", nodes=("n1",))]
    assert [(check.name, check.status, check.nodes) for check in fold(checks)] == [
        ("pcie", "fail", ("n1",)),
        ("pcie", "ok", ("n0", "n2")),
        ("clocks", "ok", ("n0",)),
    ]


@given(numbers=st.sets(st.integers(0, 40), min_size=1))
def test_ranges_read_back_are_the_numbers(numbers: set[int]) -> None:
    parts = [part.split("-") for part in ranges(numbers).split(",")]
    assert [number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)] == sorted(numbers)
    assert all(int(after[0]) - int(before[-1]) > 1 for before, after in itertools.pairwise(parts)), (
        "joined where it can be"
    )


def test_words_of_many_gpus() -> None:
    assert ranges([5, 0, 1, 2, 7, 8]) == "0-2,5,7-8"
    assert by_gpu([(0, "a"), (1, "b"), (2, "a")]) == "gpu0,2: a; gpu1: b"
    assert odd_ones({"a": 1, "b": 2, "c": 1}) == (1, {"b": 2})
