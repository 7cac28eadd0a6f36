"""Set-up lines and Python of a site on nodes of the test cluster, with stand-ins for modules and for a container.

A shell function replaces Lmod or Environment Modules, whose `module` is an exported shell function as well. A script
replaces Apptainer, which keeps the environment and working folder of its caller like this script. Images are not
tested.
"""

import shlex
import sys
from pathlib import Path

import pytest

from tests.launchers import finish, hold_ranks, resume
from tests.slurm import launches
from tests.slurm.launches import Workspace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

MODULE = '() { test "$1" = load && export LOADEDMODULES="${LOADEDMODULES:+$LOADEDMODULES:}$2"; }'
APPTAINER = """\
#!/bin/sh
echo "$SLURM_NODEID $*" >> {log}
[ "$1" = exec ] && [ "$2" = --rocm ] || exit 64
image=$3
shift 4 # `python` is that of the image
APPTAINER_CONTAINER=$image exec {python} "$@"
"""


def environments(folder: Path) -> list[dict[str, str]]:
    """Return the environment of each rank of a run."""
    ranks = hold_ranks(folder)
    resume(ranks)
    return [rank.environ() for rank in ranks]


def test_set_up_lines_of_a_site_reach_every_rank(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASH_FUNC_module%%", MODULE)
    variables = tmp_path / "with space" / "nccl.sh"
    variables.parent.mkdir()
    variables.write_text("export NCCL_IB_HCA=mlx5_0,mlx5_1\n")
    workspace.with_site(
        setup=["module load cuda/12.8", "module load nccl/2.27", f"source {shlex.quote(str(variables))}"]
    )
    folder = workspace.run(launches.SHORT)
    launcher = workspace.launch(folder)
    variables_of_ranks = [(env["LOADEDMODULES"], env["NCCL_IB_HCA"]) for env in environments(folder)]
    assert variables_of_ranks == [("cuda/12.8:nccl/2.27", "mlx5_0,mlx5_1")] * 2
    status, output = finish(launcher)
    assert status == 0, output


def test_set_up_that_fails_is_told_and_not_taken_for_a_lost_node(workspace: Workspace) -> None:
    workspace.with_site(setup=["module load no-such-module || exit 3"])
    folder = workspace.run(launches.SHORT)
    status, output = finish(workspace.launch(folder))
    assert status == 1, output
    (manifest,) = launches.failed_attempts(folder)
    assert manifest.status == "crashed"
    assert manifest.evidence is not None
    assert "no agent started" in manifest.evidence.message
    assert "module" in " ".join(manifest.evidence.log_tail)


def test_ranks_of_a_rocm_cluster_run_in_its_container(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "apptainer.log"
    script = tmp_path / "bin/apptainer"
    script.parent.mkdir()
    script.write_text(APPTAINER.format(log=shlex.quote(str(log)), python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    workspace.with_site("mi250x32", python="apptainer exec --rocm image.sif python")
    folder = workspace.run(launches.SHORT, cluster="mi250x32")
    launcher = workspace.launch(folder)
    assert [env["APPTAINER_CONTAINER"] for env in environments(folder)] == ["image.sif"] * 2
    status, output = finish(launcher)
    assert status == 0, output
    assert [node.host for node in launches.result_of(folder).nodes] == ["mi250-1", "mi250-2"]
    calls = sorted(line.split(" -", 1)[0] for line in log.read_text().splitlines())
    assert calls == ["0 exec", "1 exec"], "once on each node, and never on the login node"
