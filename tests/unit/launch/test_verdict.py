"""Weighing what agents reported against what Slurm says; no Slurm is asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.points import planned, tiny_point
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout, PointCluster
from triplepoint.errors import UserError
from triplepoint.launch import outcome
from triplepoint.launch.outcome import Account, judge, with_suspects
from triplepoint.launch.slurm import GONE, JobState
from triplepoint.manifest import Evidence, Suspect
from triplepoint.status import Status

PEER = ("crashed", "RuntimeError: Connection closed by peer [10.0.0.3]:4242")
TOLD = ("cancelled", "told to end: SIGTERM from Slurm")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlannedRun:
    """Three nodes of one rank, called n1 to n3 by a Slurm that only says so."""
    monkeypatch.setattr(outcome, "hosts", lambda nodes: ["n1", "n2", "n3"] if nodes else [])
    monkeypatch.setattr(outcome, "node_state", lambda node: "down*")
    cluster = PointCluster(name="test", device="cpu", gpu=None, gpus_per_node=1)
    return planned(tiny_point(cluster=cluster, num_gpus=3, layout=Layout(dp=3)))


def report(node: int, failure: tuple[Status, str] | None = None, t: int = 0) -> dict[str, Any]:
    found = failure and {
        "rank": node,
        "status": failure[0],
        "message": failure[1],
        "t_wall_ns": t,
        "is_user_error": False,
    }
    return {"node": node, "host": f"n{node + 1}", "ranks": [node], "failure": found}


def account(state: str, by_us: bool = False) -> Account:
    return Account("77", JobState(state, "", "n[1-3]"), by_us)


def test_judge_success_of_all_agents_needs_no_slurm(run: PlannedRun, tmp_path: Path) -> None:
    assert judge(tmp_path, run, [report(node) for node in range(3)], account("NODE_FAIL")) == ("ok", None)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("PREEMPTED", "preempted"),
        ("TIMEOUT", "timeout"),
        ("CANCELLED", "cancelled"),
        ("OUT_OF_MEMORY", "oom"),
        ("NODE_FAIL", "lost"),
        (GONE, "lost"),
    ],
)
def test_judge_what_slurm_did_explains_healthy_ranks(
    run: PlannedRun, tmp_path: Path, state: str, status: Status
) -> None:
    found, evidence = judge(tmp_path, run, [report(0, TOLD), report(1, PEER)], account(state))
    assert found == status
    assert evidence is not None
    assert f"job 77 ended as {state}" in evidence.message


def test_judge_lost_node_is_named(run: PlannedRun, tmp_path: Path) -> None:
    status, evidence = judge(tmp_path, run, [report(0, PEER), report(2, PEER)], account("RUNNING", by_us=True))
    assert status == "lost"
    assert evidence is not None
    assert evidence.host == "n2"
    assert "n2 is down*" in evidence.message


def test_judge_own_trouble_of_a_rank_goes_before_what_slurm_did(run: PlannedRun, tmp_path: Path) -> None:
    reports = [report(0, PEER, 1), report(1, ("crashed", "ValueError: x"), 2), report(2, TOLD, 3)]
    status, evidence = judge(tmp_path, run, reports, account("CANCELLED"))
    assert status == "crashed"
    assert evidence is not None
    assert (evidence.rank, evidence.host) == (1, "n2")


def test_judge_out_of_memory_on_one_node_is_the_result_of_all(run: PlannedRun, tmp_path: Path) -> None:
    reports = [report(0, PEER, 1), report(1, PEER, 2), report(2, ("oom", "CUDA out of memory"), 3)]
    assert judge(tmp_path, run, reports, None)[0] == "oom"


def test_judge_our_own_cancelling_is_no_evidence(run: PlannedRun, tmp_path: Path) -> None:
    reports = [report(0, PEER), report(1, PEER), report(2, PEER)]
    assert judge(tmp_path, run, reports, account("CANCELLED", by_us=True))[0] == "crashed"


def test_judge_host_memory_from_the_log_of_the_job(run: PlannedRun, tmp_path: Path) -> None:
    log = tmp_path / "submitit" / "77_0_log.err"
    log.parent.mkdir()
    log.write_text("slurmstepd: error: Step 77.0 exceeded memory limit (5000 > 4096), being killed\n")
    status, evidence = judge(tmp_path, run, [report(0, PEER)], account("FAILED"))
    assert status == "oom"
    assert evidence is not None
    assert "exceeded memory limit" in evidence.message


def test_judge_nothing_of_ours_started_is_a_crash(run: PlannedRun, tmp_path: Path) -> None:
    log = tmp_path / "submitit" / "77_0_log.err"
    log.parent.mkdir()
    log.write_text("module: command not found\n")
    status, evidence = judge(tmp_path, run, [], account("FAILED"))
    assert status == "crashed"
    assert evidence is not None
    assert evidence.message == "no agent started; its log ends: module: command not found"


def test_judge_hung_rank_is_looked_for_on_all_nodes(run: PlannedRun, tmp_path: Path) -> None:
    for folder in ("logs", "steps"):
        (tmp_path / folder).mkdir()
    for rank in range(3):
        stack = "" if rank == 2 else 'Current thread 0x1:\n  File "/x/torch/distributed/c10d.py", line 1 in wait'
        (tmp_path / f"logs/rank{rank}.stack").write_text(stack)
        (tmp_path / f"steps/rank{rank}.jsonl").write_text(json.dumps({"rank": rank}) + "\n")
    hung: tuple[Status, str] = ("hung", "no rank finished a step for 5 s: rank 0 finished 1 steps, the fewest")
    status, evidence = judge(tmp_path, run, [report(node, hung, node) for node in range(3)], None)
    assert status == "hung"
    assert evidence is not None
    assert (evidence.rank, evidence.host) == (2, "n3")


SLOW = Suspect(rank=1, host="n2", device="gpu1", uuid=None, message="990 MHz", is_broken=False)
BROKEN = Suspect(rank=2, host="n3", device="gpu2", uuid="GPU-7", message="XID 79", is_broken=True)
TALE = Evidence(rank=0, host="n1", message="NCCL error", log_tail=("last words",))


def test_with_suspects_names_node_and_gpu_that_spoil_a_result() -> None:
    status, evidence = with_suspects("ok", None, (SLOW,), lambda hosts: hosts == {"n2"})
    assert (status, evidence) == ("bad_node", Evidence(rank=1, host="n2", message="gpu1 of n2: 990 MHz", log_tail=()))


def test_with_suspects_keeps_a_result_that_cannot_be_had_without_the_slow_gpu() -> None:
    assert with_suspects("ok", None, (SLOW,), lambda hosts: False) == ("ok", None)


def test_with_suspects_asks_nobody_about_a_broken_gpu() -> None:
    status, evidence = with_suspects("ok", None, (BROKEN, SLOW), lambda hosts: False)
    assert status == "bad_node"
    assert evidence is not None
    assert evidence.message == "gpu2 (GPU-7) of n3: XID 79"


@pytest.mark.parametrize("status", ["crashed", "collective", "hung", "lost"])
def test_with_suspects_explains_a_failure_by_a_broken_gpu(status: Status) -> None:
    found, evidence = with_suspects(status, TALE, (BROKEN,), lambda hosts: True)
    assert (found, evidence) == (
        "bad_node",
        Evidence(rank=2, host="n3", message="gpu2 (GPU-7) of n3: XID 79; NCCL error", log_tail=("last words",)),
    )


@pytest.mark.parametrize("status", ["oom", "timeout", "preempted", "cancelled", "bad_node"])
def test_with_suspects_leaves_other_outcomes(status: Status) -> None:
    assert with_suspects(status, TALE, (BROKEN,), lambda hosts: True) == (status, TALE)


@pytest.mark.parametrize("status", ["crashed", "hung", "oom"])
def test_with_suspects_blames_no_failure_on_a_slow_gpu(status: Status) -> None:
    assert with_suspects(status, TALE, (SLOW,), lambda hosts: True) == (status, TALE)


def leave_beginnings(raw: Path, limit_mib: int | None, mem: str | None) -> None:
    """Leave what agents and launcher write down before ranks start: what memory there is, what was asked for."""
    limit = {"limit_bytes": limit_mib << 20, "set_by": "SLURM_MEM_PER_NODE"} if limit_mib else None
    (raw / "nodes").mkdir()
    (raw / "nodes/begun0.json").write_text(json.dumps({"node": 0, "memory_bytes": 1 << 36, "memory_limit": limit}))
    if mem is not None:
        leave_submission(raw, mem)


def leave_submission(raw: Path, mem: str) -> None:
    note = {"name": "x", "comment": "y", "started_at": "2026-01-01", "job_id": "77", "mem": mem}
    (raw / "submission.json").write_text(json.dumps(note))


HOST_KILL = ("oom", "host memory: the kernel ended the rank; killed by signal 9 (SIGKILL)")


def test_judge_host_memory_under_a_limit_is_no_result(run: PlannedRun, tmp_path: Path) -> None:
    leave_beginnings(tmp_path, 60, "60M")
    with pytest.raises(UserError) as caught:
        judge(tmp_path, run, [report(0, HOST_KILL), report(1, PEER), report(2, PEER)], account("FAILED"))
    line = str(caught.value)
    assert "allowed 60 MiB (SLURM_MEM_PER_NODE)" in line
    assert "raise `mem` of gangs: test in " in line
    assert "site.yaml" in line


def test_judge_slurms_out_of_memory_under_a_limit_is_no_result(run: PlannedRun, tmp_path: Path) -> None:
    leave_submission(tmp_path, "60M")  # the agents did not get as far as to begin
    with pytest.raises(UserError, match=r"job 77 ended as OUT_OF_MEMORY; the launch was allowed 60M of it"):
        judge(tmp_path, run, [], account("OUT_OF_MEMORY"))


def test_judge_log_of_a_limited_job_is_no_result(run: PlannedRun, tmp_path: Path) -> None:
    leave_beginnings(tmp_path, 4096, "4G")
    log = tmp_path / "submitit" / "77_0_log.err"
    log.parent.mkdir()
    log.write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=77.0\n")
    with pytest.raises(UserError, match="allowed 4096 MiB"):
        judge(tmp_path, run, [report(0, PEER)], account("FAILED"))


@pytest.mark.parametrize(("limit_mib", "mem"), [(None, "0"), (60_000, "0"), (None, "64G"), (None, None)])
def test_judge_host_memory_of_a_whole_node_is_a_result(
    run: PlannedRun, tmp_path: Path, limit_mib: int | None, mem: str | None
) -> None:
    """Whole is what `--mem=0` grants, however much that is, and any limit that no agent found below the node's."""
    leave_beginnings(tmp_path, limit_mib, mem)
    assert judge(tmp_path, run, [report(0, HOST_KILL), report(1, PEER), report(2, PEER)], None)[0] == "oom"


def test_judge_limited_machine_without_slurm(run: PlannedRun, tmp_path: Path) -> None:
    leave_beginnings(tmp_path, 60, None)
    with pytest.raises(UserError, match="start this where all memory of the machine may be used"):
        judge(tmp_path, run, [report(0, HOST_KILL), report(1, PEER), report(2, PEER)], None)


def test_judge_device_memory_under_a_limit_of_the_host_is_a_result(run: PlannedRun, tmp_path: Path) -> None:
    leave_beginnings(tmp_path, 60, "60M")
    reports = [report(0, PEER), report(1, PEER), report(2, ("oom", "CUDA out of memory"))]
    assert judge(tmp_path, run, reports, account("FAILED"))[0] == "oom"
