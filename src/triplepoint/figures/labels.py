"""Labels of points in figures: groups that may be compared, layouts and settings, in numeric order."""

import itertools
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
DEGREES = {name: Layout.model_fields[name].default or 0 for name in LAYOUT if SETTINGS[name].unit == "1"}
"""Degrees of parallelism, with the value that labels leave out."""
_OF_GROUPS = {"task", "engine"}
_CHOSEN = [*Measured.model_fields, *ModelChoices.model_fields]
SETTING = [name for name in _CHOSEN if SETTINGS[name].has_column and name not in _OF_GROUPS] + ["variant"]
"""Settings of a point other than its layout."""

STUDY = "parallelism"
"""Its points are compared where it is in the selection: other studies try the same layouts at plainer settings."""

UNKNOWN_LAYOUT = "layout\u00a0not\u00a0known"
"""Of a recorded job that nobody described; one word, since what follows the first blank of a label is its sharding."""

_APART = ("data_parallel_sharding", "sequence_parallel", "schedule")
"""Settings of the layout that have a place of their own in its label, or none where all points share them."""
_MEMORY = ("needed_memory_lo_bytes", "needed_memory_hi_bytes", "memory_capacity_bytes")
MAY_NOT_FIT = "may not fit: its interval holds what there is"
_VALUES = {name: get_args(field.annotation) for name, field in Measured.model_fields.items()}
_LISTS = {name for name, field in Measured.model_fields.items() if get_origin(field.annotation) is tuple}
_VARIANT = Setting("Differences in what is no column.", label="{}")


def prepare(points: DataFrame) -> DataFrame:
    """Return points with text columns `place`, `group` and `layout`, in the order they are drawn.

    Groups keep the order of the table; inside a group layouts stand in numeric order, sharded ones last.
    """
    named = points.copy()
    named["unknown"] = Series([_unknown(row) for _, row in points.iterrows()], points.index, dtype=object)
    for column in (*LAYOUT, *SETTING):
        named[column] = _without_nulls(points[column], DEFAULTS.get(column), has_names=column in _LISTS)
    named["place"] = [place_name(row) for _, row in named.iterrows()]
    named["group"] = named["model"] + [_adapters(row) for _, row in named.iterrows()] + " on " + named["place"]
    order = {name: index for index, name in enumerate(dict.fromkeys(named["group"]))}
    keys = [(order[row["group"]], *_sort_key(row)) for _, row in named.iterrows()]
    sequence = sorted(range(len(named)), key=keys.__getitem__)
    named = named.iloc[sequence].reset_index(drop=True)
    named["layout"] = ""
    for _, members in named.groupby("group", sort=False):
        named.loc[members.index, "layout"] = layout_labels(members)
    return named


def _unknown(row: Series) -> frozenset[str]:
    """Return the settings of a point that nobody knows: null where a planned point has a value."""
    needed = [name for name in (*LAYOUT, *SETTING) if DEFAULTS.get(name) not in (None, ()) or name in SIZES]
    lists = [name for name in _LISTS if name in row]
    return frozenset(name for name in (*needed, *lists) if row[name] is None or (name in needed and isna(row[name])))


def _without_nulls(values: Series, default: Any, has_names: bool) -> Series:
    """Return the values of a setting as they are grouped by: nulls as the default, as 0 or as no text; lists as tuples.

    Labels leave out what is unknown, so a default that stands for it is never shown.
    """
    if has_names:
        return Series([() if names is None else tuple(names) for names in values], values.index, dtype=object)
    if not is_numeric_dtype(values):
        return values.astype(object).where(values.notna(), default if isinstance(default, (str, bool, int)) else "")
    filled = values.fillna(default if isinstance(default, int) else 0)
    # Nulls make numbers of a column floats, whole ones too.
    return filled.astype(int) if values.isna().any() and (filled % 1 == 0).all() else filled


def _adapters(row: Series) -> str:
    if isna(row["lora_rank"]):
        return ""
    targets = TARGETS if row["lora_targets"] is None else tuple(row["lora_targets"])
    names = "" if targets == TARGETS else " " + "+".join(name.removeprefix("linear_") for name in targets)
    return f" LoRA {int(row['lora_rank'])}{names}"


def place_name(row: Series) -> str:
    """Return where points were run: the cluster, and the engine where it is not the plain one."""
    return f"{row['cluster']}" if row["engine"] == "native" else f"{row['cluster']}, {row['engine']}"


def setting_text(row: Series, without: tuple[str, ...] = ()) -> str:
    """Return a point's setting without its layout in words, but for the columns in `without`."""
    texts, values = [], dict(row)
    for name in SETTING:
        if name not in without and name not in row.get("unknown", ()):
            setting = SETTINGS.get(name, _VARIANT)
            texts.append(write(name, setting.words or setting.label, values))
    return ", ".join(filter(None, texts))


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
        order = [name for name in SETTING if name not in SIZES] + SIZES
        return -covered, *(_plainness(name, values[name]) for name in order if name in values)

    return min(choices.items(), key=rank)[1]


def choose(members: DataFrame) -> DataFrame:
    """Return the comparable points of one group, those of `STUDY` where it has any, with column `setting`."""
    own = members[[STUDY in studies for studies in members["studies"]]]
    chosen = common_setting(members if own.empty else own)
    others = own[~own["layout"].isin(chosen["layout"])]
    elsewhere = [common_setting(found) for _, found in others.groupby("layout", sort=False)]
    named = [found.assign(layout=layout_at(found.iloc[0], chosen.iloc[0])) for found in elsewhere]
    joined = concat([chosen.assign(layout=layout_labels(chosen)), *named]).sort_index()
    setting = setting_text(chosen.iloc[0])
    return joined.assign(layout=without_shared(joined["layout"]), setting=setting)


def run_labels(members: DataFrame) -> dict[Any, str]:
    """Return a short label per point of one group: its layout, and of its setting what differs inside the group."""
    texts = {index: _short(row) for index, row in members.iterrows()}
    varying = [name for name in SETTING if len({text[name] for text in texts.values()}) > 1]
    return {
        index: " ".join(filter(None, [row["layout"], *(texts[index][name] for name in varying)]))
        for index, row in members.iterrows()
    }


def layout_at(row: Series, base: Series) -> str:
    """Return a point's layout, and of its setting what differs from that of another point."""
    texts, of_base = _short(row), _short(base)
    return " ".join(filter(None, [row["layout"], *(text for name, text in texts.items() if text != of_base[name])]))


def _plainness(name: str, value: Any) -> tuple:
    """Return what values of a setting are sorted by: the usual one first, then as its type lists them."""
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


def _sort_key(row: Series) -> tuple:
    sharding = get_args(Sharding).index(row["data_parallel_sharding"])
    degrees = tuple(int(row[degree]) for degree in DEGREES)
    setting = [_plainness(name, row[name]) for name in ("micro_batch_size", "recompute", "overlap", "sequence_length")]
    others = _switches(row), row["variant"], int(row["repeat"])
    return sharding, *degrees, bool(row["sequence_parallel"]), row["schedule"], *setting, *others


def layout_labels(members: DataFrame) -> Series:
    """Return layout labels of the points of one group; those that differ in schedule or sequence parallelism say so."""
    plain: dict[Any, str] = {index: _degrees(row) for index, row in members.iterrows()}
    details: dict[str, set[tuple]] = {}
    for index, row in members.iterrows():
        details.setdefault(plain[index], set()).add((bool(row["sequence_parallel"]), row["schedule"]))
    labels: dict[Any, str] = {}
    for index, row in members.iterrows():
        has_sp, schedules = (set(values) for values in zip(*details[plain[index]], strict=True))
        extra = [" SP"] if len(has_sp) > 1 and row["sequence_parallel"] else []
        schedule = write("schedule", SETTINGS["schedule"].words, dict(row)) if len(schedules) > 1 else ""
        extra += [f" {schedule}"] if schedule else []
        labels[index] = "".join([plain[index], *extra])
    return Series(labels, members.index, dtype=object)


def _degrees(row: Series) -> str:
    if "tp" in row.get("unknown", ()):
        return UNKNOWN_LAYOUT
    sharding = write("data_parallel_sharding", SETTINGS["data_parallel_sharding"].words, dict(row))
    parts = [f"{degree.upper()}{row[degree]}" for degree, usual in DEGREES.items() if row[degree] > usual]
    parts += _switches(row)
    if sharding == "FSDP":
        parts = [part.replace("DP", "FSDP") if part.startswith("DP") else part for part in parts]
        return "·".join(parts) or "FSDP1"
    return " ".join(filter(None, ["·".join(parts) or "1 rank", sharding]))


def _switches(row: Series) -> list[str]:
    """Return the texts of what a layout has besides degrees and sharding."""
    values = dict(row)
    names = [name for name in LAYOUT if name not in DEGREES and name not in _APART]
    return [text for name in names if (text := write(name, SETTINGS[name].label, values).upper())]


def without_shared(names: Series) -> Series:
    """Return layout labels without the sharding that all of them but fully sharded ones name."""
    others = [name for name in names if "FSDP" not in name]
    words = {name.partition(" ")[2] for name in others}
    if len(words) != 1 or not (shared := words.pop()):
        return names
    return names.str.removesuffix(f" {shared}")


def may_not_fit(row: Series) -> bool:
    """Return whether a simulated point that counts as finished may need more memory than there is, for all we know."""
    low, high, there = (float(row[name]) for name in _MEMORY)
    return bool(row["origin"] == "simulated" and row["status"] == Status.OK and low <= there < high)


def rank_word(found: DataFrame) -> str:
    """Return what a rank of these points is: a GPU, or on cpu a process standing in for one."""
    return "process" if (found["device_type"] == "cpu").all() else "GPU"


def slots(members: DataFrame, label: str) -> list[tuple[str, DataFrame]]:
    """Return label and points of each row of a chart, in order; repeats share a row."""
    return [(str(name), DataFrame(found)) for name, found in members.groupby(label, sort=False)]


def batches(values: Series) -> list[int]:
    """Return the different values in numeric order."""
    return [key for key, _ in itertools.groupby(sorted(int(value) for value in values))]
