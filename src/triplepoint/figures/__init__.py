"""The figures: one module each, found by name; only the module of the figure that is drawn is imported."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from triplepoint.errors import UserError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from matplotlib.figure import Figure
    from pandas import DataFrame

    from triplepoint.config.point import Point

NAMES = (
    "parallelism_sweep",
    "parallelism_sweep_h100",
    "microbatch_power",
    "kernel_breakdown",
    "timeline",
    "telemetry_validation",
    "thermal_heatmap",
    "throttle_heatmap",
    "node_airflow",
    "inference_batch",
)
"""Figure = module here = `figs/<name>.pdf` = `workflow/report/<name>.rst`, in the order of the report."""

CAPTIONS = Path("workflow/report")
"""Where captions are, below the folder of the workflow."""

TRAINING = frozenset({"pretrain", "lora"})
INFERENCE = frozenset({"inference"})


@dataclass(frozen=True)
class Need:
    """Points a figure can draw; results of others need not be there for it.

    Attributes:
        tasks: Tasks of its points.
        on_gpus: Whether it draws points on GPUs alone.
        nothing: What it says where there is no such point.
    """

    tasks: frozenset[str]
    on_gpus: bool = False
    nothing: str = "no point of training"

    def admits(self, task: str, gpu: str | None) -> bool:
        """Return whether a point of this task on this GPU type (None: cpu) is drawn."""
        return task in self.tasks and (gpu is not None or not self.on_gpus)


_TRAINING = Need(TRAINING)
_GPUS = Need(TRAINING, on_gpus=True, nothing="no point of training on GPUs")

NEEDS = {
    "parallelism_sweep": _TRAINING,
    "parallelism_sweep_h100": _GPUS,
    "microbatch_power": _TRAINING,
    "kernel_breakdown": _TRAINING,
    "timeline": _TRAINING,
    "telemetry_validation": Need(TRAINING | INFERENCE),
    "thermal_heatmap": _GPUS,
    "throttle_heatmap": _GPUS,
    "node_airflow": _GPUS,
    "inference_batch": Need(INFERENCE, nothing="no point of inference"),
}
"""Which points each figure can draw."""


def is_drawn(point: "Point", names: "Iterable[str]") -> bool:
    """Return whether one of some figures draws a planned point."""
    return any(NEEDS[name].admits(point.task, point.cluster.gpu) for name in names)


class FigureModule(Protocol):
    """What a figure's module offers."""

    TABLES: tuple[str, ...]
    """Names of the result tables it needs."""

    def draw(self, tables: "Mapping[str, DataFrame]") -> "tuple[Figure, DataFrame]":
        """Return the figure and the numbers it plots."""
        ...


def caption(name: str, folder: Path = CAPTIONS) -> str:
    """Return the caption of the figure called `name`, reStructuredText. Raises `UserError` if there is none."""
    try:
        return (folder / f"{name}.rst").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{folder / name}.rst: no such file; each figure has a caption there") from None


def load(name: str) -> FigureModule:
    """Return the module of the figure called `name`.

    Raises:
        UserError: If there is no such figure.
    """
    if name not in NAMES:
        raise UserError(f"no figure {name!r}{nearest(name, NAMES)}")
    return cast(FigureModule, importlib.import_module(f"triplepoint.figures.{name}"))
