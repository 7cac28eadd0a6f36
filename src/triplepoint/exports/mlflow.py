"""Export to MLflow's file store, without MLflow: a study becomes an experiment, its runs become runs.

Source: the layout that MLflow's `FileStore` reads, `mlflow/store/tracking/file_store.py` of mlflow/mlflow on GitHub.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import yaml

from triplepoint.exports.runs import ExportedRun
from triplepoint.files import atomic_folder, write_text

_FINISHED, _FAILED = 3, 4
"""Values of MLflow's `RunStatus`."""
_LOCAL = 4
"""Value of MLflow's `SourceType`."""
_ID_DIGITS = 18
"""Decimal digits of an experiment's id in MLflow."""
_NS_PER_MS = 1_000_000


def write(study: str, runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write the runs of a study to a tracking folder. Runs of an earlier export are replaced.

    Args:
        study: Name of the study, and of the experiment.
        runs: Runs of the study.
        folder: Tracking folder, `mlruns`; other experiments in it stay as they are.

    Returns:
        The folder of each run.

    Raises:
        OSError: From the file system.
    """
    experiment_id = _find_experiment(study, folder) or _experiment_id(study)
    experiment = folder / experiment_id
    ended_ms = max((run.ended_ns or 0 for run in runs), default=0) // _NS_PER_MS
    if not (experiment / "meta.yaml").is_file():
        meta = {
            "artifact_location": experiment.resolve().as_uri(),
            "creation_time": ended_ms,
            "experiment_id": experiment_id,
            "last_update_time": ended_ms,
            "lifecycle_stage": "active",
            "name": study,
        }
        write_text(experiment / "meta.yaml", yaml.safe_dump(meta))
    return [_write_run(study, run, experiment) for run in runs]


def _find_experiment(study: str, folder: Path) -> str | None:
    """Return the id of the study's experiment, None if the folder has none."""
    for path in sorted(folder.glob("*/meta.yaml")):
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(meta, dict) and meta.get("name") == study:
            return path.parent.name
    return None


def _experiment_id(study: str) -> str:
    """Return the id of a new experiment: the same in every export of a study."""
    digest = int(hashlib.sha256(study.encode()).hexdigest(), 16)
    return str(10 ** (_ID_DIGITS - 1) + digest % (9 * 10 ** (_ID_DIGITS - 1)))


def _write_run(study: str, run: ExportedRun, experiment: Path) -> Path:
    run_id = hashlib.sha256(f"{study}/{run.run}".encode()).hexdigest()[:32]
    target = experiment / run_id
    started_ms, ended_ms = (run.started_ns or 0) // _NS_PER_MS, (run.ended_ns or 0) // _NS_PER_MS
    meta = {
        "artifact_uri": (target.resolve() / "artifacts").as_uri(),
        "end_time": ended_ms,
        "entry_point_name": "",
        "experiment_id": experiment.name,
        "lifecycle_stage": "active",
        "run_id": run_id,
        "run_name": run.run,
        "run_uuid": run_id,
        "source_name": "triplepoint",
        "source_type": _LOCAL,
        "source_version": run.tags.get("git_commit", ""),
        "start_time": started_ms,
        "status": _FINISHED if run.is_ok else _FAILED,
        "tags": [],
        "user_id": "triplepoint",
    }
    metrics = {name: [f"{ended_ms} {value!r} 0"] for name, value in run.results.items()}
    series = [("step_time_s", step, step.step_time_s) for step in run.steps]
    series += [("loss", step, step.loss) for step in run.steps if step.loss is not None]
    for name, step, value in series:
        metrics.setdefault(f"steps/{name}", []).append(f"{step.t_ns // _NS_PER_MS} {value!r} {step.step}")
    tags = {"mlflow.runName": run.run, **{f"triplepoint.{name}": text for name, text in run.tags.items()}}
    with atomic_folder(target) as scratch:
        write_text(scratch / "meta.yaml", yaml.safe_dump(meta))
        (scratch / "artifacts").mkdir()
        for kind, values in (("params", run.settings), ("tags", tags)):
            (scratch / kind).mkdir()
            for name, text in values.items():
                write_text(scratch / kind / name, text)
        (scratch / "metrics").mkdir()
        for name, lines in metrics.items():
            write_text(scratch / "metrics" / name, "\n".join(lines) + "\n")
    return target
