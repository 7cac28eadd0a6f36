"""Kernel seconds of a step by part: classes of computation and kinds of communication.

The name of a part is the class of its kernels, or the kind for communication. `OTHER_COMM` is communication of no known
kind. Memory copies are the part `memory`. Idle time is no part.
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
"""Share of kernel time; classes of computation below it in every run are summed in `OTHER`."""

PUBLISHED: Mapping[str, str] = {
    "computation_kernels_s": "compute",
    "all_gather_kernels_s": "all_gather",
    "reduce_scatter_kernels_s": "reduce_scatter",
    "all_reduce_kernels_s": "all_reduce",
    "send_recv_kernels_s": "send_recv",
}
"""Part of each quantity of table `published`."""

CLASSES = (
    "gemm", "attention", "elementwise", "norm", "moe", "embedding", "loss", "optimizer", "conv", "memory",
)  # fmt: skip
"""Classes of computation that are parts, in the order of a stack; all others are `OTHER`."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Kinds of communication that are parts, in the order of a stack; all others are `OTHER_COMM`."""
_COMPUTATION_PARTS = (*CLASSES, OTHER, "compute")
_COMM_PARTS = (*KINDS, OTHER_COMM)
_MERGED_KINDS = {"send": "send_recv", "recv": "send_recv"}


def is_communication(part: str) -> bool:
    """Return whether a part is communication."""
    return part in _COMM_PARTS


def in_order(parts: Sequence[str]) -> list[str]:
    """Return the distinct parts in the order of a stack: computation, communication, overlapped communication."""
    return [part for part in (*_COMPUTATION_PARTS, *_COMM_PARTS, OVERLAPPED) if part in set(parts)]


def sum_kernels(kernels: DataFrame) -> DataFrame:
    """Return kernel seconds from table `kernels`: one row per (run, part), with column `sum_s`."""
    parts = _parts(kernels["class"] == COMM, kernels["class"], kernels["kind"])
    sums = kernels.assign(part=parts).groupby(["run", "part"], sort=False)["sum_s"].sum().reset_index()
    return _without_small(sums, ["run"], ["sum_s"])


def mean_over_ranks(breakdown: DataFrame, by: Sequence[str] = ("run", "stage")) -> DataFrame:
    """Return the seconds of each part, summed over phases: mean over the ranks of a run or of a stage.

    Args:
        breakdown: Rows of table `breakdown`; idle time is left out.
        by: Columns of a group of ranks: run, or run and stage.

    Returns:
        One row per group and part, with columns `busy_s` (concurrent kinds count twice), `exposed_s` and
        `overlapped_s`.
    """
    columns = ["busy_s", "exposed_s", "overlapped_s"]
    busy = breakdown[breakdown["category"] != "idle"]
    classes = busy["kind"].where(busy["category"] != "memory", "memory")
    parted = busy.assign(part=_parts(busy["category"] == COMM, classes, busy["kind"]))
    sums = parted.groupby([*by, "part"], sort=False)[columns].sum()
    num_ranks = breakdown.groupby(list(by), sort=False)["rank"].nunique().rename("num_ranks").reset_index()
    means = sums.reset_index().merge(num_ranks, on=list(by), sort=False)
    means[columns] = means[columns].div(means["num_ranks"], axis=0)
    return _without_small(means.drop(columns="num_ranks"), list(by), columns)


def spread_of_stages(totals: DataFrame) -> Series:
    """Return how much longer the busiest stage computes than the least busy one: a ratio minus 1 by layout.

    Only the smallest micro-batch size is used.

    Args:
        totals: One row per (layout, micro_batch_size, stage), with columns `compute_s` and `total_s`.
    """
    first = totals[totals["micro_batch_size"] == totals["micro_batch_size"].min()]
    seconds = first.groupby("layout", sort=False)["compute_s"]
    spread: Series = seconds.max() / seconds.min() - 1
    return spread


def change_of_stages(totals: DataFrame) -> titles.Change | None:
    """Return the effect of a larger micro-batch on the kernel seconds of stages; None if only one size ran.

    Args:
        totals: As in `spread_of_stages`.
    """
    first = totals["micro_batch_size"].min()
    sizes = totals.groupby("micro_batch_size")["layout"].nunique()
    larger = sizes[(sizes.index > first) & (2 * sizes >= sizes.max())]
    if larger.empty:
        return None
    last = int(larger.index.max())
    wide = totals.pivot_table("total_s", ["layout", "stage"], "micro_batch_size")
    changes: dict[tuple[Hashable, ...], effects.Effect] = {
        (str(layout),): effects.over_settings([effects.Effect(float(change), nan, nan, "none", 1) for change in ratios])
        for layout, ratios in (wide[last] / wide[first] - 1).dropna().groupby(level="layout", sort=False)
    }
    return titles.Change(f"micro-batch {last}", f"micro-batch {int(first)}", {"kernel time": changes})


def exposed_and_overlapped(breakdown: DataFrame) -> DataFrame:
    """Return the exposed seconds of each part, and all overlapped seconds of a run as part `OVERLAPPED`.

    Args:
        breakdown: Rows of table `breakdown`.

    Returns:
        Columns run, part and seconds. The parts of a run add up to its kernel seconds.
    """
    means = mean_over_ranks(breakdown, ["run"])
    exposed = means[["run", "part"]].assign(seconds=means["exposed_s"])
    overlapped_s = means.groupby("run", sort=False)["overlapped_s"].sum()
    overlapped = DataFrame({"run": overlapped_s.index, "part": OVERLAPPED, "seconds": overlapped_s.to_numpy()})
    return concat([exposed, overlapped[overlapped["seconds"] > 0]], ignore_index=True)


def communication_shares(breakdown: DataFrame) -> DataFrame:
    """Return the share of communication in kernel seconds by run: `mean`, `low` and `high` over ranks, 0-1."""
    busy = breakdown[breakdown["category"] != "idle"]
    total = busy.groupby(["run", "rank"])["busy_s"].sum()
    comm = busy[busy["category"] == COMM].groupby(["run", "rank"])["busy_s"].sum()
    shares = (comm.reindex(total.index, fill_value=0.0) / total).groupby("run")
    return DataFrame({"mean": shares.mean(), "low": shares.min(), "high": shares.max()})


def answer_communication(breakdown: DataFrame, places: Mapping[str, str]) -> str:
    """Return a title: the range of the share of communication in kernel seconds, by cluster.

    Args:
        breakdown: Rows of table `breakdown`.
        places: Cluster of each run that counts.
    """
    means = communication_shares(breakdown[breakdown["run"].isin(set(places))])["mean"]
    if means.empty:
        return "No run was traced"
    by_place = {place: means[[run for run in means.index if places[run] == place]] for place in places.values()}
    texts: list[str] = []
    for place, shares in by_place.items():
        low, high = (f"{100 * end:.0f}" for end in (shares.min(), shares.max()))
        size = f"{low} %" if low == high else f"{low} to {high} %"
        unit = "" if texts else " of kernel time"
        texts.append(size + unit + (f" on {place}" if len(by_place) > 1 else ""))
    return f"Communication takes {' and '.join(texts)}"


def published_parts(published: DataFrame | None, source: str) -> DataFrame:
    """Return published kernel seconds: one row per (run, part), with column `published_s`.

    Part `other` is the rest of a published total.

    Args:
        published: Table `published`; None gives no rows.
        source: Figure of the published study to take seconds from. Its figures differ in what they sum over.
    """
    if published is None:
        return DataFrame({"run": [], "part": [], "published_s": []}).astype({"run": object, "part": object})
    rows = published[(published["source"] == source) & published["node"].isna()]
    rows = rows.drop_duplicates(["run", "quantity"])
    known = rows[rows["quantity"].isin(PUBLISHED.keys())]
    named = known.assign(part=known["quantity"].map(PUBLISHED), published_s=known["published"].astype(float))
    totals = rows[rows["quantity"] == "kernel_sum_s"].set_index("run")["published"].astype(float)
    rest = (totals - named.groupby("run")["published_s"].sum()).clip(lower=0).dropna()
    others = DataFrame({"run": rest.index, "part": OTHER, "published_s": rest.to_numpy()})
    return concat([named[["run", "part", "published_s"]], others], ignore_index=True)


def _parts(is_comm: Series, classes: Series, kinds: Series) -> Series:
    """Return the part of each row of a table, from its class or its kind of communication."""
    parts: list[str] = []
    for comm, name, kind in zip(is_comm, classes, kinds, strict=True):
        if comm:
            merged = _MERGED_KINDS.get(kind, kind)
            parts.append(merged if merged in _COMM_PARTS else OTHER_COMM)
        else:
            parts.append(name if name in CLASSES else OTHER)
    # The type of a table without rows has to be text too, since other tables are joined to it.
    return Series(parts, index=classes.index, dtype="str")


def _without_small(sums: DataFrame, by: list[str], columns: list[str]) -> DataFrame:
    """Return sums with the small classes of computation added to `OTHER`, in the order of a stack."""
    share = sums[columns[0]] / sums.groupby(by)[columns[0]].transform("sum")
    most = share.groupby(sums["part"]).max()
    small = [part for part in most.index if not is_communication(str(part)) and most[part] < SMALL]
    folded = sums.assign(part=sums["part"].where(~sums["part"].isin(small), OTHER))
    folded = folded.groupby([*by, "part"], sort=False)[columns].sum().reset_index()
    order = {part: number for number, part in enumerate(in_order(list(folded["part"])))}
    keys = folded["part"].map(order)
    return folded.assign(order=keys).sort_values([*by, "order"], kind="stable").drop(columns="order")
