"""Labels of points in figures: groups that may be compared, layouts and settings, in numeric order."""

import itertools
from typing import Any

from pandas import DataFrame, Series, isna

from triplepoint.config.point import Point
from triplepoint.config.task import TARGETS

GROUP = ["model", "cluster", "engine", "origin"]
"""Points that share these are drawn together."""
SIZES = ["micro_batch_size", "global_batch_size", "sequence_length"]
SETTING = [*SIZES, "recompute", "recompute_layers", "overlap", "offload", "precision", "samples", "seed", "variant"]
"""Settings of a point other than its layout."""
DEGREES = ["tp", "pp", "dp", "cp", "ep", "vp"]
LAYOUT = [*DEGREES, "data_parallel_sharding", "sequence_parallel", "schedule", "pipeline_layers"]

_SEED = Point.model_fields["seed"].default
_PREFIX = {
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "sequence_length": "seq",
    "precision": "",
    "seed": "seed",
    "variant": "",
}
_FLAGS = {"overlap": "cc", "offload": "off"}
_SHARDING = {"no_shard": "", "optim": "ZeRO-1", "optim_grads": "ZeRO-2", "optim_grads_params": "FSDP"}
_SCHEDULE = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "interleaved", "zero_bubble": "zero-bubble"}
_RECOMPUTE = {"none": "", "selective": "sel", "full": "act"}
_RECOMPUTE_LONG = {"none": "no recompute", "selective": "selective recompute", "full": "full recompute"}


def prepare(points: DataFrame) -> DataFrame:
    """Return points with text columns `place`, `group` and `layout`, in the order they are drawn.

    Groups keep the order of the table; inside a group layouts stand in numeric order, sharded ones last.
    """
    named = points.copy()
    for column in ("overlap", "offload"):
        named[column] = Series([tuple(names) for names in points[column]], points.index, dtype=object)
    # Nulls would be left out where points are grouped by their setting.
    named["recompute_layers"] = points["recompute_layers"].fillna(0).astype(int)
    named["variant"] = points["variant"].fillna("")
    named["pipeline_layers"] = points["pipeline_layers"].fillna("")
    named["schedule"] = points["schedule"].astype(object).where(points["schedule"].notna(), None)
    named["place"] = [place_name(row) for _, row in named.iterrows()]
    named["group"] = named["model"] + [_adapters(row) for _, row in named.iterrows()] + " on " + named["place"]
    order = {name: index for index, name in enumerate(dict.fromkeys(named["group"]))}
    keys = [(order[row["group"]], *_sort_key(row)) for _, row in named.iterrows()]
    sequence = sorted(range(len(named)), key=keys.__getitem__)
    named = named.iloc[sequence].reset_index(drop=True)
    labels: dict[Any, str] = {}
    for _, members in named.groupby("group", sort=False):
        labels |= _layout_labels(members)
    named["layout"] = [labels[index] for index in named.index]
    return named


def _adapters(row: Series) -> str:
    if isna(row["lora_rank"]):
        return ""
    targets = tuple(row["lora_targets"])
    names = "" if targets == TARGETS else " " + "+".join(name.removeprefix("linear_") for name in targets)
    return f" LoRA {int(row['lora_rank'])}{names}"


def place_name(row: Series) -> str:
    """Return where points were run: the cluster, and the engine where it is not the plain one."""
    return f"{row['cluster']}" if row["engine"] == "native" else f"{row['cluster']}, {row['engine']}"


def setting_text(row: Series, without: tuple[str, ...] = ()) -> str:
    """Return a point's setting without its layout in words, but for the columns in `without`."""
    texts = {
        "micro_batch_size": f"micro-batch {row['micro_batch_size']}",
        "global_batch_size": f"batch {row['global_batch_size']}",
        "sequence_length": f"sequence {row['sequence_length']}",
        "recompute": _RECOMPUTE_LONG[row["recompute"]],
        "recompute_layers": f"of {row['recompute_layers']} layers a stage" if row["recompute_layers"] else "",
        "overlap": f"overlap {'+'.join(row['overlap'])}" if row["overlap"] else "",
        "offload": f"offload {'+'.join(row['offload'])}" if row["offload"] else "",
        "precision": row["precision"],
        "samples": "" if row["samples"] == "packed" else f"{row['samples']} samples",
        "seed": "" if row["seed"] == _SEED else f"seed {row['seed']}",
        "variant": row["variant"],
    }
    return ", ".join(text for column, text in texts.items() if text and column not in without)


def common_setting(members: DataFrame, free: tuple[str, ...] = ()) -> DataFrame:
    """Return the points of one group that differ in nothing but layout, repeat and what is `free`.

    Of all settings the one tried with most layouts (and most values of `free`) is taken; among equals the plainest:
    no recomputation, no overlap, the smallest batch. Outcomes play no part, so failures do not hide.
    """
    fixed = [column for column in SETTING if column not in free]
    choices: dict[Any, DataFrame] = {}
    for key, chosen in members.groupby(fixed, sort=False):
        choices[key] = chosen

    def rank(item: tuple[Any, DataFrame]) -> tuple:
        key, chosen = item
        values = dict(zip(fixed, key, strict=True))
        covered = len(chosen[[*LAYOUT, *free]].drop_duplicates())
        overlap, offload = values["overlap"], values["offload"]
        recomputed = list(_RECOMPUTE).index(values["recompute"]), values["recompute_layers"]
        plain = *recomputed, len(overlap), overlap, len(offload), offload
        sizes = [values[name] for name in SIZES if name in values]
        others = values["samples"] != "packed", values["seed"] != _SEED, values["seed"], values["variant"]
        return (-covered, *plain, *sizes, values["precision"], *others)

    return min(choices.items(), key=rank)[1]


def run_labels(members: DataFrame) -> dict[Any, str]:
    """Return a short label per point of one group: its layout, and of its setting what differs inside the group."""
    varying = [column for column in SETTING if members[column].nunique() > 1]
    return {
        index: " ".join([row["layout"], *filter(None, (_short(column, row[column]) for column in varying))])
        for index, row in members.iterrows()
    }


def layout_at(row: Series, base: Series) -> str:
    """Return a point's layout, and of its setting what differs from that of another point."""
    differing = [column for column in SETTING if row[column] != base[column]]
    return " ".join([row["layout"], *filter(None, (_short(column, row[column]) for column in differing))])


def _short(column: str, value: Any) -> str:
    if column == "recompute":
        return _RECOMPUTE[value]
    if column in ("overlap", "offload"):
        return f"{_FLAGS[column]}:{'+'.join(value)}" if value else ""
    if column == "recompute_layers":
        return f"{value}l" if value else ""
    if column == "samples":
        return "" if value == "packed" else str(value)
    return f"{_PREFIX[column]}{value}"


def _sort_key(row: Series) -> tuple:
    sharding = list(_SHARDING).index(row["data_parallel_sharding"])
    degrees = tuple(int(row[degree]) for degree in DEGREES)
    setting = (
        row["micro_batch_size"],
        list(_RECOMPUTE).index(row["recompute"]),
        row["overlap"],
        row["sequence_length"],
        row["variant"],
    )
    return sharding, *degrees, bool(row["sequence_parallel"]), row["schedule"] or "", *setting, int(row["repeat"])


def _layout_labels(members: DataFrame) -> dict[Any, str]:
    """Return each point's layout label; layouts that differ in schedule or sequence parallelism only say so."""
    plain: dict[Any, str] = {index: _degrees(row) for index, row in members.iterrows()}
    details: dict[str, set[tuple]] = {}
    for index, row in members.iterrows():
        details.setdefault(plain[index], set()).add((bool(row["sequence_parallel"]), row["schedule"]))
    labels: dict[Any, str] = {}
    for index, row in members.iterrows():
        has_sp, schedules = (set(values) for values in zip(*details[plain[index]], strict=True))
        extra = [" SP"] if len(has_sp) > 1 and row["sequence_parallel"] else []
        extra += [f" {_SCHEDULE.get(row['schedule'], row['schedule'])}"] if len(schedules) > 1 else []
        labels[index] = "".join([plain[index], *extra])
    return labels


def _degrees(row: Series) -> str:
    sharding = _SHARDING[row["data_parallel_sharding"]]
    parts = [f"{degree.upper()}{row[degree]}" for degree in DEGREES if row[degree] > 1]
    parts += [f"L{row['pipeline_layers']}"] if row["pipeline_layers"] else []
    if sharding == "FSDP":
        parts = [part.replace("DP", "FSDP") if part.startswith("DP") else part for part in parts]
        return "·".join(parts) or "FSDP1"
    return " ".join(filter(None, ["·".join(parts) or "1 rank", sharding]))


def rank_word(found: DataFrame) -> str:
    """Return what a rank of these points is: a GPU, or on cpu a process standing in for one."""
    return "process" if found["gpu"].isna().all() else "GPU"


def slots(members: DataFrame, label: str) -> list[tuple[str, DataFrame]]:
    """Return label and points of each row of a chart, in order; repeats share a row."""
    return [(str(name), DataFrame(found)) for name, found in members.groupby(label, sort=False)]


def batches(values: Series) -> list[int]:
    """Return the different values in numeric order."""
    return [key for key, _ in itertools.groupby(sorted(int(value) for value in values))]
