"""Catalogue of figures: question, studies and tables of each; a module of the same name draws it.

Snakemake reads the catalogue at every start, so it imports no drawing library. The module of a figure is imported only
when that figure is drawn.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from triplepoint.errors import UserError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from triplepoint.config.point import Point

CAPTIONS = Path("workflow/report")
"""Folder of the captions, relative to the folder of the workflow."""

ANSWER = "answer"
"""Identifier of the title in a figure's SVG. The report removes that title, since it shows it as text."""

TRAINING = frozenset({"pretrain", "lora"})
INFERENCE = frozenset({"inference"})


@dataclass(frozen=True)
class Need:
    """Requirements of a figure on its points.

    Attributes:
        tasks: Tasks of the points that the figure draws.
        on_gpus: Whether the figure draws only points on GPUs.
        pipelined: Whether the figure draws only points with several pipeline stages.
        varied: Settings of which at least one must have two values for a model on a cluster; `layout` stands for all
            degrees together. Without any, one point is enough.
        nothing: Text for a message if no point can be drawn.
    """

    tasks: frozenset[str] = TRAINING
    on_gpus: bool = False
    pipelined: bool = False
    varied: tuple[str, ...] = ()
    nothing: str = "no point of training"

    def admits(self, task: str, device_type: str) -> bool:
        """Return whether the figure draws points of a task on a device type: cpu, cuda or rocm."""
        return task in self.tasks and (device_type != "cpu" or not self.on_gpus)

    def drawn(self, points: "Iterable[Point]") -> "list[Point]":
        """Return the points that the figure draws."""
        return [
            point
            for point in points
            if self.admits(point.task, point.cluster.device) and (point.layout.pp > 1 or not self.pipelined)
        ]

    def fits(self, points: "Iterable[Point]") -> bool:
        """Return whether the points meet the requirements."""
        drawn = self.drawn(points)
        if not self.varied:
            return bool(drawn)
        values: dict[tuple[str, ...], set[str]] = {}
        for point in drawn:
            for name in self.varied:
                values.setdefault((point.model.name, point.cluster.name, name), set()).add(repr(getattr(point, name)))
        return any(len(distinct) > 1 for distinct in values.values())


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the catalogue.

    Attributes:
        name: Name of the figure, of the module in this package that draws it, and of its caption
            `workflow/report/<name>.rst`.
        question: Question that the figure answers, in one line.
        studies: Studies that the figure draws, all of them. `STUDY/NAME` draws another study alone.
        tables: Names of the result tables that the figure is drawn from.
        paper: Numbers of the matching figures of the published study; None if there are none.
        need: Requirements on the points.
        simulated: Comparison or projection that is simulated for the figure, drawn instead of tables of runs:
            `whatif/NAME` or `projection/NAME`, the name of a file in `config` and in `results`.
        is_general: Whether a user's own study gets the figure if its points meet the requirements.
        cluster: The only cluster that is drawn; '' for all. If no point is on it, a general figure draws all
            clusters, and any other figure is left out. Figures of a user's own study draw all clusters.
        is_of_one_run: Whether the figure draws a single run, which `runs_to_draw` of its module chooses.
        drawn_as: Figure whose module draws this one, of another cluster; '' if it has a module of its own.
    """

    name: str
    question: str
    studies: tuple[str, ...]
    tables: tuple[str, ...]
    paper: str | None = None
    need: Need = Need()
    simulated: str | None = None
    is_general: bool = True
    cluster: str = ""
    is_of_one_run: bool = False
    drawn_as: str = ""

    @property
    def module(self) -> str:
        """Full name of the module that draws the figure."""
        return f"{__name__}.{self.drawn_as or self.name}"

    @property
    def is_of_pretraining(self) -> bool:
        """Whether the figure is on training of all weights, whose findings the report lists before others."""
        return bool(self.need.tasks & TRAINING) and "task" not in self.need.varied


_GPUS = Need(on_gpus=True, nothing="no point of training on GPUs")

_CLAIM_STUDIES = ("parallelism", "microbatch", "optimizations", "mi250", "lora")
"""Studies with runs that published claims are compared with."""

_SPECS = (
    FigureSpec(
        "parallelism_sweep",
        "Which layout is fastest, and what does it cost in power and heat?",
        ("parallelism",),
        ("points", "published"),
        "4",
        Need(varied=("layout",)),
        cluster="h200x32",
    ),
    FigureSpec(
        "parallelism_sweep_h100",
        "Which layout is fastest on 64 H100, and what does it cost in power and heat?",
        ("parallelism",),
        ("points", "published"),
        "4",
        Need(varied=("layout",)),
        is_general=False,
        cluster="h100x64",
        drawn_as="parallelism_sweep",
    ),
    FigureSpec(
        "microbatch_power",
        "What does a larger micro-batch buy, in time, watts and degrees?",
        ("microbatch",),
        ("points", "published"),
        "13",
        Need(varied=("micro_batch_size",)),
    ),
    FigureSpec(
        "kernel_breakdown",
        "Which kernels is the time of a step spent in?",
        ("parallelism",),
        ("points", "kernels", "breakdown", "published"),
        "10",
    ),
    FigureSpec(
        "recompute_kernels",
        "What does recomputation cost in kernel seconds, and how much of it is exposed?",
        ("optimizations",),
        ("points", "breakdown", "published"),
        "10",
        Need(varied=("recompute",)),
    ),
    FigureSpec(
        "optimization_sweep",
        "What do recomputation and overlap change in time, power, heat and memory?",
        ("optimizations",),
        ("points", "gpus"),
        "8",
        Need(varied=("recompute", "overlap")),
        cluster="h200x32",
    ),
    FigureSpec(
        "optimization_sweep_h100",
        "What do recomputation and overlap change on 64 H100?",
        ("optimizations",),
        ("points", "gpus"),
        "8",
        Need(on_gpus=True, varied=("recompute", "overlap")),
        is_general=False,
        cluster="h100x64",
        drawn_as="optimization_sweep",
    ),
    FigureSpec(
        "microbatch_stages",
        "Do pipeline stages have equal work, and does a larger micro-batch change it?",
        ("microbatch",),
        ("points", "breakdown", "published"),
        "3, 15",
        Need(pipelined=True, varied=("micro_batch_size",), nothing="no point of training in pipeline stages"),
    ),
    FigureSpec(
        "microbatch_network",
        "How much of the links does a larger micro-batch use, and are they full?",
        ("microbatch",),
        ("points", "traffic"),
        None,
        replace(_GPUS, varied=("micro_batch_size",)),
    ),
    FigureSpec(
        "occupancy",
        "How well do kernels fill the GPU, by layout?",
        ("parallelism",),
        ("points", "kernels"),
        "19",
        Need(varied=("layout",)),
    ),
    FigureSpec(
        "scale_up_vs_out",
        "Why is scale-up (32 H200) faster or slower than scale-out (64 H100)?",
        ("parallelism",),
        (),
        "3",
        _GPUS,
        "whatif/scale_up_vs_out",
    ),
    FigureSpec(
        "projection",
        "What would 800 Gb/s be worth against 100 on 8,192 GPUs, and what do failures leave?",
        ("swings",),
        (),
        "22",
        _GPUS,
        "projection/network_8k",
    ),
    FigureSpec(
        "timeline",
        "When does which rank do what?",
        ("smoke",),
        ("points", "timeline", "gpus", "step_samples"),
        is_of_one_run=True,
    ),
    FigureSpec(
        "timeline_h200",
        "When does which rank do what on 32 H200, and how warm is its GPU?",
        ("parallelism",),
        ("points", "timeline", "gpus", "step_samples"),
        need=_GPUS,
        is_general=False,
        cluster="h200x32",
        is_of_one_run=True,
        drawn_as="timeline",
    ),
    FigureSpec(
        "telemetry_validation",
        "Can the telemetry be trusted?",
        ("smoke",),
        ("points", "telemetry_checks"),
        need=Need(TRAINING | INFERENCE, nothing="no point"),
    ),
    FigureSpec(
        "thermal_heatmap",
        "Which GPUs are hot, in which runs?",
        ("parallelism", "throttling"),
        ("points", "gpus", "published"),
        "5, 17a",
        _GPUS,
    ),
    FigureSpec(
        "clock_heatmap", "Which GPUs are slow, in which runs?", ("parallelism",), ("points", "gpus"), "17", _GPUS
    ),
    FigureSpec(
        "traffic_heatmap",
        "How much of NVLink, PCIe and InfiniBand does each layout use?",
        ("parallelism",),
        ("points", "gpus", "traffic"),
        "5",
        _GPUS,
        cluster="h200x32",
    ),
    FigureSpec(
        "traffic_heatmap_h100",
        "How much of NVLink, PCIe and InfiniBand does each layout use on 64 H100?",
        ("parallelism",),
        ("points", "gpus", "traffic"),
        "5",
        _GPUS,
        is_general=False,
        cluster="h100x64",
        drawn_as="traffic_heatmap",
    ),
    FigureSpec(
        "throttling",
        "What throttles clocks, on which GPUs, and how warm are they?",
        ("throttling",),
        ("points", "gpus", "published"),
        "17b",
        _GPUS,
    ),
    FigureSpec(
        "node_airflow",
        "How much hotter are GPUs that stand in the air of others?",
        ("parallelism", "throttling", "mi250"),
        ("points", "gpus", "published"),
        "16",
        _GPUS,
    ),
    FigureSpec(
        "power_swings",
        "How far does the power of a whole job swing, and how fast?",
        ("swings",),
        ("points", "job_power", "published"),
        need=_GPUS,
        is_general=False,
    ),
    FigureSpec(
        "cooling",
        "What do inlet temperature and liquid cooling change in speed, power and clocks?",
        ("cooling",),
        ("points", "nodes"),
        need=_GPUS,
    ),
    FigureSpec(
        "inference_batch",
        "What does serving more sequences at once buy?",
        ("inference",),
        ("points",),
        need=Need(INFERENCE, nothing="no point of inference"),
    ),
    FigureSpec(
        "lora",
        "What does fine-tuning of adapters save against training all weights?",
        ("lora", "optimizations"),
        ("points",),
        need=Need(varied=("task",)),
    ),
    FigureSpec(
        "mi250_vs_nvidia",
        "How does MI250 stand against H200 and H100 at equal work?",
        ("mi250",),
        ("points",),
        need=_GPUS,
        is_general=False,
    ),
    FigureSpec(
        "scaling_down",
        "Do models scaled down to 30B stand for the whole ones?",
        ("mi250", "parallelism"),
        ("points",),
        need=_GPUS,
        is_general=False,
    ),
    FigureSpec(
        "network",
        "What does the network between nodes cost, layout by layout?",
        ("network",),
        ("points",),
        need=_GPUS,
        is_general=False,
    ),
    FigureSpec(
        "claims",
        "How near are our numbers to the published ones?",
        _CLAIM_STUDIES,
        ("points", "claims"),
        need=_GPUS,
        is_general=False,
    ),
    FigureSpec(
        "claims_directions",
        "Which published trends, orders and limits hold here?",
        _CLAIM_STUDIES,
        ("points", "claims"),
        need=_GPUS,
        is_general=False,
    ),
)

FIGURES: Mapping[str, FigureSpec] = {spec.name: spec for spec in _SPECS}
"""Figures by name, in the order of the report."""

NAMES = tuple(FIGURES)
"""Names of all figures of the catalogue."""


def spec_of(name: str) -> FigureSpec:
    """Return the figure `NAME`, or `STUDY/NAME` with that study as its only one.

    Raises:
        UserError: If there is no such figure.
    """
    study, _, base = name.rpartition("/")
    if base not in FIGURES:
        raise UserError(f"no figure {base!r}{nearest(base, FIGURES)}")
    spec = FIGURES[base]
    if study and spec.simulated:
        raise UserError(f"figure {name}: draws config/{spec.simulated}.yaml, not one study; ask for {base}")
    return replace(spec, studies=(study,)) if study else spec


class FigureModule(Protocol):
    """Interface of the module of a figure."""

    def draw(self, tables: "Mapping[str, DataFrame]") -> "tuple[Figure, DataFrame]":
        """Return the figure and the numbers it plots.

        Args:
            tables: Tables of the figure by name, with the rows of all its studies; each run occurs once.
        """
        ...


def caption(name: str, folder: Path = CAPTIONS) -> str:
    """Return the caption of a figure. Raises `UserError` if there is none."""
    return text_of(name, folder)[0]


def text_of(name: str, folder: Path = CAPTIONS) -> tuple[str, str]:
    """Return the caption of a figure and its further notes, both reStructuredText.

    Raises:
        UserError: If the figure has no file in `folder`.
    """
    path = folder / f"{name.rpartition('/')[2]}.rst"
    try:
        caption, _, notes = path.read_text(encoding="utf-8").strip().partition("\n\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; each figure has a caption there") from None
    return caption, notes.strip()


class ModuleOfOneRun(FigureModule, Protocol):
    """Interface of the module of a figure that draws a single run."""

    def runs_to_draw(self, points: "DataFrame", traced: set[str]) -> list[str]:
        """Return the run to draw; empty if there is none.

        Args:
            points: Rows of table `points` of the figure.
            traced: Ids of the runs with a timeline.
        """
        ...


def load(name: str) -> FigureModule:
    """Return the module of a figure. Raises `UserError` if there is no such figure."""
    return cast(FigureModule, importlib.import_module(spec_of(name).module))


def module_of_one_run(name: str) -> ModuleOfOneRun:
    """Return the module of a figure that draws a single run. Raises `UserError` if there is no such figure."""
    return cast(ModuleOfOneRun, load(name))
