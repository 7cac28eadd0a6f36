"""Unstated settings of a published row that decide whether its run fits in memory."""

from dataclasses import replace
from itertools import combinations

from triplepoint.published import software
from triplepoint.published.words import Cells, is_blank
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory

_SAVINGS = {
    "recompute": "full recomputation",
    "seq_parallel": "sequence parallelism",
    "fsdp": "a distributed optimizer",
    "attention": "FlashAttention",
}
"""Setting that saves memory, by the column that may leave it unstated."""


def unstated(cells: Cells) -> frozenset[str]:
    """Return the columns of `_SAVINGS` that a row leaves blank, and `recompute` where it is not stated exactly."""
    blank = {column for column in _SAVINGS if is_blank(cells.get(column, ""))} - {"recompute"}
    return frozenset(blank if software.states_recompute(cells) else blank | {"recompute"})


def may_fit_with(job: Job, columns: frozenset[str]) -> str:
    """Return the fewest unstated settings with which a job that runs out of memory may fit; empty if none help.

    Args:
        job: The job, with the usual choice for each unstated setting.
        columns: Columns that its row leaves unstated, as returned by `unstated`.
    """
    helpful = [column for column in _SAVINGS if column in columns and _with_saving(job, column) != job]
    for number in range(1, len(helpful) + 1):
        for selected in combinations(helpful, number):
            changed = job
            for column in selected:
                changed = _with_saving(changed, column)
            if not peak_memory(changed).is_out_of_memory:
                return " and ".join(_SAVINGS[column] for column in selected)
    return ""


def _with_saving(job: Job, column: str) -> Job:
    """Return the job with the setting of a column that saves memory."""
    layout = job.layout
    if column == "recompute":
        return replace(job, recompute="full", recompute_layers=None)
    if column == "seq_parallel":
        return replace(job, layout=layout.model_copy(update={"sequence_parallel": layout.tp > 1}))
    if column == "attention":
        kernels = None if job.software.attention == "unfused" else job.software.attention
        return replace(job, software=job.software.model_copy(update={"attention": kernels}))
    sharding = "optim" if layout.data_parallel_sharding == "no_shard" else layout.data_parallel_sharding
    return replace(job, layout=layout.model_copy(update={"data_parallel_sharding": sharding}))
