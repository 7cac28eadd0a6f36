"""What Slurm is asked for, and the file of a site."""

from pathlib import Path

import pytest

from tests.points import planned, tiny_point
from triplepoint.config.point import Layout, PointCluster
from triplepoint.config.site import Gang, Site, gang_of, read_site
from triplepoint.errors import UserError
from triplepoint.launch.attempt import Submission
from triplepoint.launch.gang import sbatch_parameters

SUBMISSION = Submission("tiny.12345678", "triplepoint:x", "2026-01-01T00:00:00+00:00")


def test_sbatch_parameters_of_whole_nodes_by_default() -> None:
    cluster = PointCluster(name="h200x32", device="cuda", gpu="h200", gpus_per_node=8)
    run = planned(tiny_point(cluster=cluster, num_gpus=16, layout=Layout(dp=16)), time_limit_s=601.0)
    assert sbatch_parameters(run, Gang(partition="hopper"), frozenset({"n9"}), SUBMISSION) == {
        "job_name": "tiny.12345678",
        "comment": "triplepoint:x",
        "dependency": "singleton",
        "nodes": 2,
        "ntasks_per_node": 1,
        "time": 13,  # 601 s are 11 minutes begun, and 2 more
        "partition": "hopper",
        "exclude": "n9",
        "exclusive": True,
        "gres": "gpu:8",
        "mem": "0",
        "additional_parameters": {"no-requeue": True},
        "srun_args": ["--kill-on-bad-exit=1"],
    }


def test_hosts_of_a_point_are_asked_for_by_name() -> None:
    cluster = PointCluster(name="h200x32", device="cuda", gpu="h200", gpus_per_node=8)
    run = planned(tiny_point(cluster=cluster, num_gpus=16, layout=Layout(dp=16), hosts=("n7", "n3")))
    asked = sbatch_parameters(run, Gang(), frozenset(), SUBMISSION)["additional_parameters"]
    assert asked["nodelist"] == "n7,n3"


def test_sbatch_parameters_take_what_the_site_says() -> None:
    options = Gang(
        account="a1",
        gres="gpu:mi250:8",
        cpus=32,
        exclusive=False,
        exclude=("n1",),
        switches="1@10:00",
        setup=("module load rocm",),
        sbatch={"reservation": "night"},
    )
    found = sbatch_parameters(planned(tiny_point()), options, frozenset(), SUBMISSION)
    assert found["account"] == "a1"
    assert found["gres"] == "gpu:mi250:8"
    assert "exclusive" not in found
    assert found["exclude"] == "n1"
    assert found["setup"] == ["module load rocm"]
    assert found["additional_parameters"] == {"no-requeue": True, "switches": "1@10:00", "reservation": "night"}
    assert found["srun_args"] == ["--kill-on-bad-exit=1", "--cpus-per-task=32"]


def test_gang_of_site_goes_over_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/gangs.yaml").write_text("h200x32: {partition: h200, qos: long}\n")
    found = gang_of("h200x32", Site(gangs={"h200x32": {"partition": "hopper"}}))
    assert (found.partition, found.qos, found.exclusive) == ("hopper", "long", True)
    assert gang_of("another", Site()) == Gang()


def test_read_site_unknown_key_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.yaml"
    monkeypatch.setenv("TRIPLEPOINT_SITE", str(path))
    path.write_text("gangs: {h200x32: {partitoin: hopper}}\n")
    with pytest.raises(UserError, match=r"site.yaml: gangs: h200x32: .*partitoin.*did you mean 'partition'"):
        read_site()


def test_read_site_without_a_file_is_all_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIPLEPOINT_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_site() == Site()
