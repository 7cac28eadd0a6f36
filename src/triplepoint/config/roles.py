"""Ranks that stand for the others: one of every pipeline stage and row of the airflow."""

from collections.abc import Sequence

from triplepoint.config.point import Layout


def ranks_by_role(layout: Layout, gpus_per_node: int, rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the first rank of every pipeline stage in every row of its nodes, in order.

    Ranks of a stage do the same work, but for heat: those behind others get their warm air. In a stage the rank is
    taken that comes first in the row, so that tensor and data parallel ranks other than 0 are among them.

    Args:
        layout: Parallelism; ranks are numbered tp fastest, then cp, dp, pp.
        gpus_per_node: Ranks placed on each node.
        rows: Devices of a node by row of its airflow, those at the inlet first.
    """
    size = layout.tp * layout.cp * layout.dp
    found = set()
    for stage in range(layout.pp):
        ranks = range(stage * size, (stage + 1) * size)
        for row in rows:
            inside = [rank for rank in ranks if rank % gpus_per_node in row]
            found |= set(inside[:1])
    return tuple(sorted(found))
