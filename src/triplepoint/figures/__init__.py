"""The figures: a catalogue of what each asks and of which studies, and a module each that draws it.

The catalogue imports no drawing library: Snakemake reads it at every start. Only the module of the figure that is drawn
is imported.
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
"""Where captions are, below the folder of the workflow."""

ANSWER = "answer"
"""Identifier of the title in a figure's SVG, which the report cuts off: it stands above the figure."""

TRAINING = frozenset({"pretrain", "lora"})
INFERENCE = frozenset({"inference"})


@dataclass(frozen=True)
class Need:
    """Points a figure can draw, and what must vary among them for it to say anything.

    Attributes:
        tasks: Tasks of its points.
        on_gpus: Whether it draws points on GPUs alone.
        pipelined: Whether it draws points of several pipeline stages alone.
        varied: Settings, `layout` for all degrees together, of which one must take two values on a model and cluster;
            any points do where none is named.
        nothing: What it says where there is no such point.
    """

    tasks: frozenset[str] = TRAINING
    on_gpus: bool = False
    pipelined: bool = False
    varied: tuple[str, ...] = ()
    nothing: str = "no point of training"

    def admits(self, task: str, device_type: str) -> bool:
        """Return whether a point of this task on cpu, cuda or rocm is drawn."""
        return task in self.tasks and (device_type != "cpu" or not self.on_gpus)

    def drawn(self, points: "Iterable[Point]") -> "list[Point]":
        """Return those of some points that it draws."""
        return [
            point
            for point in points
            if self.admits(point.task, point.cluster.device) and (point.layout.pp > 1 or not self.pipelined)
        ]

    def fits(self, points: "Iterable[Point]") -> bool:
        """Return whether a figure of some points says anything."""
        drawn = self.drawn(points)
        if not self.varied:
            return bool(drawn)
        values: dict[tuple[str, ...], set[str]] = {}
        for point in drawn:
            for name in self.varied:
                values.setdefault((point.model.name, point.cluster.name, name), set()).add(repr(getattr(point, name)))
        return any(len(found) > 1 for found in values.values())


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the catalogue.

    Attributes:
        name: Name of its module here, of `figs/<name>.pdf` and of its caption `workflow/report/<name>.rst`.
        question: What it answers, in one line.
        studies: Studies it draws, all of them; of one's own study it draws that alone.
        tables: Names of the result tables it is drawn from.
        paper: Numbers of the figures of the published study that it stands for; None where there are none.
        need: Points it can draw.
        simulated: Comparison or projection that it draws, simulated for it, instead of tables of runs: `whatif/NAME` or
            `projection/NAME`, a file of `config` and one of results.
        is_general: Whether it can say something of a study of one's own, which then has it.
        cluster: The cluster of its studies that it draws, '' for all. Without a point on it, a general figure draws the
            others, and one that is not is left out. Of a study of one's own all clusters are drawn.
        is_of_one_run: Whether it draws one run alone, the one that `runs_to_draw` of its module names.
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

    @property
    def is_of_pretraining(self) -> bool:
        """Whether it asks about training all weights, which findings of other tasks come after."""
        return bool(self.need.tasks & TRAINING) and "task" not in self.need.varied


_GPUS = Need(on_gpus=True, nothing="no point of training on GPUs")

_JUDGED = ("parallelism", "microbatch", "optimizations", "mi250", "lora")
"""Studies that published claims speak of."""

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
        Need(on_gpus=True, varied=("micro_batch_size",), nothing="no point of training on GPUs"),
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
        need=Need(on_gpus=True, nothing="no point of training on GPUs"),
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
        _JUDGED,
        ("points", "claims"),
        need=_GPUS,
        is_general=False,
    ),
    FigureSpec(
        "claims_directions",
        "Which published trends, orders and limits hold here?",
        _JUDGED,
        ("points", "claims"),
        need=_GPUS,
        is_general=False,
    ),
)

FIGURES: Mapping[str, FigureSpec] = {spec.name: spec for spec in _SPECS}
"""The catalogue, in the order of the report."""

NAMES = tuple(FIGURES)
"""Names of all figures."""


def spec_of(name: str) -> FigureSpec:
    """Return the figure called `name`, or `STUDY/NAME` for that of one study alone.

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
    """What a figure's module offers."""

    def draw(self, tables: "Mapping[str, DataFrame]") -> "tuple[Figure, DataFrame]":
        """Return the figure and the numbers it plots, from the rows of its tables over its studies, a run once."""
        ...


def caption(name: str, folder: Path = CAPTIONS) -> str:
    """Return the caption of a figure: the first paragraph of its text. Raises `UserError` if there is none."""
    return text_of(name, folder)[0]


def text_of(name: str, folder: Path = CAPTIONS) -> tuple[str, str]:
    """Return the caption of a figure, and how to read it in full; both reStructuredText.

    Raises:
        UserError: If there is no such text.
    """
    path = folder / f"{name.rpartition('/')[2]}.rst"
    try:
        caption, _, notes = path.read_text(encoding="utf-8").strip().partition("\n\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; each figure has a caption there") from None
    return caption, notes.strip()


class ModuleOfOneRun(FigureModule, Protocol):
    """What the module of a figure that draws one run offers beside."""

    def runs_to_draw(self, points: "DataFrame", traced: set[str]) -> list[str]:
        """Return the run that is drawn of some points and the runs with a timeline; empty where there is none."""
        ...


def load(name: str) -> FigureModule:
    """Return the module of the figure called `name`. Raises `UserError` if there is no such figure."""
    spec = spec_of(name)
    return cast(FigureModule, importlib.import_module(f"triplepoint.figures.{spec.name}"))


def module_of_one_run(name: str) -> ModuleOfOneRun:
    """Return the module of a figure that draws one run. Raises `UserError` as `load` does."""
    return cast(ModuleOfOneRun, load(name))
