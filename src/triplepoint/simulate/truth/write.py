"""Tables of the true values of a simulated run, in `raw/truth/`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated, ns
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.truth.energy import Usage, energy_j, usage_of
from triplepoint.simulate.truth.path import critical_path, ranks_on
from triplepoint.simulate.truth.spans import LABELS, Spans, spans_of
from triplepoint.tables.truth import TRUE_CRITICAL_PATH, TRUE_TIMES, TRUE_TRAFFIC


def write_truth(folder: Path, simulated: Simulated, gpus_per_node: int, step_bytes: Float) -> None:
    """Write the true values of a step: time and energy by cause, bytes by link, the critical path.

    Args:
        folder: Folder to write into.
        simulated: The simulated job.
        gpus_per_node: Ranks of a node.
        step_bytes: Traffic of every rank in a step: sent inside the node, sent out of it, received inside, received
            from outside; shape (num_ranks, 4). Unit: byte.
    """
    TRUE_TIMES.write(folder / "times.parquet", TRUE_TIMES.from_rows(_times(simulated, gpus_per_node)))
    traffic = TRUE_TRAFFIC.from_rows(_traffic(simulated, gpus_per_node, step_bytes))
    TRUE_TRAFFIC.write(folder / "traffic.parquet", traffic)
    path = TRUE_CRITICAL_PATH.from_rows(_path(simulated))
    TRUE_CRITICAL_PATH.write(folder / "critical_path.parquet", path)


def _times(simulated: Simulated, gpus_per_node: int) -> Iterator[dict[str, Any]]:
    heated, cache = simulated.heated, dict[tuple[int, int, float], tuple[Spans, Usage | None]]()
    for rank in range(simulated.job.num_gpus):
        key = (*simulated.place(rank), simulated.pace(rank))
        if key not in cache:
            spans = spans_of(simulated, *key)
            usage = None
            if heated is not None:
                trace = heated.trace
                num_steps = max(1, round(len(trace.rate) * trace.period_s / simulated.length_s))
                usage = usage_of(simulated, heated, key[:2], spans, len(trace.rate) // num_steps)
            cache[key] = spans, usage
        spans, usage = cache[key]
        energies_j = [None] * len(LABELS)
        if heated is not None and usage is not None:
            energies_j = energy_j(heated, *divmod(rank, gpus_per_node), usage).tolist()
        for label, time_ns, label_j in zip(LABELS, spans.part.sum(axis=0).tolist(), energies_j, strict=True):
            if time_ns:
                yield {"rank": rank, **label._asdict(), "time_ns": time_ns, "gpu_energy_j": label_j}


def _traffic(simulated: Simulated, gpus_per_node: int, step_bytes: Float) -> Iterator[dict[str, Any]]:
    inside = simulated.job.fabric.levels[0].counters
    for node, node_bytes in enumerate(np.split(step_bytes, range(gpus_per_node, len(step_bytes), gpus_per_node))):
        for local_rank, (tx, tx_out, rx, rx_out) in enumerate(node_bytes.tolist()):
            links = {inside: (tx, rx), "pcie": (tx_out, rx_out)}
            if inside == "pcie":
                links = {"pcie": (tx + tx_out, rx + rx_out)}
            for link, (sent, received) in links.items():
                rank = node * gpus_per_node + local_rank
                yield {"node": node, "rank": rank, "link": link, "tx_bytes": sent, "rx_bytes": received}
        sent, received = node_bytes[:, (1, 3)].sum(axis=0).tolist()
        yield {"node": node, "rank": None, "link": "infiniband", "tx_bytes": sent, "rx_bytes": received}


def _path(simulated: Simulated) -> Iterator[dict[str, Any]]:
    ranks: dict[tuple[int, int | None], str] = {}
    for stretch in critical_path(simulated.timeline):
        key = stretch.stage, stretch.which
        if key not in ranks:
            ranks[key] = ",".join(map(str, ranks_on(simulated, *key)))
        start, end = ns(np.array([stretch.start_s, stretch.end_s])).tolist()
        if end > start:
            times = {"t_start_ns": start, "duration_ns": end - start}
            yield {"stage": stretch.stage, "ranks": ranks[key], **stretch.label._asdict(), **times}
