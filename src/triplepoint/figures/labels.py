"""Labels of points in figures: groups of comparable points, layouts and settings."""

from typing import Any, get_args, get_origin

from pandas import DataFrame, Series, concat, isna
from pandas.api.types import is_numeric_dtype

from triplepoint.config.base import Setting, write
from triplepoint.config.choices import ModelChoices
from triplepoint.config.point import DEFAULTS, SETTINGS, Layout, Measured, Sharding
from triplepoint.config.task import TARGETS
from triplepoint.status import Status

SIZES = ["micro_batch_size", "global_batch_size", "sequence_length"]
LAYOUT = [name for name in Layout.model_fields if SETTINGS[name].has_column]
"""Columns of the layout."""
DEGREES = {name: Layout.model_fields[name].default or 0 for name in LAYOUT if SETTINGS[name].unit == "1"}
"""Degrees of parallelism, each with the value that labels leave out."""
_OF_GROUPS = {"task", "engine"}
_POINT_FIELDS = [*Measured.model_fields, *ModelChoices.model_fields]
SETTING = [name for name in _POINT_FIELDS if SETTINGS[name].has_column and name not in _OF_GROUPS] + ["variant"]
"""Columns of the settings other than the layout."""

STUDY = "parallelism"
"""Study whose points comparisons of layouts prefer; other studies run the same layouts at plainer settings."""

UNKNOWN_LAYOUT = "layout\u00a0not\u00a0known"
"""Layout label of a recorded job without a description. It is one word, since a space precedes the sharding."""

_SPECIAL = ("data_parallel_sharding", "sequence_parallel", "schedule")
"""Settings of the layout that `layout_labels` and `_degrees` treat specially; other switches use their short label."""
_MEMORY = ("needed_memory_lo_bytes", "needed_memory_hi_bytes", "memory_capacity_bytes")
MAY_NOT_FIT = "may not fit: its interval holds what there is"
"""Legend entry of points for which `may_not_fit` is true."""
_VALUES = {name: get_args(field.annotation) for name, field in Measured.model_fields.items()}
_LISTS = {name for name, field in Measured.model_fields.items() if get_origin(field.annotation) is tuple}
_VARIANT = Setting("Differences in what is no column.", label="{}")


def prepare(points: DataFrame) -> DataFrame:
    """Return points in the order of figures, with columns for labels.

    Groups keep the order of the table. Inside a group layouts are in numeric order, sharded ones last. New columns:
    `place` (cluster and engine), `group` (model, adapters and place), `layout` (label), `is_sharded` (parameters are
    sharded over data-parallel ranks) and `unknown` (settings that nobody knows).
    """
    named = points.copy()
    named["unknown"] = Series([_unknown(row) for row in _rows(points)], points.index, dtype=object)
    for column in (*LAYOUT, *SETTING):
        named[column] = _without_nulls(points[column], DEFAULTS.get(column), has_names=column in _LISTS)
    rows = _rows(named)
    named["place"] = [place_name(row) for row in rows]
    named["group"] = named["model"] + [_adapters(row) for row in rows] + " on " + named["place"]
    order = {name: index for index, name in enumerate(dict.fromkeys(named["group"]))}
    keys = [(order[group], *_sort_key(row)) for group, row in zip(named["group"], rows, strict=True)]
    sequence = sorted(range(len(named)), key=keys.__getitem__)
    named = named.iloc[sequence].reset_index(drop=True)
    named["is_sharded"] = named["data_parallel_sharding"] == "optim_grads_params"
    named["layout"] = ""
    for _, members in named.groupby("group", sort=False):
        named.loc[members.index, "layout"] = layout_labels(members)
    return named


def _rows(points: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table; looking up a value in those of `iterrows` takes ten times as long."""
    return [dict(zip(points.columns, values, strict=True)) for values in points.to_numpy(dtype=object)]


def _unknown(row: dict[str, Any]) -> frozenset[str]:
    """Return the unknown settings of a point: those that are null although every planned point has a value."""
    required = [name for name in (*LAYOUT, *SETTING) if DEFAULTS.get(name) not in (None, ()) or name in SIZES]
    lists = [name for name in _LISTS if name in row]
    return frozenset(
        name for name in (*required, *lists) if row[name] is None or (name in required and isna(row[name]))
    )


def _without_nulls(values: Series, default: Any, has_names: bool) -> Series:
    """Return the values of a setting without nulls, so that points can be grouped by them.

    Labels leave out unknown settings, so the replacement of a null is never shown.

    Args:
        values: Column of the setting.
        default: Value that replaces nulls. If it has another type: 0 for numbers, '' for texts.
        has_names: Whether values are lists of names; they become tuples.
    """
    if has_names:
        return Series([() if names is None else tuple(names) for names in values], values.index, dtype=object)
    if not is_numeric_dtype(values):
        return values.astype(object).where(values.notna(), default if isinstance(default, (str, bool, int)) else "")
    filled = values.fillna(default if isinstance(default, int) else 0)
    # Pandas stores whole numbers as floats in a column with nulls.
    return filled.astype(int) if values.isna().any() and (filled % 1 == 0).all() else filled


def _adapters(row: dict[str, Any]) -> str:
    """Return the rank and the targets of LoRA adapters, with a leading space; '' without adapters."""
    if isna(row["lora_rank"]):
        return ""
    targets = TARGETS if row["lora_targets"] is None else tuple(row["lora_targets"])
    names = "" if targets == TARGETS else " " + "+".join(name.removeprefix("linear_") for name in targets)
    return f" LoRA {int(row['lora_rank'])}{names}"


def place_name(row: Series | dict[str, Any]) -> str:
    """Return the cluster, and the engine unless it is the native one: 'h200x32, simulated'."""
    return f"{row['cluster']}" if row["engine"] == "native" else f"{row['cluster']}, {row['engine']}"


def setting_text(row: Series, without: tuple[str, ...] = ()) -> str:
    """Return the settings of a point other than its layout in words, without the columns in `without`."""
    texts, values = [], dict(row)
    for name in SETTING:
        if name not in without and name not in row.get("unknown", ()):
            setting = SETTINGS.get(name, _VARIANT)
            texts.append(write(name, setting.words or setting.label, values))
    return ", ".join(filter(None, texts))


def common_setting(members: DataFrame, free: tuple[str, ...] = ()) -> DataFrame:
    """Return the points of one group at one common setting: they differ only in layout, repeat and the columns `free`.

    The setting with most combinations of layout and `free` is chosen. Among equals it is the plainest: no
    recomputation, no overlap, the smallest batch. Failed points count too, so failures stay visible.
    """
    fixed = [column for column in SETTING if column not in free]
    order = [name for name in SETTING if name not in SIZES] + SIZES
    # Values are hashable and not null, see `prepare`; `groupby` over as many columns takes several times as long.
    keys, combinations = (
        [tuple(values) for values in members[columns].to_numpy(dtype=object)] for columns in (fixed, [*LAYOUT, *free])
    )
    choices: dict[tuple, set[tuple]] = {}
    for key, combination in zip(keys, combinations, strict=True):
        choices.setdefault(key, set()).add(combination)

    def rank(key: tuple) -> tuple:
        values = dict(zip(fixed, key, strict=True))
        return -len(choices[key]), *(_plainness(name, values[name]) for name in order if name in values)

    chosen = min(choices, key=rank)
    return members[[key == chosen for key in keys]]


def choose(members: DataFrame) -> DataFrame:
    """Return the comparable points of one group, with column `setting`, the text of their common setting.

    Only points of `STUDY` are used if the group has any. A layout of that study that did not run at the common setting
    is shown at its own setting, and its label tells the difference.
    """
    of_study = members[[STUDY in studies for studies in members["studies"]]]
    chosen = common_setting(members if of_study.empty else of_study)
    others = of_study[~of_study["layout"].isin(chosen["layout"])]
    elsewhere = [common_setting(points) for _, points in others.groupby("layout", sort=False)]
    named = [points.assign(layout=layout_at(points.iloc[0], chosen.iloc[0])) for points in elsewhere]
    joined = concat([chosen.assign(layout=layout_labels(chosen)), *named]).sort_index()
    setting = setting_text(chosen.iloc[0])
    return joined.assign(layout=without_shared(joined["layout"]), setting=setting)


def layout_at(row: Series, base: Series) -> str:
    """Return the layout label of a point, and its settings that differ from those of point `base`."""
    texts, base_texts = _short(row), _short(base)
    return " ".join(filter(None, [row["layout"], *(text for name, text in texts.items() if text != base_texts[name])]))


def _plainness(name: str, value: Any) -> tuple:
    """Return the sort key of a value of a setting: the usual value first, then in the order of its type."""
    if isinstance(value, tuple):
        return len(value), value
    values = _VALUES.get(name, ())
    usual = SETTINGS[name].usual if name in SETTINGS and name not in SIZES else None
    return usual is not None and value != usual, values.index(value) if value in values else value


def _short(row: Series) -> dict[str, str]:
    """Return the short text of each setting other than the layout."""
    values = dict(row)
    unknown = values.get("unknown", ())
    return {
        name: "" if name in unknown else write(name, SETTINGS.get(name, _VARIANT).label, values) for name in SETTING
    }


def _sort_key(row: dict[str, Any]) -> tuple:
    """Return the sort key of a point within its group: sharding, degrees, then settings and repeat."""
    sharding = get_args(Sharding).index(row["data_parallel_sharding"])
    degrees = tuple(int(row[degree]) for degree in DEGREES)
    setting = [_plainness(name, row[name]) for name in ("micro_batch_size", "recompute", "overlap", "sequence_length")]
    others = _switches(row), row["variant"], int(row["repeat"])
    return sharding, *degrees, bool(row["sequence_parallel"]), row["schedule"], *setting, *others


def layout_labels(members: DataFrame) -> Series:
    """Return the layout labels of the points of one group.

    Sequence parallelism and schedule are added where points with the same degrees differ in them.
    """
    rows = _rows(members)
    plain = [_degrees(row) for row in rows]
    details: dict[str, set[tuple]] = {}
    for label, row in zip(plain, rows, strict=True):
        details.setdefault(label, set()).add((bool(row["sequence_parallel"]), row["schedule"]))
    labels = []
    for label, row in zip(plain, rows, strict=True):
        has_sp, schedules = (set(values) for values in zip(*details[label], strict=True))
        extra = ["SP"] if len(has_sp) > 1 and row["sequence_parallel"] else []
        schedule = write("schedule", SETTINGS["schedule"].words, row) if len(schedules) > 1 else ""
        labels.append(" ".join(filter(None, [label, *extra, schedule])))
    return Series(labels, members.index, dtype=object)


def _degrees(row: dict[str, Any]) -> str:
    """Return the label of a layout without sequence parallelism and schedule, such as 'TP4·PP8' or 'TP2·FSDP16'."""
    if "tp" in row.get("unknown", ()):
        return UNKNOWN_LAYOUT
    sharding = write("data_parallel_sharding", SETTINGS["data_parallel_sharding"].words, row)
    parts = [f"{degree.upper()}{row[degree]}" for degree, usual in DEGREES.items() if row[degree] > usual]
    parts += _switches(row)
    if sharding == "FSDP":
        parts = [part.replace("DP", "FSDP") if part.startswith("DP") else part for part in parts]
        return "·".join(parts) or "FSDP1"
    return " ".join(filter(None, ["·".join(parts) or "1 rank", sharding]))


def _switches(row: dict[str, Any]) -> list[str]:
    """Return the short labels of the switches of a layout: all of its settings but degrees and `_SPECIAL`."""
    names = [name for name in LAYOUT if name not in DEGREES and name not in _SPECIAL]
    return [text for name in names if (text := write(name, SETTINGS[name].label, row).upper())]


def without_shared(names: Series) -> Series:
    """Return layout labels without their sharding, if all labels except those with FSDP name the same one."""
    others = [name for name in names if "FSDP" not in name]
    words = {name.partition(" ")[2] for name in others}
    if len(words) != 1 or not (shared := words.pop()):
        return names
    return names.str.removesuffix(f" {shared}")


def may_not_fit(row: Series) -> bool:
    """Return whether a finished simulated point may need more memory than the GPU has.

    True if the capacity lies in the interval of the predicted need.
    """
    low, high, capacity = (float(row[name]) for name in _MEMORY)
    return bool(row["origin"] == "simulated" and row["status"] == Status.OK and low <= capacity < high)


def rank_word(points: DataFrame) -> str:
    """Return the noun for a rank: 'GPU', or 'process' if all points ran on CPUs."""
    return "process" if (points["device_type"] == "cpu").all() else "GPU"


def distinct_sizes(values: Series) -> list[int]:
    """Return the distinct sizes in ascending order."""
    return sorted({int(value) for value in values})
