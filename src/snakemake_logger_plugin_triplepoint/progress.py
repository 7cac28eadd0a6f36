"""Progress of a workflow: jobs of each stage, what runs, what failed, and how much time is left."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

STAGES = (
    "launch", "simulate", "telemetry", "parse", "trace", "aggregate", "claims", "whatif", "figure", "report",
)  # fmt: skip
"""Order of the stages on the screen, that of the pipeline; others follow."""
TARGET = "all"
"""Rule without work of its own."""
USUAL = Path(".snakemake/stage_seconds.json")
"""Mean time of a job by stage in earlier runs of this folder. Unit: s."""

StepsOf = Callable[["Job"], tuple[int, int] | None]
"""Returns how many steps of a running launch are done, and of how many; None where it says nothing yet."""


@dataclass
class Job:
    """One job that has started."""

    stage: str
    name: str
    """Values of its wildcards: run, study or figure."""
    logs: tuple[str, ...]
    outputs: tuple[str, ...]
    started_s: float
    """On the clock of the caller. Unit: s."""
    threads: int = 1
    written_from: float = 0.0
    """Time of the wall clock before which its log is that of an earlier one. Unit: s."""


@dataclass
class Stage:
    """The jobs of one rule.

    Attributes:
        name: Rule.
        total: Jobs to run.
        done: Jobs that finished well.
        busy_s: Time those took, added up. Unit: s.
        usual_s: Mean time of a job in earlier runs, None if unknown. Unit: s.
        threads: Cores that one of its jobs takes.
        most_at_once: Most of its jobs seen running at once.
        begun_s: When its first job began, None before. Unit: s.
        ended_s: When its last job finished, None before. Unit: s.
        running: Jobs that run, by id.
        failed: Ids of the jobs that ended without a result and were not tried again.
    """

    name: str
    total: int
    done: int = 0
    busy_s: float = 0.0
    usual_s: float | None = None
    threads: int = 1
    most_at_once: int = 0
    begun_s: float | None = None
    ended_s: float | None = None
    running: dict[int, Job] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    @property
    def remaining(self) -> int:
        """Jobs that have not ended."""
        return max(0, self.total - self.done - len(self.failed))

    def left_s(self, now_s: float, cores: int | None, steps_of: StepsOf) -> float | None:
        """Return the time that its remaining jobs need; None if none has finished, here or earlier.

        Args:
            now_s: On the clock that jobs are started by. Unit: s.
            cores: Cores of this machine; None where jobs run elsewhere.
            steps_of: How far a running launch is: the only measure of time before a first one has finished.
        """
        if not self.remaining:
            return 0.0
        mean_s = self.busy_s / self.done if self.done else self.usual_s
        if mean_s is None:
            mean_s = self._mean_by_steps(now_s, steps_of)
        if mean_s is None:
            return None
        spent_s = sum(min(now_s - job.started_s, mean_s) for job in self.running.values())
        at_once = max(1, cores // self.threads) if cores else max(1, self.most_at_once)
        return max(0.0, self.remaining * mean_s - spent_s) / min(at_once, self.remaining)

    def _mean_by_steps(self, now_s: float, steps_of: StepsOf) -> float | None:
        for job in self.running.values():
            steps = steps_of(job)
            if steps and steps[0]:
                return (now_s - job.started_s) * steps[1] / steps[0]
        return None


class Progress:
    """The stages of a workflow in the order of the pipeline."""

    def __init__(self, counts: Mapping[str, int], usual_s: Mapping[str, float], cores: int | None) -> None:
        """Begin with the jobs that Snakemake means to run.

        Args:
            counts: Jobs by rule.
            usual_s: Mean time of a job by rule in earlier runs. Unit: s.
            cores: Cores of this machine; None where jobs run elsewhere.
        """
        names = [*(name for name in STAGES if name in counts), *(name for name in counts if name not in STAGES)]
        self.stages = {
            name: Stage(name, counts[name], usual_s=usual_s.get(name))
            for name in names
            if name not in (TARGET, "total")
        }
        self._cores = cores
        self._jobs: dict[int, Job] = {}

    @property
    def has_begun(self) -> bool:
        """Whether a job has started."""
        return bool(self._jobs)

    @property
    def done(self) -> int:
        """Jobs that finished well."""
        return sum(stage.done for stage in self.stages.values())

    @property
    def total(self) -> int:
        """All jobs."""
        return sum(stage.total for stage in self.stages.values())

    @property
    def failed(self) -> dict[str, int]:
        """Jobs that ended without a result, by stage."""
        return {name: len(stage.failed) for name, stage in self.stages.items() if stage.failed}

    def start(self, job_id: int, job: Job) -> None:
        """Note that a job starts, or starts again."""
        if job.stage == TARGET:
            return
        stage = self.stages.setdefault(job.stage, Stage(job.stage, 0))
        self._jobs[job_id] = job
        stage.running[job_id] = job
        stage.failed.discard(job_id)
        stage.threads = max(1, job.threads)
        stage.most_at_once = max(stage.most_at_once, len(stage.running))
        stage.total = max(stage.total, stage.done + len(stage.failed) + len(stage.running))
        if stage.begun_s is None:
            stage.begun_s = job.started_s

    def finish(self, job_id: int, now_s: float) -> tuple[Stage, Job] | None:
        """Note that a job finished well; return it with its stage, None if it is not one that was started."""
        job = self._jobs.get(job_id)
        if job is None or self.stages[job.stage].running.pop(job_id, None) is None:
            return None
        stage = self.stages[job.stage]
        stage.done += 1
        stage.busy_s += now_s - job.started_s
        if not stage.remaining:
            stage.ended_s = now_s
        return stage, job

    def fail(self, job_id: int) -> Job | None:
        """Note that a job ended without a result, and return it."""
        job = self._jobs.get(job_id)
        if job is not None:
            self.stages[job.stage].running.pop(job_id, None)
            self.stages[job.stage].failed.add(job_id)
        return job

    def left_by_stage(self, now_s: float, steps_of: StepsOf) -> dict[str, float | None]:
        """Return the time that each stage needs yet, None where nothing is known. Unit: s."""
        return {name: stage.left_s(now_s, self._cores, steps_of) for name, stage in self.stages.items()}

    def mean_seconds(self) -> dict[str, float]:
        """Return the mean time of a job by stage, of those that have finished here. Unit: s."""
        return {name: stage.busy_s / stage.done for name, stage in self.stages.items() if stage.done}


def read_usual(path: Path = USUAL) -> dict[str, float]:
    """Return the mean times of earlier runs, empty where there are none that can be read. Unit: s."""
    try:
        found = json.loads(path.read_bytes())
        return {str(name): float(value) for name, value in found.items() if float(value) >= 0}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def write_usual(seconds: Mapping[str, float], path: Path = USUAL) -> None:
    """Keep the mean times of this run beside those of other stages; a full disk or read-only folder is borne."""
    if not seconds:
        return
    try:
        path.write_text(
            json.dumps(read_usual(path) | {name: round(value, 3) for name, value in seconds.items()}) + "\n"
        )
    except OSError:
        return


def sum_left(left_by_stage: Iterable[float | None]) -> tuple[float, bool]:
    """Return the time that is known to be left, and whether it is that of all stages. Unit: s."""
    values = list(left_by_stage)
    return sum(value for value in values if value is not None), None not in values
