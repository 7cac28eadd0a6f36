"""Export to Weights & Biases' offline format, with its library: a study becomes a project, its runs become runs."""

import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triplepoint.errors import UserError
from triplepoint.exports.runs import ExportedRun


def write(study: str, runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write the runs of a study as offline runs. Nothing is sent; `wandb sync` does that later.

    Args:
        study: Name of the study, and of the project.
        runs: Runs of the study.
        folder: Folder to write `wandb/offline-run-*` to.

    Returns:
        The folder of each run.

    Raises:
        UserError: If the library is not installed.
        OSError: From the file system.
    """
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError:
        raise UserError(
            "export: --to wandb needs the library wandb, which writes its format; install it with 'pip install wandb', "
            "or use --to mlflow"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_run(wandb, study, run, folder) for run in runs]


def _write_run(wandb: Any, study: str, run: ExportedRun, folder: Path) -> Path:
    offline_run = wandb.init(
        mode="offline",
        dir=str(folder),
        project=study,
        name=run.run,
        id=hashlib.sha256(f"{study}/{run.run}".encode()).hexdigest()[:32],
        config=run.settings | run.tags,
        tags=[run.tags["origin"], run.tags["status"]],
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True),
    )
    for step in run.steps:
        values = {"steps/step_time_s": step.step_time_s}
        if step.loss is not None:
            values["steps/loss"] = step.loss
        offline_run.log(values, step=step.step)
    offline_run.summary.update(run.results)
    folder_of_run = Path(offline_run.dir).parent
    offline_run.finish(exit_code=0 if run.is_ok else 1)
    return folder_of_run
