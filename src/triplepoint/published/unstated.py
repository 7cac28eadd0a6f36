"""What a row of a published table leaves unstated, where that decides whether its run fits in memory."""

from dataclasses import replace
from itertools import combinations

from triplepoint.published import software
from triplepoint.published.words import Cells, is_blank
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory

_WORDS = {
    "recompute": "full recomputation",
    "seq_parallel": "sequence parallelism",
    "fsdp": "a distributed optimizer",
    "attention": "FlashAttention",
}
"""What would save memory, by the column that does not say whether it is there."""


def unstated(cells: Cells) -> frozenset[str]:
    """Return the columns of `_WORDS` that a row leaves open; recomputation also where it is not said exactly."""
    blank = {column for column in _WORDS if is_blank(cells.get(column, ""))} - {"recompute"}
    return frozenset(blank if software.states_recompute(cells) else blank | {"recompute"})


def may_fit_with(job: Job, columns: frozenset[str]) -> str:
    """Return the fewest unstated choices with which a job that does not fit in memory may fit; nothing if none do.

    Args:
        job: The job, each unstated choice made as it usually is.
        columns: Columns its row leaves open, as `unstated` returns them.
    """
    changes = {column: changed for column in _WORDS if column in columns and (changed := _changed(job, column)) != job}
    for number in range(1, len(changes) + 1):
        for chosen in combinations(changes, number):
            other = job
            for column in chosen:
                other = _changed(other, column)
            if not peak_memory(other).is_out_of_memory:
                return " and ".join(_WORDS[column] for column in chosen)
    return ""


def _changed(job: Job, column: str) -> Job:
    """Return a job with the choice that takes less memory."""
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
