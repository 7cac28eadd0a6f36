"""How the kernel seconds of a step divide into parts: classes of computation and kinds of communication.

A part is called by its class, or by its kind where it is communication; `OTHER_COMM` is communication of no known kind.
Copies of the trace are the part `memory`; idle time is none.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import nan

from pandas import DataFrame, Series, concat

from triplepoint import effects
from triplepoint.effects import titles

COMM = "comm"
OTHER = "other"
OTHER_COMM = "other_comm"
OVERLAPPED = "overlapped"
SMALL = 0.02
"""Classes of computation that take less of the kernel time of every run are drawn as one."""

PUBLISHED: Mapping[str, str] = {
    "computation_kernels_s": "compute",
    "all_gather_kernels_s": "all_gather",
    "reduce_scatter_kernels_s": "reduce_scatter",
    "all_reduce_kernels_s": "all_reduce",
    "send_recv_kernels_s": "send_recv",
}
"""Quantities of table `published`, and the part that each is."""

CLASSES = (
    "gemm", "attention", "elementwise", "norm", "moe", "embedding", "loss", "optimizer", "conv", "memory",
)  # fmt: skip
"""Classes of computation that are parts, in the order they are stacked; all others are `OTHER`."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Kinds of communication that are parts, in that order; all others are `OTHER_COMM`."""
_ORDER = (*CLASSES, OTHER, "compute")
_KINDS = (*KINDS, OTHER_COMM)
_ONE_KIND = {"send": "send_recv", "recv": "send_recv"}


def is_communication(part: str) -> bool:
    """Return whether a part is communication."""
    return part in _KINDS


def in_order(parts: Sequence[str]) -> list[str]:
    """Return different parts in the order they are stacked: computation, then communication."""
    return [part for part in (*_ORDER, *_KINDS, OVERLAPPED) if part in set(parts)]


def of_kernels(kernels: DataFrame) -> DataFrame:
    """Return the seconds of each run and part, columns run, part and sum_s, of rows of table `kernels`."""
    parts = _parts(kernels["class"] == COMM, kernels["class"], kernels["kind"])
    sums = kernels.assign(part=parts).groupby(["run", "part"], sort=False)["sum_s"].sum().reset_index()
    return _without_small(sums, ["run"], ["sum_s"])


def of_stages(breakdown: DataFrame, by: Sequence[str] = ("run", "stage")) -> DataFrame:
    """Return the seconds of each part, mean over the ranks of a run or stage, phases together, of table `breakdown`.

    Args:
        breakdown: Rows of the table; idle time is left out.
        by: What ranks are put together by: run, or run and stage.

    Returns:
        Columns of `by`, part, busy_s (concurrent kinds count twice), exposed_s and overlapped_s.
    """
    columns = ["busy_s", "exposed_s", "overlapped_s"]
    busy = breakdown[breakdown["category"] != "idle"]
    classes = busy["kind"].where(busy["category"] != "memory", "memory")
    parted = busy.assign(part=_parts(busy["category"] == COMM, classes, busy["kind"]))
    sums = parted.groupby([*by, "part"], sort=False)[columns].sum()
    counted = breakdown.groupby(list(by), sort=False)["rank"].nunique().rename("num_ranks").reset_index()
    means = sums.reset_index().merge(counted, on=list(by), sort=False)
    means[columns] = means[columns].div(means["num_ranks"], axis=0)
    return _without_small(means.drop(columns="num_ranks"), list(by), columns)


def spread_of_stages(totals: DataFrame) -> Series:
    """Return by how much the busiest stage of each layout computes longer than the least busy one, a ratio less 1.

    Args:
        totals: A row per layout, micro-batch size and stage: layout, micro_batch_size, stage, compute_s and total_s.
    """
    first = totals[totals["micro_batch_size"] == totals["micro_batch_size"].min()]
    seconds = first.groupby("layout", sort=False)["compute_s"]
    spread: Series = seconds.max() / seconds.min() - 1
    return spread


def change_of_stages(totals: DataFrame) -> titles.Change | None:
    """Return what a larger micro-batch does to the kernel seconds of stages; None of one size alone.

    Args:
        totals: As `spread_of_stages` takes them.
    """
    first = totals["micro_batch_size"].min()
    sizes = totals.groupby("micro_batch_size")["layout"].nunique()
    larger = sizes[(sizes.index > first) & (2 * sizes >= sizes.max())]
    if larger.empty:
        return None
    last = int(larger.index.max())
    wide = totals.pivot_table("total_s", ["layout", "stage"], "micro_batch_size")
    changes: dict[tuple[Hashable, ...], effects.Effect] = {
        (str(layout),): effects.over_settings([effects.Effect(float(change), nan, nan, "none", 1) for change in found])
        for layout, found in (wide[last] / wide[first] - 1).dropna().groupby(level="layout", sort=False)
    }
    return titles.Change(f"micro-batch {last}", f"micro-batch {int(first)}", {"kernel time": changes})


def exposed_and_overlapped(breakdown: DataFrame) -> DataFrame:
    """Return seconds of each run and part that are exposed, and as one more part those that run beside others.

    Args:
        breakdown: Rows of table `breakdown`.

    Returns:
        Columns run, part and seconds; of a run they add up to its kernel seconds.
    """
    means = of_stages(breakdown, ["run"])
    exposed = means[["run", "part"]].assign(seconds=means["exposed_s"])
    beside = means.groupby("run", sort=False)["overlapped_s"].sum()
    overlapped = DataFrame({"run": beside.index, "part": OVERLAPPED, "seconds": beside.to_numpy()})
    return concat([exposed, overlapped[overlapped["seconds"] > 0]], ignore_index=True)


def communication_shares(breakdown: DataFrame) -> DataFrame:
    """Return per run what part of kernel seconds is communication: mean, lowest and highest over ranks, 0-1."""
    busy = breakdown[breakdown["category"] != "idle"]
    total = busy.groupby(["run", "rank"])["busy_s"].sum()
    comm = busy[busy["category"] == COMM].groupby(["run", "rank"])["busy_s"].sum()
    shares = (comm.reindex(total.index, fill_value=0.0) / total).groupby("run")
    return DataFrame({"mean": shares.mean(), "low": shares.min(), "high": shares.max()})


def answer_communication(breakdown: DataFrame, places: Mapping[str, str]) -> str:
    """Return from how much to how much of kernel seconds is communication, by cluster, as a title.

    Args:
        breakdown: Rows of table `breakdown`.
        places: Where each run that is meant was run.
    """
    means = communication_shares(breakdown[breakdown["run"].isin(set(places))])["mean"]
    if means.empty:
        return "No run was traced"
    of_places = {place: means[[run for run in means.index if places[run] == place]] for place in places.values()}
    parts: list[str] = []
    for place, found in of_places.items():
        low, high = (f"{100 * end:.0f}" for end in (found.min(), found.max()))
        size = f"{low} %" if low == high else f"{low} to {high} %"
        whole = "" if parts else " of kernel time"
        parts.append(size + whole + (f" on {place}" if len(of_places) > 1 else ""))
    return f"Communication takes {' and '.join(parts)}"


def published_parts(published: DataFrame | None, source: str) -> DataFrame:
    """Return published seconds of each run and part, columns run, part and published_s.

    What a published total holds beyond its parts is the part `other`.

    Args:
        published: Table `published`, or None.
        source: Figure they are from: figures differ in what they sum over.
    """
    if published is None:
        return DataFrame({"run": [], "part": [], "published_s": []}).astype({"run": object, "part": object})
    ours = published[(published["source"] == source) & published["node"].isna()]
    ours = ours.drop_duplicates(["run", "quantity"])
    known = ours[ours["quantity"].isin(PUBLISHED.keys())]
    named = known.assign(part=known["quantity"].map(PUBLISHED), published_s=known["published"].astype(float))
    totals = ours[ours["quantity"] == "kernel_sum_s"].set_index("run")["published"].astype(float)
    rest = (totals - named.groupby("run")["published_s"].sum()).clip(lower=0).dropna()
    others = DataFrame({"run": rest.index, "part": OTHER, "published_s": rest.to_numpy()})
    return concat([named[["run", "part", "published_s"]], others], ignore_index=True)


def _parts(is_comm: Series, classes: Series, kinds: Series) -> Series:
    parts: list[str] = []
    for comm, name, kind in zip(is_comm, classes, kinds, strict=True):
        if comm:
            one = _ONE_KIND.get(kind, kind)
            parts.append(one if one in _KINDS else OTHER_COMM)
        else:
            parts.append(name if name in CLASSES else OTHER)
    # Text also where there is none: a table without rows is joined to others.
    return Series(parts, index=classes.index, dtype="str")


def _without_small(sums: DataFrame, by: list[str], columns: list[str]) -> DataFrame:
    """Return sums with the small classes of computation as one, in the order parts are stacked."""
    share = sums[columns[0]] / sums.groupby(by)[columns[0]].transform("sum")
    most = share.groupby(sums["part"]).max()
    small = [part for part in most.index if not is_communication(str(part)) and most[part] < SMALL]
    folded = sums.assign(part=sums["part"].where(~sums["part"].isin(small), OTHER))
    folded = folded.groupby([*by, "part"], sort=False)[columns].sum().reset_index()
    order = {part: number for number, part in enumerate(in_order(list(folded["part"])))}
    keys = folded["part"].map(order)
    return folded.assign(order=keys).sort_values([*by, "order"], kind="stable").drop(columns="order")
