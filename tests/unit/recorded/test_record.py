"""`triplepoint record` around real training loops on this machine's processors."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import hgx_h200
from tests.fakes.wave import constant
from tests.launchers import wait_until
from tests.synthetic import CONFIG
from triplepoint.aggregate import aggregate
from triplepoint.cli import main
from triplepoint.config.plan import read_planned_run
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.processes import start_ticks
from triplepoint.recorded.marks import SOURCES
from triplepoint.recorded.session import job_key
from triplepoint.recorded.studies import read_recorded
from triplepoint.tables import STEPS
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.telemetry.align import align_run
from triplepoint.trace.parsing import find_run_traces

ROOT = Path(__file__).parents[3]
LOOPS = ROOT / "tests" / "loops"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

WATCHED = "until ls $1/recorded/open/*/telemetry/*.arrow > /dev/null 2>&1; do sleep 0.1; done"
"""Shell command that waits until a recording in the folder of results $1 has begun, however busy the machine is."""


def command(results: Path, *words: str) -> list[str]:
    return [
        sys.executable, "-m", "triplepoint", "record", "--results", str(results), "--config", str(CONFIG), *words,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    ours = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": ours, "OMP_NUM_THREADS": "1"}


def run(
    results: Path, *words: str, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    changed = {**environment(), **variables}
    return subprocess.run(command(results, *words), capture_output=True, text=True, env=changed, timeout=300)


def with_megatron(lib: Path) -> dict[str, str]:
    """Make a package with the training step of Megatron-LM, and return the variables with which Python finds it."""
    package = lib / "megatron" / "training"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    # As Megatron-LM has it: `train` finds `train_step` in its own module, which steps all optimizers.
    (package / "training.py").write_text(
        "def train_step(optimizers):\n    for one in optimizers: one.step()\n    return {}, 0\n"
        "def train(optimizers, num):\n    for _ in range(num): train_step(optimizers)\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(lib), environment()["PYTHONPATH"]])}


def recorded(results: Path) -> tuple[Path, Manifest, list[dict[str, Any]]]:
    """Return folder, manifest and steps of the only run there is."""
    (entry,) = read_recorded(results).entries
    folder = results / "runs" / entry.run
    assert not list((results / "recorded" / "open").iterdir())
    steps = STEPS.read(folder / "raw" / "steps.parquet").to_pylist()
    return folder, read_manifest(folder / "raw" / "manifest.json"), steps


def test_command_under_torchrun_becomes_a_run_with_steps_telemetry_and_traces(tmp_path: Path) -> None:
    done = run(tmp_path, "--profile", "5:7", "--", *TORCHRUN, str(LOOPS / "plain.py"), "30", "0.05")
    assert done.returncode == 0, done.stderr
    assert "iteration       30/      30" in done.stdout
    folder, manifest, steps = recorded(tmp_path)
    assert manifest.facts["steps_marked_by"] == "steps of the optimizer"
    digest = sha256((LOOPS / "plain.py").read_bytes()).hexdigest()
    assert manifest.facts["script"] == f"plain.py {digest[:12]}" and manifest.facts["backend"] == "gloo"
    assert "OMP_NUM_THREADS=1" in str(manifest.facts["environment"]).split()
    assert {"python", "torch"} <= set(manifest.versions)
    assert Counter((row["rank"], row["kind"]) for row in steps) == {
        (rank, kind): num for rank in (0, 1) for kind, num in (("warmup", 3), ("measured", 24), ("profiled", 2))
    }
    point = read_planned_run(folder / "point.json").point
    assert (point.num_gpus, point.model.name, point.traced_ranks) == (2, "plain", [0, 1])
    assert [trace.rank for trace in find_run_traces(folder / "raw" / "traces")] == [0, 1]
    telemetry = manifest.nodes[0].telemetry
    assert telemetry is not None and "cpu_utilisation" in telemetry.measured
    for words in (["telemetry", folder.name], ["parse", folder.name, "0-1"], ["trace", "--run", folder.name]):
        assert main([*words, "--results", str(tmp_path)]) == 0
    assert (folder / "categories.parquet").is_file()


@pytest.mark.long
def test_command_of_each_rank_has_one_sampler_a_node(tmp_path: Path) -> None:
    words = command(tmp_path, "--step-pattern", "megatron", "--", sys.executable, str(LOOPS / "plain.py"), "20", "0.02")
    done = subprocess.run(
        [*TORCHRUN, "--no-python", *words], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode == 0, done.stderr
    folder, manifest, steps = recorded(tmp_path)
    assert manifest.facts["steps_marked_by"] == "lines of its log that match --step-pattern"
    assert [device.rank for device in manifest.nodes[0].devices] == [0, 1]
    assert len(list((folder / "raw" / "telemetry").iterdir())) == 1
    assert read_planned_run(folder / "point.json").point.recorded.marked_ranks == (0,)  # type: ignore[union-attr]
    assert len(steps) == 2 * 19


def test_loop_that_records_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(LOOPS / "in_loop.py"), str(tmp_path), "30"],
        capture_output=True, text=True, env=environment(), timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, manifest, steps = recorded(tmp_path)
    assert manifest.facts["steps_marked_by"] == "calls of recorder.step()"
    assert Counter(row["kind"] for row in steps) == {"warmup": 1, "measured": 29}
    assert list(read_recorded(tmp_path).order) == ["mine"]
    assert all(row["t_end_ns"] - row["t_start_ns"] >= 20_000_000 for row in steps)


def test_process_that_runs_already_is_followed_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    writer = f"{WATCHED}; i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo iteration $i/ 60; sleep 0.1; done"
    with log.open("w") as out:
        process = subprocess.Popen(["sh", "-c", writer, "sh", str(tmp_path)], stdout=out)
    done = run(tmp_path, "--pid", str(process.pid), "--log", str(log), "--step-pattern", "megatron")
    process.wait()
    assert done.returncode == 0, done.stderr
    _, manifest, steps = recorded(tmp_path)
    lengths = sorted((row["t_end_ns"] - row["t_start_ns"]) / 1e9 for row in steps)
    assert lengths[len(lengths) // 2] == pytest.approx(0.1, abs=0.03)
    assert manifest.facts["exit_status"] is None


def test_out_of_memory_is_the_outcome_and_steps_before_it_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom megatron.training.training import train\n"
        "train([], 10)\n"
        "done = Path(sys.argv[1])\n(done / os.environ['RANK']).touch()\n"
        "while len(list(done.iterdir())) < 2: time.sleep(0.01)\n"
        "raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')\n"
    )
    (tmp_path / "done").mkdir()
    variables = with_megatron(tmp_path / "lib")
    done = run(tmp_path / "results", "--", *TORCHRUN, str(script), str(tmp_path / "done"), variables=variables)
    assert done.returncode == 1
    _, manifest, steps = recorded(tmp_path / "results")
    assert manifest.status == "oom" and manifest.evidence is not None
    assert "CUDA out of memory" in manifest.evidence.message
    assert len(steps) == 2 * 9


def test_recording_whose_watcher_was_killed_is_finished_later(tmp_path: Path) -> None:
    loop = "import time\nimport torch\nw = torch.nn.Linear(4, 4)\no = torch.optim.SGD(w.parameters(), 0.1)\n"
    loop += "for _ in range(400): w(torch.ones(4)).sum().backward(); o.step(); time.sleep(0.02)"
    watcher = subprocess.Popen(command(tmp_path, "--", sys.executable, "-c", loop), env=environment())
    steps = tmp_path / "recorded" / "open"
    wait_until(lambda: any(len(p.read_text()) > 2000 for p in steps.glob("*/steps/rank0.jsonl")), "steps", 60)
    (session,) = steps.iterdir()
    (rank,) = (json.loads(path.read_text()) for path in session.glob("ranks/rank0.json"))
    os.kill(watcher.pid, signal.SIGKILL)
    watcher.wait()
    done = run(tmp_path, "--finish")  # its job goes on
    assert f"under way: {session}" in done.stderr and session.exists()
    os.kill(rank["pid"], signal.SIGKILL)
    wait_until(lambda: start_ticks(rank["pid"]) is None, "end of the job")
    done = run(tmp_path, "--finish")
    assert done.returncode == 0, done.stderr
    _, manifest, rows = recorded(tmp_path)
    assert len(rows) > 15
    assert manifest.facts["ending"] == "its end is not known: 'triplepoint record' was killed, or the disk was full"
    assert manifest.nodes[0].telemetry is not None
    assert not session.exists()


@pytest.mark.long
def test_window_is_asked_for_from_outside(tmp_path: Path) -> None:
    watcher = subprocess.Popen(
        command(tmp_path, "--", *TORCHRUN, str(LOOPS / "plain.py"), "150", "0.05"),
        env=environment(), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    files = (tmp_path / "recorded" / "open").glob
    wait_until(lambda: any(path.read_text().count("\n") > 5 for path in files("*/steps/rank0.jsonl")), "steps", 60)
    asked = run(tmp_path, "--profile-now", "2")
    assert asked.returncode == 0, asked.stderr
    assert watcher.wait(120) == 0
    folder, _, steps = recorded(tmp_path)
    assert Counter(row["rank"] for row in steps if row["kind"] == "profiled") == {0: 2, 1: 2}
    assert [trace.rank for trace in find_run_traces(folder / "raw" / "traces")] == [0, 1]


@pytest.mark.parametrize("loop", ["megatron_core_loop", "deepspeed_loop"])
@pytest.mark.long
def test_loops_of_frameworks(tmp_path: Path, loop: str) -> None:
    pytest.importorskip({"megatron_core_loop": "megatron.core", "deepspeed_loop": "deepspeed"}[loop])
    done = run(tmp_path, "--profile", "4:5", "--", *TORCHRUN, str(LOOPS / f"{loop}.py"), "12")
    assert done.returncode == 0, done.stderr[-2000:]
    _, manifest, steps = recorded(tmp_path)
    expected = {"megatron_core_loop": "steps of the optimizer"}
    assert manifest.facts["steps_marked_by"] == expected.get(loop, SOURCES["framework"])
    assert Counter(row["kind"] for row in steps) == {"warmup": 2 * 3, "measured": 2 * 7, "profiled": 2}


def test_job_of_slurm_is_watched_on_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    # As srun does at the end of a job, it ends its step after a while.
    script = (
        '#!/bin/sh\necho "$@" > "$0.said"\nshift 5\n"$@" &\n{}\nsleep 6\nkill $!\nwait\necho "STEP CANCELLED" >&2\n'
    )
    srun.write_text(script.format(WATCHED.replace("$1", str(tmp_path))))
    squeue = srun.with_name("squeue")
    squeue.write_text('#!/bin/sh\n[ "$2" = --jobs=4711 ] && echo RUNNING 1 || echo PENDING 2\n')
    for program in (srun, squeue):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}{os.pathsep}{os.environ['PATH']}")
    done = run(tmp_path, "--job", "4712")
    assert done.returncode == 2 and "--job 4712: the job is PENDING" in done.stderr
    log = tmp_path / "slurm-4711.out"
    writer = f"{WATCHED}; i=0; while [ $i -lt 90 ]; do i=$((i+1)); echo iteration $i/ 90; sleep 0.1; done"
    with log.open("w") as out:
        job = subprocess.Popen(["sh", "-c", writer, "sh", str(tmp_path)], stdout=out)
    done = run(tmp_path, "--job", "4711", "--log", str(log), "--step-pattern", "megatron")
    job.wait()
    assert done.returncode == 0 and "CANCELLED" not in done.stderr, done.stderr
    assert (srun.parent / "srun.said").read_text().startswith("--jobid=4711 --overlap --nodes=1 --ntasks-per-node=1")
    folder, manifest, steps = recorded(tmp_path)
    assert folder.name.startswith("job-4711_")
    assert manifest.facts["steps_marked_by"] == "lines of its log that match --step-pattern"
    lengths = sorted((row["t_end_ns"] - row["t_start_ns"]) / 1e9 for row in steps)
    assert len(steps) > 10 and lengths[len(lengths) // 2] == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "no job is named; give one of -- COMMAND"),
        (["--pid", "1", "--", "true"], "--pid and -- COMMAND; give one of"),
        (["--", "nosuchprogram"], "'nosuchprogram': no such program"),
        (["--", __file__], f"not executable; 'chmod +x' it, or write -- python {__file__}"),
        (["--pid", "4194303"], "no such process on this node"),
        (["--job", "x1"], "expected the number of a job of Slurm"),
        (["--profile", "7:5", "--", "true"], "expected FIRST:LAST"),
        (["--step-pattern", "megatro", "--", "true"], "not a framework"),
        (["--pid", str(os.getpid()), "--step-pattern", "megatron"], "needs --log FILE"),
        (["--pid", str(os.getpid()), "--step-pattern", "megatron", "--log", "/none"], "--log /none: no such file"),
        (["--set", "tp", "--", "true"], "expected KEY=VALUE"),
        (["--set", "tpp=3", "--", "true"], "tpp"),
        (["--set", "model=llama3-7b", "--", "true"], "did you mean 'llama3-70b'"),
        (["--set", "steps={}", "--", "true"], "steps cannot be described"),
        (["--log", "x", "--", "true"], "--log is for --step-pattern with --pid or --job"),
        (["--study", "My Study", "--", "true"], "--study 'My Study'"),
        (["--warmup", "-1", "--", "true"], "expected a whole number from 0"),
        (["--results", "/proc/nosuch", "--", "true"], "/proc/nosuch: no such file or folder"),
        (["--profile-now", "2"], "no recording is under way in"),
        (["--finish", "/none"], "/none: no recording under way; found none"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["record", "--results", str(tmp_path), "--config", str(CONFIG), *words]) == 2
    said = capfd.readouterr().err
    assert expected in said and said.count("\n") == 1
    assert not list(tmp_path.glob("recorded/open/*"))


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, "7-0"),
        ({"RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, "n1-29500"),
        ({"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "prterun-n1-77@1"}, "prterun-n1-77-1"),
    ],
)
def test_ranks_of_a_job_find_one_recording(variables: dict[str, str], key: str | None) -> None:
    assert job_key(variables) == key


def test_hook_leaves_the_environments_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')")
    hook = ROOT / "src" / "triplepoint" / "recorded" / "hook"
    paths = {"PYTHONPATH": os.pathsep.join([str(hook), str(tmp_path)]), "TRIPLEPOINT_RECORD": str(tmp_path / "s")}
    done = subprocess.run([sys.executable, "-c", "pass"], env=os.environ | paths, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("own\n", "")


def test_training_step_of_megatron_lm_is_a_mark(tmp_path: Path) -> None:
    script = tmp_path / "pretrain_gpt.py"
    script.write_text(
        "import torch\nfrom megatron.training.training import train\n"
        "train([torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1) for _ in range(2)], 9)\n"
    )
    words = ("--warmup", "0", "--", sys.executable, str(script))
    done = run(tmp_path / "results", *words, variables=with_megatron(tmp_path / "lib"))
    assert done.returncode == 0, done.stderr
    _, manifest, steps = recorded(tmp_path / "results")
    assert manifest.facts["steps_marked_by"] == SOURCES["framework"]
    assert len(steps) == 8


@pytest.mark.long
def test_ranks_take_the_gpus_that_are_visible_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_node(hgx_h200(4).set_all(load=constant(0.5))) as node:
        for name, value in node.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
        done = run(tmp_path, "--device", "cuda", "--", *TORCHRUN, str(LOOPS / "plain.py"), "30", "0.05")
    assert done.returncode == 0, done.stderr
    folder, manifest, _ = recorded(tmp_path)
    assert [(device.rank, device.device) for device in manifest.nodes[0].devices] == [(0, "gpu3"), (1, "gpu1")]
    point = read_planned_run(folder / "point.json").point
    assert (point.cluster.name, point.cluster.device, point.cluster.gpu) == ("own-h200x2", "cuda", "h200")
    align_run(folder / "raw", folder / "telemetry.parquet")
    aggregate(read_recorded(tmp_path), tmp_path, CONFIG)
    (row,) = RESULT_TABLES["points"].read(tmp_path / "tables" / "recorded" / "points.parquet").to_pylist()
    gpus = RESULT_TABLES["gpus"].read(tmp_path / "tables" / "recorded" / "gpus.parquet").to_pylist()
    assert [gpu["device"] for gpu in gpus] == ["gpu3", "gpu1"]
    assert row["num_measured_steps"] > 20 and row["gpu_power_w"] > 100


@pytest.mark.long
def test_trainer_that_starts_its_ranks_itself_has_a_run_of_them_all(tmp_path: Path) -> None:
    """As Lightning and `torch.multiprocessing.spawn` do: no variable of a launcher names the rank."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def train(rank, port_file):\n"
        "    dist.init_process_group('gloo', init_method='file://' + port_file, rank=rank, world_size=2)\n"
        "    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)\n"
        "    for _ in range(6): dist.barrier(); optimizer.step()\n"
        "if __name__ == '__main__': mp.spawn(train, (sys.argv[1],), nprocs=2)\n"
    )
    words = ["--warmup", "0", "--profile", "3:4", "--", sys.executable, str(script), str(tmp_path / "rendezvous")]
    done = run(tmp_path / "results", *words)
    assert done.returncode == 0, done.stderr
    folder, manifest, steps = recorded(tmp_path / "results")
    assert Counter(step["rank"] for step in steps) == {0: 5, 1: 5}
    assert [trace.rank for trace in find_run_traces(folder / "raw" / "traces")] == [0, 1]
    assert [device.rank for device in manifest.nodes[0].devices] == [0, 1]


def test_killed_rank_of_a_trainer_that_says_nothing_is_named(tmp_path: Path) -> None:
    """Lightning's own launcher: rank 0 starts the others, asks every 5 s how they are, and fails with a lost peer."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, subprocess, sys, torch, torch.distributed as dist\n"
        "rank = int(os.environ.get('MY_RANK', 0))\n"
        "if rank == 0: other = subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {'MY_RANK': '1'})\n"
        "dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=rank, world_size=2)\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)\n"
        "for step in range(6):\n"
        "    if rank == 1 and step == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    try: dist.barrier(); optimizer.step()\n"
        "    except RuntimeError: signal.sigtimedwait([signal.SIGUSR1], 1.0); raise\n"
    )
    words = ["--warmup", "0", "--", sys.executable, str(script), str(tmp_path / "rendezvous")]
    done = run(tmp_path / "results", *words)
    assert done.returncode == 1, done.stderr
    _, manifest, _ = recorded(tmp_path / "results")
    assert str(manifest.facts["ending"]).startswith("rank 1 killed by signal 9 (SIGKILL)"), done.stderr


def test_update_of_a_trainer_on_an_engine_is_one_step(tmp_path: Path) -> None:
    """Hugging Face's Trainer on DeepSpeed: the engine's update and the callback are of one step."""
    package = tmp_path / "lib" / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "trainer_callback.py").write_text(
        "class CallbackHandler:\n    def on_step_end(self, args, state, control): return control\n"
    )
    engine = tmp_path / "lib" / "deepspeed" / "runtime"
    engine.mkdir(parents=True)
    (engine.parent / "__init__.py").write_text("")
    (engine / "__init__.py").write_text("")
    (engine / "engine.py").write_text("class DeepSpeedEngine:\n    def _take_model_step(self, lr): pass\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfrom transformers.trainer_callback import CallbackHandler\n"
        "from deepspeed.runtime.engine import DeepSpeedEngine\n"
        "engine, handler = DeepSpeedEngine(), CallbackHandler()\n"
        "for _ in range(9):\n"
        "    if sys.argv[1:] == ['engine']: engine._take_model_step(0.1)\n"
        "    handler.on_step_end(None, None, None)\n"
    )
    paths = os.pathsep.join([str(tmp_path / "lib"), environment()["PYTHONPATH"]])
    for words in ([], ["engine"]):
        results = tmp_path / f"results{len(words)}"
        line = command(results, "--warmup", "0", "--", sys.executable, str(script), *words)
        done = subprocess.run(
            line, env=environment() | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        _, manifest, steps = recorded(results)
        assert manifest.facts["steps_marked_by"] == SOURCES["framework"]
        assert len(steps) == 8
