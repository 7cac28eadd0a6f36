"""What points are called in figures: groups that may be compared, layouts, settings; in numeric order."""

import itertools
from typing import Any

from pandas import DataFrame, Series, isna

GROUP = ["model", "cluster", "engine", "origin"]
"""Points that share these are drawn together."""
SETTING = ["micro_batch_size", "global_batch_size", "sequence_length", "recompute", "overlap", "precision"]
"""What a point sets beside its layout."""
DEGREES = ["tp", "pp", "dp", "cp", "ep", "vp"]
LAYOUT = [*DEGREES, "data_parallel_sharding", "sequence_parallel", "schedule"]

_SHARDING = {"no_shard": "", "optim": "ZeRO-1", "optim_grads": "ZeRO-2", "optim_grads_params": "FSDP"}
_SCHEDULE = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "interleaved", "zero_bubble": "zero-bubble"}
_RECOMPUTE = {"none": "", "selective": "sel", "full": "act"}
_RECOMPUTE_LONG = {"none": "no recompute", "selective": "selective recompute", "full": "full recompute"}


def prepare(points: DataFrame) -> DataFrame:
    """Return points with text columns `place`, `group` and `layout`, in the order they are drawn.

    Groups keep the order of the table; inside a group layouts stand in numeric order, sharded ones last.
    """
    named = points.copy()
    named["overlap"] = Series([tuple(names) for names in points["overlap"]], points.index, dtype=object)
    named["schedule"] = points["schedule"].astype(object).where(points["schedule"].notna(), None)
    named["place"] = [place_name(row) for _, row in named.iterrows()]
    named["group"] = named["model"] + [_adapters(rank) for rank in named["lora_rank"]] + " on " + named["place"]
    order = {name: index for index, name in enumerate(dict.fromkeys(named["group"]))}
    keys = [(order[row["group"]], *_sort_key(row)) for _, row in named.iterrows()]
    sequence = sorted(range(len(named)), key=keys.__getitem__)
    named = named.iloc[sequence].reset_index(drop=True)
    labels: dict[Any, str] = {}
    for _, members in named.groupby("group", sort=False):
        labels |= _layout_labels(members)
    named["layout"] = [labels[index] for index in named.index]
    return named


def _adapters(rank: Any) -> str:
    return "" if isna(rank) else f" LoRA {int(rank)}"


def place_name(row: Series) -> str:
    """Return where points were run: the cluster, and the engine where it is not the plain one."""
    return f"{row['cluster']}" if row["engine"] == "native" else f"{row['cluster']}, {row['engine']}"


def setting_text(row: Series, without: tuple[str, ...] = ()) -> str:
    """Return a point's setting beside its layout in words, but for the columns in `without`."""
    texts = {
        "micro_batch_size": f"micro-batch {row['micro_batch_size']}",
        "global_batch_size": f"batch {row['global_batch_size']}",
        "sequence_length": f"sequence {row['sequence_length']}",
        "recompute": _RECOMPUTE_LONG[row["recompute"]],
        "overlap": f"overlap {'+'.join(row['overlap'])}" if row["overlap"] else "",
        "precision": row["precision"],
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
        plain = list(_RECOMPUTE).index(values["recompute"]), len(values["overlap"]), values["overlap"]
        sizes = [
            values[name] for name in ("micro_batch_size", "global_batch_size", "sequence_length") if name in values
        ]
        return (-covered, *plain, *sizes, values["precision"])

    return min(choices.items(), key=rank)[1]


def run_labels(members: DataFrame) -> dict[Any, str]:
    """Return a short label per point of one group: its layout, and of its setting what differs inside the group."""
    varying = [column for column in SETTING if members[column].nunique() > 1]
    return {
        index: " ".join([row["layout"], *filter(None, (_short(column, row[column]) for column in varying))])
        for index, row in members.iterrows()
    }


def _short(column: str, value: Any) -> str:
    if column == "recompute":
        return _RECOMPUTE[value]
    if column == "overlap":
        return f"cc:{'+'.join(value)}" if value else ""
    prefix = {"micro_batch_size": "mbs", "global_batch_size": "gbs", "sequence_length": "seq", "precision": ""}[column]
    return f"{prefix}{value}"


def _sort_key(row: Series) -> tuple:
    sharding = list(_SHARDING).index(row["data_parallel_sharding"])
    degrees = tuple(int(row[degree]) for degree in DEGREES)
    setting = (
        row["micro_batch_size"],
        list(_RECOMPUTE).index(row["recompute"]),
        row["overlap"],
        row["sequence_length"],
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
