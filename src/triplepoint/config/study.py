"""Studies, `config/studies/*.yaml`: the settings of their points, and the selection in `config/config.yaml`."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Devices, Size, Strict, parse
from triplepoint.config.choices import ModelChoices
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.mesh import ranks_by_role
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout, Measured, Point, PointCluster, usual_schedule
from triplepoint.config.task import (
    TARGETS,
    Inference,
    Lora,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    OutputTokens,
    PromptTokens,
)
from triplepoint.config.yaml_file import read
from triplepoint.errors import Problems, SeveralError, UserError, nearest, shown

MOST_TOKENS = 2**31 - 1
"""Longest sequence, the limit of `sequence_length`."""


class Settings(Layout, Measured, ModelChoices):
    """Settings of a point in a study: the keys of `defaults`, `set`, `axes` and `layout`."""

    model: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Model, a file in `config/models/`."""
    cluster: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Cluster, a file in `config/clusters/`."""
    num_gpus: Devices | None = None
    """World size. None: all GPUs of the cluster."""
    dp: Devices | None = None  # type: ignore[assignment]
    """Data parallel degree. None: num_gpus / (tp*pp*cp)."""
    sequence_length: Size | None = None  # type: ignore[assignment]
    """Tokens per sequence. None: the model's."""
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = 32.0
    lora_targets: LoraTargets = TARGETS
    prompt_tokens: PromptTokens | None = None
    output_tokens: OutputTokens | None = None
    trace_ranks: Literal["all", "roles"] | tuple[int, ...] = "all"
    """Ranks that write a trace of the profiled steps: `all`; `roles`, for every pipeline stage one in each row of the
    nodes' airflow and, if the stage is on several nodes, the two at the first node boundary; or a list of ranks. A
    simulated run ignores this key and traces the ranks that differ."""
    repeats: Annotated[int, Field(gt=0, le=1000, strict=True)] = 1
    """Number of repeats of the measurement; each is a separate run."""

    def chosen(self) -> dict[str, Any]:
        """Return the values that were given and differ from the default, by name."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in values.items() if value != fields[name].default}

    @model_validator(mode="after")
    def _check_inference(self) -> "Settings":
        if self.task == "inference" and not (self.prompt_tokens and self.output_tokens):
            raise ValueError("task: inference needs prompt_tokens and output_tokens")
        total = (self.prompt_tokens or 0) + (self.output_tokens or 0)
        if total > MOST_TOKENS:
            raise ValueError(f"prompt_tokens + output_tokens is {total}, a sequence has at most {MOST_TOKENS}")
        return self


def make_points(
    settings: Settings, model: ModelConfig, cluster: ClusterConfig, rows: Sequence[Sequence[int]] | None = None
) -> Iterator[Point]:
    """Yield the point of each repeat, neither folded nor checked.

    Args:
        settings: Settings of the study.
        model: The model they name.
        cluster: The cluster they name.
        rows: Devices of a node by row of its airflow; None if not known.
    """
    num_gpus = settings.num_gpus or cluster.num_gpus
    layout, inference = _layout(settings, num_gpus), _inference(settings)
    values = {name: getattr(settings, name) for name in Measured.model_fields}
    values["sequence_length"] = settings.sequence_length or model.sequence_length
    if inference is not None:
        values["micro_batch_size"] = max(1, settings.global_batch_size // layout.dp)
        values["sequence_length"] = inference.total_tokens
    trace_ranks = settings.trace_ranks
    if trace_ranks == "roles":
        trace_ranks = ranks_by_role(layout, cluster.gpus_per_node, rows or [range(cluster.gpus_per_node)])
    point = Point(
        model=model,
        cluster=PointCluster(**{name: getattr(cluster, name) for name in PointCluster.model_fields}),
        num_gpus=num_gpus,
        layout=layout,
        lora=_lora(settings),
        inference=inference,
        trace_ranks=trace_ranks,
        **values,
    )
    for repeat in range(1, settings.repeats + 1):
        yield point.model_copy(update={"repeat": repeat})


def settings_of_study(point: Point) -> dict[str, Any]:
    """Return the settings under which a study has a point, those at their default left out."""
    parts: list[Mapping[str, Any]] = [dict(point.layout), dict(point), dict(point.inference or ())]
    values: dict[str, Any] = {f"lora_{name}": value for name, value in point.lora or ()}
    for part in parts:
        values |= {name: value for name, value in part.items() if name in Settings.model_fields}
    values |= {"model": point.model.name, "cluster": point.cluster.name}
    values["trace_ranks"] = "all" if point.trace_ranks == "all" else "roles"
    fields = Settings.model_fields
    kept = {name: value for name, value in values.items() if value is not None and value != fields[name].default}
    kept = Settings.model_validate({"global_batch_size": point.global_batch_size} | kept).model_dump(
        mode="json", include=set(kept) - {"dp", "repeat", "hosts", "gpu_power_limits_w"}
    )
    return {"model": kept.pop("model"), "cluster": kept.pop("cluster"), **kept}


def _lora(settings: Settings) -> Lora | None:
    if settings.task != "lora":
        return None
    return Lora(rank=settings.lora_rank, alpha=settings.lora_alpha, targets=settings.lora_targets)


def _inference(settings: Settings) -> Inference | None:
    if settings.task != "inference" or settings.prompt_tokens is None or settings.output_tokens is None:
        return None
    return Inference(prompt_tokens=settings.prompt_tokens, output_tokens=settings.output_tokens)


def _layout(settings: Settings, num_gpus: int) -> Layout:
    values = {name: getattr(settings, name) for name in Layout.model_fields}
    # If the degrees do not divide the number of GPUs, dp is rounded down, and `check_world_size` reports the error.
    values["dp"] = settings.dp or max(1, num_gpus // (settings.tp * settings.pp * settings.cp))
    values["schedule"] = settings.schedule or usual_schedule(settings.pp, settings.vp)
    return Layout(**values)


LAYOUT = "layout"
"""Key that groups settings in a mapping; it is the only key that is not itself a setting."""

MOST_POINTS = 20_000
"""Most points of a study, repeats included: eighty times the points of all studies of the repository."""

Mapped = dict[str, Any]


class Sweep(Strict):
    """A product of axes over fixed settings."""

    set: Mapped = {}
    """Settings of every point of the sweep."""
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    """Values of each setting that varies. The points are the product of the axes, with the last axis fastest. The axis
    `layout` has mappings of settings that vary together."""


class Study(Strict):
    """A question and the points that answer it."""

    description: Annotated[str, Field(min_length=8)]
    """The question of the study, in a sentence or two."""
    defaults: Mapped = {}
    """Settings of every point, unless its sweep overrides them."""
    sweeps: Annotated[list[Sweep], Field(min_length=1)]
    """Sweeps; together their points are the study."""
    figures: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")], ...] | None = None
    """Figures of this study alone, `figs/<study>/<name>.pdf`. None: all figures that fit, unless a figure of the
    catalogue already draws the study."""


def expand(study: Study, where: Path) -> list[Settings]:
    """Return the settings of every point of a study, in order, including duplicates.

    Axes take precedence over `set`, and `set` over `defaults`; in each of them, `layout` takes precedence.

    Args:
        study: The study.
        where: File of the study, for error messages.

    Raises:
        UserError: If a key or a value is not a setting, if two axes set the same key, or if there are too many points.
    """
    _refuse_too_many(sum(math.prod(map(len, sweep.axes.values())) for sweep in study.sweeps), where)
    problems = Problems(where)
    defaults = problems.call(_flatten, study.defaults, "defaults", where) or {}
    sweeps: list[tuple[Mapped, list[list[Mapped]]]] = []
    for number, sweep in enumerate(study.sweeps):
        fixed = problems.call(_flatten, sweep.set, f"sweeps.{number}.set", where) or {}
        sweeps.append((defaults | fixed, problems.call(_axes, sweep, f"sweeps.{number}.axes", where) or []))
    problems.refuse()
    expanded: list[Settings] = []
    num_points = 0
    for fixed, axes in sweeps:
        for combination in itertools.product(*axes):
            if settings := problems.call(parse, Settings, _merge(fixed, *combination), where):
                expanded.append(settings)
                num_points += settings.repeats
                _refuse_too_many(num_points, where)
    problems.refuse()
    return expanded


def _refuse_too_many(num_points: int, where: Path) -> None:
    if num_points > MOST_POINTS:
        raise UserError(
            f"{where}: {num_points} points or more, a study has at most {MOST_POINTS}; shorten its axes, or vary fewer "
            "of them together"
        )


def _axes(sweep: Sweep, place: str, where: Path) -> list[list[Mapped]]:
    """Return the values of each axis of a sweep as mappings of settings; `place` is the key of the axes, for errors."""
    for key, values in sweep.axes.items():
        if twice := [value for value, number in Counter(map(repr, values)).items() if number > 1]:
            raise UserError(f"{where}: {place}.{key}: {shown(twice[0])} is there twice; leave one out")
    axes = [[_flatten({key: value}, place, where) for value in values] for key, values in sweep.axes.items()]
    _refuse_overlap(axes, place, where)
    return axes


def _flatten(settings: Mapping[str, Any], place: str, where: Path) -> Mapped:
    """Return settings with the mapping under `layout` merged into them; `place` is their key, for errors."""
    known = [*Settings.model_fields, LAYOUT]
    if unknown := [key for key in settings if key not in known]:
        raise SeveralError(where, [f"unknown key '{place}.{key}'{nearest(str(key), known)}" for key in unknown])
    flat = {key: value for key, value in settings.items() if key != LAYOUT}
    if LAYOUT not in settings:
        return flat
    layout = settings[LAYOUT]
    if not isinstance(layout, dict):
        raise UserError(f"{where}: {place}.{LAYOUT}: expected a mapping such as {{tp: 2, pp: 4}}, found {layout!r}")
    if LAYOUT in layout:
        raise UserError(f"{where}: unknown key '{place}.{LAYOUT}.{LAYOUT}'; a layout cannot hold another")
    return flat | _flatten(layout, f"{place}.{LAYOUT}", where)


def _refuse_overlap(axes: list[list[Mapped]], place: str, where: Path) -> None:
    """Raise `UserError` if two axes set the same key."""
    seen: set[str] = set()
    for axis in axes:
        keys = set().union(*axis)
        if twice := sorted(seen & keys):
            raise UserError(f"{where}: {place}: two axes set '{twice[0]}'; vary it in one of them")
        seen |= keys


def _merge(*parts: Mapped) -> Mapped:
    merged: Mapped = {}
    for part in parts:
        merged |= part
    return merged


def _as_list(value: Any) -> Any:
    # `--config clusters=h200x32` gives a plain text where the file gives a list.
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Selection(Strict):
    """Selection of studies and clusters for one run of Snakemake; `--config` can set each key."""

    studies: Names | None = None
    """Studies to run, files in `config/studies/`. None: all."""
    clusters: Names | None = None
    """Clusters that this machine can reach; points on others are omitted. None: all."""
    simulated: Names = ()
    """Clusters to simulate, except those in `clusters`. Their points run on the engine `simulated`. Traced are one rank
    of each of up to 32 pipeline stages and, if the stage is on several nodes, the two at the first node boundary."""
    max_gpu_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0
    """Budget for the expected GPU hours of all launches if `studies` names no study. Above it Snakemake launches
    nothing and asks for a study or a larger budget. Dry runs and simulations are free. Unit: h."""
    ranks_per_part: Annotated[int, Field(gt=0, le=1_000_000, strict=True)] = 32
    """Ranks whose traces one `parse` job reads, in parallel if it has the cores."""
    trace_rules: str | None = None
    """YAML file of rules that classify kernels and precede those of the project, see `extending.md`. None: no such
    file."""


def read_selection(config: Path) -> Selection:
    """Return the selection in `config.yaml` of a configuration folder; all defaults if there is no such file.

    Raises:
        UserError: If the file is invalid.
    """
    path = config / "config.yaml"
    return read(Selection, path) if path.exists() else Selection()
