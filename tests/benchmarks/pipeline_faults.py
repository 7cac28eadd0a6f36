"""Accidents to a project between and during calls of Snakemake, for `tests.benchmarks.fault_campaign`.

After any of them the project, its files put back as they were, has to come to what it was before: equal tables and
numbers of figures, nothing out of date, no launch lost or made twice, no process left, no traceback.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import psutil

from tests.launchers import environment
from tests.workflow.conftest import Project, make_project

LONGEST_S = 900.0
"""For one call of Snakemake, which takes half a minute on an idle machine."""
IMPORTS_S = 4.0
STUDIES = {
    "near": """\
description: Two launches of ranks that keep step and train nothing.
figures: [microbatch_power]
defaults: {cluster: cpu-local, engine: native, model: test-llama, num_gpus: 2, global_batch_size: 4, precision: fp32,
           telemetry_period_s: 0.05, steps: {warmup: 1, measured: 3, profiled: 0}}
sweeps: [axes: {micro_batch_size: [1, 2]}]
""",
    "far": """\
description: Two simulated runs.
figures: [microbatch_power, timeline]
defaults: {cluster: h200x32, engine: megatron, model: test-llama, num_gpus: 8, global_batch_size: 16, tp: 2, pp: 2,
           steps: {warmup: 1, measured: 3, profiled: 1}}
sweeps: [axes: {micro_batch_size: [1, 2]}]
""",
}
MORE = STUDIES["near"].replace("[1, 2]", "[1]").replace("global_batch_size: 4", "global_batch_size: 8")
TARGETS = (["all"], ["figs/far/timeline.pdf"], ["figs/near/microbatch_power.pdf"], ["all", "--until", "aggregate"])
COMPARED = ("results/tables/**/*.parquet", "results/runs/*/*.parquet", "figs/**/*.csv")
LOST = (*COMPARED, "results/tables/**/*.csv", "figs/**/*.pdf", "report.html", "report/*.js")


@dataclass
class Case:
    """A project in the course of its accidents."""

    project: Project
    chance: random.Random
    undo: list[Callable[[], None]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Names of files that hold damage which only a reader can find."""
    problems: list[str] = field(default_factory=list)
    launches: dict[str, str] = field(default_factory=dict)
    """Manifests that were seen, which stay as they are."""

    def file(self, *patterns: str) -> Path:
        found = [path for pattern in patterns for path in self.project.folder.glob(pattern) if path.is_file()]
        return self.chance.choice(sorted(found))

    def replace(self, path: Path, content: bytes) -> None:
        """Change a file that a user writes, until the end of the accident."""
        name, old = path.relative_to(self.project.folder), path.read_bytes() if path.exists() else None

        def put_back() -> None:
            file = self.project.folder / name
            file.unlink() if old is None else file.write_bytes(old)

        self.undo.append(put_back)
        path.write_bytes(content)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.project.command(*words), cwd=self.project.folder, env=variables(self.project), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def end(self, call: "subprocess.Popen[str]") -> tuple[int, str]:
        """Wait for a call, and look for what may never be."""
        try:
            said, _ = call.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self.problems.append(f"hung for {LONGEST_S:.0f} s")
            os.killpg(call.pid, signal.SIGKILL)
            said, _ = call.communicate()
        self.problems += [f"traceback: {said[-300:]}"] if "Traceback" in said else []
        self.problems += _left(self.project)
        now = self.project.manifests()
        changed = [name for name, manifest in self.launches.items() if now.get(name) != manifest]
        self.problems += [f"launched again: {changed}"] if changed else []
        self.launches = {name: text for name, text in now.items() if '"origin": "measured"' in text}
        return call.returncode, said


def variables(project: Project) -> dict[str, str]:
    """Return the environment of calls, with the stub engine in ranks."""
    return environment(trains=False, variables=project.environment())


def _left(project: Project) -> list[str]:
    """Return the processes that work in a project's folder a minute after a call."""

    def here() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(project.folder):
                    found.append(process)
        return found

    deadline = time.monotonic() + 60
    while (processes := here()) and time.monotonic() < deadline:
        time.sleep(0.2)
    lines = [" ".join(process.cmdline()[:6]) for process in processes if process.is_running()]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return [f"left behind: {line}" for line in lines]


def lose(case: Case) -> str:
    """Remove a product."""
    path = case.file(*LOST)
    path.unlink()
    return f"{path.name} removed"


def empty(case: Case) -> str:
    """Empty a product, as a full disk does."""
    path = case.file(*LOST)
    path.write_bytes(b"")
    return f"{path.name} emptied"


def cut(case: Case) -> str:
    """Cut off a table."""
    path = case.file("results/tables/**/*.parquet", "results/runs/*/*.parquet")
    path.write_bytes(path.read_bytes()[: case.chance.randrange(1, path.stat().st_size)])
    case.damaged.append(str(path.relative_to(case.project.folder)))
    return f"{path.name} cut off"


def touch(case: Case) -> str:
    """Make any file of the project newer or older than all others."""
    path = case.file("config/**/*.yaml", "src/**/*.py", "rules/*.smk", *LOST)
    at = case.chance.choice((0, 10**9, time.time(), time.time() + 10**7))
    os.utime(path, (at, at))
    return f"{path.name} dated {time.strftime('%Y', time.gmtime(at))}"


def forget(case: Case) -> str:
    """Remove what Snakemake remembers."""
    shutil.rmtree(case.project.folder / ".snakemake")
    return "records of Snakemake removed"


def move(case: Case) -> str:
    """Move the folder."""
    folder = case.project.folder.rename(case.project.folder.with_name("moved"))
    case.project = Project(folder)
    return "folder moved"


def edit(case: Case) -> str:
    """Change a source file where nothing follows from it."""
    path = case.file("src/triplepoint/[alst]*/*.py", "rules/*.smk", "config/[gm]*s/*.yaml")
    case.replace(path, path.read_bytes() + b"# A remark.\n")
    return f"remark in {path.name}"


def change(case: Case) -> str:
    """Change a simulated study, and call before it is as it was."""
    path = case.file("config/studies/far.yaml", "config/studies/other.yaml")
    old, new = case.chance.choice(
        (("[1, 2]", "[1]"), ("tp: 2", "tp: 1"), ("[1, 2]", "[1, 2, 3]"), ("h200x32", "h100x64"))
    )
    case.replace(path, path.read_bytes().replace(old.encode(), new.encode()))
    return f"{new} in {path.name}"


def rename(case: Case) -> str:
    """Rename a study."""
    path = case.file("config/studies/*.yaml")
    content = path.read_bytes()
    case.replace(path.with_name("other.yaml"), content)
    if path.name != "other.yaml":
        case.replace(path, content)
        path.unlink()
    return f"{path.name} renamed"


def add(case: Case) -> str:
    """Add a study with a launch of its own."""
    case.replace(case.project.folder / "config/studies/more.yaml", MORE.encode())
    return "more.yaml added"


BETWEEN = (lose, lose, empty, cut, touch, forget, move, edit, change, rename, add, add)


def leave_alone(case: Case, call: "subprocess.Popen[str]") -> str:
    """Do nothing to a call."""
    return "left alone"


def strike(case: Case, call: "subprocess.Popen[str]") -> str:
    """Kill a process of a call, or press Ctrl-C."""
    after_s, victim = case.chance.uniform(0, 10), case.chance.choice(("snakemake", "child", "interrupt"))
    # While it is being imported, Snakemake answers Ctrl-C with a traceback of its own.
    after_s = max(after_s, IMPORTS_S) if victim == "interrupt" else after_s
    with contextlib.suppress(subprocess.TimeoutExpired):
        call.wait(after_s)
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        process = psutil.Process(call.pid)
        if victim == "interrupt":
            os.killpg(call.pid, signal.SIGINT)
        elif victim == "child":
            case.chance.choice(process.children(recursive=True) or [process]).kill()
        else:
            process.kill()
    return f"{victim} struck after {after_s:.1f} s"


def meet(case: Case, call: "subprocess.Popen[str]") -> str:
    """Start a second call beside a first."""
    after_s = case.chance.uniform(0, 8)
    time.sleep(after_s)
    second = case.start("all")
    said, _ = second.communicate(timeout=LONGEST_S)
    case.problems += [f"second call: traceback: {said[-300:]}"] if "Traceback" in said else []
    return f"a second call {after_s:.1f} s later ended with {second.returncode}"


DURING = (leave_alone, strike, strike, strike, meet)


def prepare(folder: Path) -> Project:
    """Make a project of two studies in `folder`, and finish it."""
    project = make_project(folder)
    (project.folder / "config/studies/mini.yaml").unlink()
    for name, text in STUDIES.items():
        (project.folder / f"config/studies/{name}.yaml").write_text(text)
    subprocess.run(project.command("all"), cwd=folder, env=variables(project), capture_output=True, check=True)
    return project


def products(project: Project) -> dict[str, str]:
    """Return a digest of each table and of each figure's numbers."""
    paths = {path for pattern in COMPARED for path in project.folder.glob(pattern)}
    return {str(path.relative_to(project.folder)): sha256(path.read_bytes()).hexdigest() for path in paths}


def disturb(finished: Project, scratch: Path, seed: int) -> str | None:
    """Let one to three accidents happen to a copy of a finished project, and return what must not be."""
    chance = random.Random(seed)
    folder = scratch / "project"
    shutil.copytree(finished.folder, folder, symlinks=True)
    case = Case(Project(folder), chance)
    case.launches = {name: text for name, text in case.project.manifests().items() if '"origin": "measured"' in text}
    told = []
    for _ in range(chance.randint(1, 3)):
        before = [accident(case) for accident in chance.sample(BETWEEN, chance.randint(1, 3))]
        target = chance.choice(TARGETS)
        call = case.start(*target)
        told.append(f"{', '.join(before)}; {' '.join(target)} {chance.choice(DURING)(case, call)}")
        status, said = case.end(call)
        if status and "triplepoint: " not in said and "struck" not in told[-1]:
            case.problems.append(f"status {status} without a word: {said[-300:]}")
        if chance.random() < 0.7:
            _put_back(case)
    _put_back(case)
    _settle(case)
    case.problems += _differences(finished, case)
    problem = "; ".join(case.problems) or None
    print(f"seed {seed}: {' | '.join(told)}: {problem or 'as from nothing'}", flush=True)
    return problem


def _put_back(case: Case) -> None:
    while case.undo:
        case.undo.pop()()


def _settle(case: Case) -> None:
    """Call until all is well, and remove what a call says is damaged, as it tells its user to."""
    for _ in range(len(case.damaged) + 2):
        status, said = case.end(case.start("all"))
        if status == 0:
            break
        named = [name for name in case.damaged if name in said and (case.project.folder / name).exists()]
        for name in named:
            (case.project.folder / name).unlink()
        if not named:
            case.problems.append(f"all: status {status}: {said[-400:]}")
    else:
        case.problems.append("never whole again")
    again = subprocess.run(
        case.project.command("-n", "all"), cwd=case.project.folder, env=variables(case.project),
        capture_output=True, text=True,
    )  # fmt: skip
    if again.returncode or "rule " in again.stdout + again.stderr:
        case.problems.append(f"out of date after all: {again.stdout[-300:]}")


def _differences(finished: Project, case: Case) -> list[str]:
    expected, found = products(finished), products(case.project)
    # A table that no stage reads stays damaged until a command reads it, and says so.
    wrong = [name for name, digest in expected.items() if found.get(name) != digest and name not in case.damaged]
    return [f"not as from nothing: {sorted(wrong)[:5]}"] if wrong else []
