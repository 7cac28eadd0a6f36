"""Progress of a workflow: jobs of each stage that are done, running or failed, and the time left."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

STAGES = (
    "launch", "simulate", "telemetry", "parse", "trace", "aggregate", "claims", "whatif", "figure", "report",
)  # fmt: skip
"""Order of the stages on the screen, that of the pipeline; other rules follow."""
TARGET = "all"
"""Rule without work of its own."""
USUAL = Path(".snakemake/stage_seconds.json")
"""File with the mean time of a job by stage, from earlier runs in this folder. Unit: s."""

StepsOf = Callable[["Job"], tuple[int, int] | None]
"""Returns the steps of a running launch that are done, and all its steps; None if its log has none yet."""


@dataclass
class Job:
    """A job that has started."""

    stage: str
    name: str
    """Values of the job's wildcards: run, study or figure."""
    logs: tuple[str, ...]
    outputs: tuple[str, ...]
    started_s: float
    """Start on the caller's clock. Unit: s."""
    threads: int = 1
    written_from: float = 0.0
    """Wall-clock time; a log that was last written before is from an earlier job. Unit: s."""


@dataclass
class Stage:
    """The jobs of one rule.

    Attributes:
        name: Name of the rule.
        total: Number of jobs to run.
        done: Number of successful jobs.
        busy_s: Total time of the successful jobs. Unit: s.
        usual_s: Mean time of a job in earlier runs, None if unknown. Unit: s.
        threads: Cores that one job uses.
        most_at_once: Largest number of jobs seen running at once.
        begun_s: Start of the first job, None before. Unit: s.
        ended_s: End of the last job, None before. Unit: s.
        running: Running jobs by id.
        failed: Ids of failed jobs that were not tried again.
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
        """Number of jobs that have not ended."""
        return max(0, self.total - self.done - len(self.failed))

    def left_s(self, now_s: float, cores: int | None, steps_of: StepsOf) -> float | None:
        """Return the time that the remaining jobs need, None if unknown. Unit: s.

        It follows from the mean time of jobs that finished, now or in earlier runs. Before the first one has finished,
        it follows from the steps of a running launch.

        Args:
            now_s: Time on the clock of `Job.started_s`. Unit: s.
            cores: Cores of this machine; None if jobs run elsewhere.
            steps_of: Returns the steps of a running launch.
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
    """The stages of a workflow, in the order of the pipeline."""

    def __init__(self, counts: Mapping[str, int], usual_s: Mapping[str, float], cores: int | None) -> None:
        """Start with the jobs that Snakemake is going to run.

        Args:
            counts: Number of jobs by rule.
            usual_s: Mean time of a job by rule, from earlier runs. Unit: s.
            cores: Cores of this machine; None if jobs run elsewhere.
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
        """Number of successful jobs."""
        return sum(stage.done for stage in self.stages.values())

    @property
    def total(self) -> int:
        """Number of all jobs."""
        return sum(stage.total for stage in self.stages.values())

    @property
    def failed(self) -> dict[str, int]:
        """Number of failed jobs by stage."""
        return {name: len(stage.failed) for name, stage in self.stages.items() if stage.failed}

    def start(self, job_id: int, job: Job) -> None:
        """Record that a job starts, for the first time or again."""
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
        """Record that a job succeeded, and return its stage and the job; None if it was not started."""
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
        """Record that a job failed, and return it; None if it was not started."""
        job = self._jobs.get(job_id)
        if job is not None:
            self.stages[job.stage].running.pop(job_id, None)
            self.stages[job.stage].failed.add(job_id)
        return job

    def left_by_stage(self, now_s: float, steps_of: StepsOf) -> dict[str, float | None]:
        """Return the time left of each stage, None if unknown. Unit: s."""
        return {name: stage.left_s(now_s, self._cores, steps_of) for name, stage in self.stages.items()}

    def mean_seconds(self) -> dict[str, float]:
        """Return the mean time of the jobs that have finished, by stage. Unit: s."""
        return {name: stage.busy_s / stage.done for name, stage in self.stages.items() if stage.done}


def read_usual(path: Path = USUAL) -> dict[str, float]:
    """Return the mean time of a job by stage in earlier runs; empty if there is no readable file. Unit: s."""
    try:
        content = json.loads(path.read_bytes())
        return {str(name): float(value) for name, value in content.items() if float(value) >= 0}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def write_usual(seconds: Mapping[str, float], path: Path = USUAL) -> None:
    """Add the mean times of this run to the file. A full disk or a read-only folder is no error."""
    if not seconds:
        return
    try:
        path.write_text(
            json.dumps(read_usual(path) | {name: round(value, 3) for name, value in seconds.items()}) + "\n"
        )
    except OSError:
        return


def sum_left(left_by_stage: Iterable[float | None]) -> tuple[float, bool]:
    """Return the sum of the known times left, and whether all are known. Unit: s."""
    values = list(left_by_stage)
    return sum(value for value in values if value is not None), None not in values
