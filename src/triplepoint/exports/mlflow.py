"""MLflow's file store, written without MLflow: a study is an experiment, its runs are runs.

Source: the layout that MLflow's `FileStore` reads, `mlflow/store/tracking/file_store.py` of mlflow/mlflow on GitHub.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import yaml

from triplepoint.exports.runs import ExportedRun
from triplepoint.files import atomic_folder, write_text

_FINISHED, _FAILED = 3, 4
"""`RunStatus` of MLflow."""
_LOCAL = 4
"""`SourceType` of MLflow."""
_ID_DIGITS = 18
"""Decimal digits of an experiment's id, as MLflow makes them."""
_NS_PER_MS = 1_000_000


def write(study: str, runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write the runs of a study into a tracking folder, over what an earlier export wrote of them.

    Args:
        study: Name of the study, and of the experiment.
        runs: Its runs.
        folder: The tracking folder, `mlruns`; other experiments in it stay as they are.

    Returns:
        The folder of each run.

    Raises:
        OSError: From the file system.
    """
    experiment = _find_experiment(study, folder) or _id_of(study)
    home = folder / experiment
    ended_ms = max((run.ended_ns or 0 for run in runs), default=0) // _NS_PER_MS
    if not (home / "meta.yaml").is_file():
        about = {
            "artifact_location": home.resolve().as_uri(),
            "creation_time": ended_ms,
            "experiment_id": experiment,
            "last_update_time": ended_ms,
            "lifecycle_stage": "active",
            "name": study,
        }
        write_text(home / "meta.yaml", yaml.safe_dump(about))
    return [_write_run(study, run, home) for run in runs]


def _find_experiment(study: str, folder: Path) -> str | None:
    """Return the id of the experiment of a study, if the folder has it."""
    for path in sorted(folder.glob("*/meta.yaml")):
        about = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(about, dict) and about.get("name") == study:
            return path.parent.name
    return None


def _id_of(study: str) -> str:
    """Return the id of the experiment: the same whenever a study is exported."""
    digest = int(hashlib.sha256(study.encode()).hexdigest(), 16)
    return str(10 ** (_ID_DIGITS - 1) + digest % (9 * 10 ** (_ID_DIGITS - 1)))


def _write_run(study: str, run: ExportedRun, home: Path) -> Path:
    run_id = hashlib.sha256(f"{study}/{run.run}".encode()).hexdigest()[:32]
    target = home / run_id
    started_ms, ended_ms = (run.started_ns or 0) // _NS_PER_MS, (run.ended_ns or 0) // _NS_PER_MS
    about = {
        "artifact_uri": (target.resolve() / "artifacts").as_uri(),
        "end_time": ended_ms,
        "entry_point_name": "",
        "experiment_id": home.name,
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
        write_text(scratch / "meta.yaml", yaml.safe_dump(about))
        (scratch / "artifacts").mkdir()
        for part, values in (("params", run.settings), ("tags", tags)):
            (scratch / part).mkdir()
            for name, text in values.items():
                write_text(scratch / part / name, text)
        (scratch / "metrics").mkdir()
        for name, lines in metrics.items():
            write_text(scratch / "metrics" / name, "\n".join(lines) + "\n")
    return target
