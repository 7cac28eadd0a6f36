import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.doctor.facts import expected, one
from triplepoint.config.site import Gang
from triplepoint.doctor.check import Check, Expected, NodeFacts
from triplepoint.doctor.check_nodes import check_fabric, check_gpu_speed, check_together
from triplepoint.doctor.diagnosis import Diagnosis, as_json, as_text, diagnose, write_tables
from triplepoint.doctor.measure import CollectiveRow, KernelRow, group_sizes
from triplepoint.doctor.peers import Meeting
from triplepoint.doctor.probe import ProbePlan, Report, job_parameters, run_probe
from triplepoint.units import MIB

PROBE = "from pathlib import Path; from triplepoint.doctor.probe import run_probe; run_probe(Path.cwd())"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Diagnosis]:
    """Two nodes of a rank each, both on this machine, that found out about each other and measured a little."""
    folder = tmp_path_factory.mktemp("doctor")
    plan = ProbePlan(num_nodes=2, device="cpu", ranks_per_node=1, measure_s=0.2, most_bytes=64 * 1024)
    (folder / "probe.json").write_text(plan.model_dump_json())
    nodes = [
        subprocess.Popen([sys.executable, "-c", PROBE], cwd=folder, env=os.environ | {"SLURM_NODEID": str(node)})
        for node in range(2)
    ]
    assert [node.wait(timeout=200) for node in nodes] == [0, 0]
    return folder, diagnose(folder, 2, Expected())


def test_probes_report_and_agree(measured: tuple[Path, Diagnosis]) -> None:
    _, found = measured
    assert [report.facts.node for report in found.reports] == [0, 1]
    assert not found.has_failed
    assert one(found.checks, "nodes").found == "2 reported"
    assert one(found.checks, "clocks").status == "ok"  # both read one clock
    assert one(found.checks, "shared folder").status == "ok"
    assert "all_reduce" in one(found.checks, "network bandwidth").found


def test_probes_measure_every_kind(measured: tuple[Path, Diagnosis]) -> None:
    _, found = measured
    kinds = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"}
    assert {(row.level, row.num_gpus, row.kind) for row in found.collectives} == {
        ("network", 2, kind) for kind in kinds
    }
    assert all(row.time_s > 0 and row.num_bytes <= 64 * 1024 for row in found.collectives)
    assert {row.cls for row in found.kernels} == {"gemm", "copy"}


def test_run_probe_rank_that_fails_is_a_problem_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ProbePlan(num_nodes=1, device="cpu", ranks_per_node=2, measure_s=1.0, most_bytes=1024)
    (tmp_path / "probe.json").write_text(plan.model_dump_json())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    run_probe(tmp_path, dies_with_parent=False)
    found = diagnose(tmp_path, 1, Expected())
    assert found.has_failed
    assert "of the measurement failed" in one(found.checks, "nodes").found


def test_write_tables_have_the_columns_of_the_configuration(measured: tuple[Path, Diagnosis], tmp_path: Path) -> None:
    _, found = measured
    write_tables(found, tmp_path, "cpu-local", Expected(), "doctor-test")
    for name in ("collectives", "kernels"):
        with Path(f"config/{name}/measured.csv").open() as known, (tmp_path / f"{name}.csv").open() as made:
            columns = next(csv.reader(line for line in known if not line.startswith("#")))
            assert set(columns) <= set(next(csv.reader(made)))


def test_text_and_json_tell_the_same(measured: tuple[Path, Diagnosis]) -> None:
    _, found = measured
    text, content = as_text(found), as_json(found, "two", "2026-01-01T00:00:00+00:00")
    assert len(content["checks"]) == len(found.checks)
    assert all(check["name"] in text for check in content["checks"])
    assert content["has_failed"] is False


@pytest.mark.parametrize(
    ("world_size", "ranks_per_node", "sizes"),
    [(32, 8, [2, 8, 16, 32]), (8, 8, [2, 8]), (4, 2, [2, 4]), (2, 2, [2]), (1, 1, []), (24, 8, [2, 8, 24])],
)
def test_group_sizes_fill_the_world(world_size: int, ranks_per_node: int, sizes: list[int]) -> None:
    assert group_sizes(world_size, ranks_per_node) == sizes


def report(node: int, **changes: object) -> Report:
    fields = {"node": node, "write_bytes_per_s": 1e9, "free_bytes": 1 << 40}
    if node:
        seen = {"sees_after_s": 0.01, "is_seen_after_s": 0.01}
        fields |= {"offset_s": 0.0, "uncertainty_s": 0.0001, "round_trip_s": 0.0002} | seen
    facts = NodeFacts(node=node, host=f"n{node}", vendor="none", num_cores=2, memory_bytes=1 << 34)
    return Report(facts=facts, meeting=Meeting(**(fields | changes)), problem="")


def together(name: str, *reports: Report, num_nodes: int = 2) -> Check:
    return one(check_together(reports, num_nodes), name)


def test_check_together_clock_off_beyond_doubt_warns() -> None:
    assert together("clocks", report(0), report(1, offset_s=0.009)).status == "ok"
    check = together("clocks", report(0), report(1, offset_s=-0.050))
    assert (check.status, check.found) == ("warn", "against n0: n1 -50.000 ms (+-0.100)")


def test_check_together_clocks_of_two_visitors_are_compared() -> None:
    reports = [report(0), report(1, offset_s=0.008), report(2, offset_s=-0.008)]
    assert together("clocks", *reports, num_nodes=3).status == "warn"


def test_check_together_clock_not_known_well_enough_warns() -> None:
    assert together("clocks", report(0), report(1, uncertainty_s=0.02)).status == "warn"


def test_check_together_folder_not_shared_fails() -> None:
    check = together("shared folder", report(0), report(1, sees_after_s=None))
    assert (check.status, check.found) == ("fail", "a file written on one of n0 and n1 is not seen on the other")
    assert together("shared folder", report(0), report(1, sees_after_s=20.0)).status == "warn"


def test_check_together_silent_node_fails() -> None:
    check = together("nodes", report(0))
    assert (check.status, check.found) == ("fail", "no report from node 1 of the job")


def test_check_together_full_and_slow_disk_warns() -> None:
    assert together("free space", report(0), report(1, free_bytes=1 << 30)).status == "warn"
    assert "on n1" in together("write rate", report(0), report(1, write_bytes_per_s=1e6)).found


def kernel(device: int, time_s: float, host: str = "n0", precision: str = "bf16") -> KernelRow:
    return KernelRow(
        cls="gemm", precision=precision, shape=(8, 8, 8), flops=1024.0, num_bytes=384.0, time_s=time_s, host=host,
        device=device,
    )  # fmt: skip


def test_check_gpu_speed_names_the_slow_one() -> None:
    times = [1.0, 1.01, 0.99, 1.1]
    check = check_gpu_speed([kernel(device, time_s) for device, time_s in enumerate(times)])
    assert (check.status, check.found) == ("warn", "n0 gpu3 takes 1.09 times the median")  # 1.1 / 1.005
    assert check_gpu_speed([kernel(0, 1.0), kernel(1, 1.0), kernel(2, 2.0)]).status == "fail"
    assert check_gpu_speed([kernel(0, 1.0), kernel(1, 1.04)]).status == "ok"
    assert check_gpu_speed([kernel(0, 1.0, precision="fp32"), kernel(1, 9.0, precision="fp32")]).status == "skipped"


def reduction(level: str, num_gpus: int, bus_gb_per_s: float, host: str = "n0") -> CollectiveRow:
    num_bytes = 256 * MIB
    time_s = 2 * (num_gpus - 1) / num_gpus * num_bytes / (bus_gb_per_s * 1e9)
    return CollectiveRow(
        level=level, kind="all_reduce", num_gpus=num_gpus, num_bytes=num_bytes, time_s=time_s, host=host
    )


def test_check_fabric_below_its_description_warns() -> None:
    h200 = expected("h200x32")  # 450 GB/s of NVLink; 12.5 GB/s of network a node
    good, bad = reduction("node", 8, 300.0), reduction("network", 32, 5.0)
    assert [check.status for check in check_fabric([good, bad], h200)] == ["ok", "warn"]
    assert "5 GB/s" in one(check_fabric([bad], h200), "network bandwidth").found


def test_check_fabric_without_a_switch_has_no_description_to_reach() -> None:
    # 40 of the 350 GB/s of all links of a die: no ring uses them all.
    assert one(check_fabric([reduction("node", 8, 40.0)], expected("mi250x32")), "node bandwidth").status == "ok"
    assert one(check_fabric([reduction("node", 8, 40.0)], expected("h200x32")), "node bandwidth").status == "warn"


def test_check_fabric_slow_node_is_named() -> None:
    rows = [reduction("node", 8, rate, f"n{node}") for node, rate in enumerate([400.0, 410.0, 250.0])]
    check = one(check_fabric(rows, expected("h200x32")), "node bandwidth")
    assert check.status == "warn"
    assert "n2" in check.advice


def test_job_parameters_of_slurm_carry_the_site() -> None:
    h200 = expected("h200x32").cluster
    assert h200 is not None
    plan = ProbePlan(num_nodes=4, device="cuda", ranks_per_node=8, measure_s=60.0, most_bytes=MIB)
    found = job_parameters(
        plan, h200, Gang(partition="gpu", account="us", exclude=("n3",), sbatch={"reservation": "x"})
    )
    assert found["nodes"] == 4
    assert found["timeout_min"] == 11  # 2 * 300 s + 60 s
    assert (found["slurm_partition"], found["slurm_gres"], found["slurm_exclude"]) == ("gpu", "gpu:8", "n3")
    assert found["slurm_additional_parameters"] == {"reservation": "x"}
