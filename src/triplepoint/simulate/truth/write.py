"""Tables of the truth of a simulated run: `raw/truth/`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated, ns
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.truth.energy import Spent, energy_j, spent
from triplepoint.simulate.truth.path import critical_path, ranks_on
from triplepoint.simulate.truth.spans import LABELS, Spans, spans_of
from triplepoint.tables.truth import TRUE_CRITICAL_PATH, TRUE_TIMES, TRUE_TRAFFIC


def write_truth(folder: Path, simulated: Simulated, gpus_per_node: int, step_bytes: Float) -> None:
    """Write what happened in a step: time, energy and waiting by cause; bytes by link; the critical path.

    Args:
        folder: Folder to write into.
        simulated: What was simulated.
        gpus_per_node: Ranks of a node.
        step_bytes: Of every rank in a step: sent inside the node and out of it, received inside and from outside;
            shape (num_ranks, 4). Unit: byte.
    """
    TRUE_TIMES.write(folder / "times.parquet", TRUE_TIMES.from_rows(_times(simulated, gpus_per_node)))
    traffic = TRUE_TRAFFIC.from_rows(_traffic(simulated, gpus_per_node, step_bytes))
    TRUE_TRAFFIC.write(folder / "traffic.parquet", traffic)
    path = TRUE_CRITICAL_PATH.from_rows(_path(simulated))
    TRUE_CRITICAL_PATH.write(folder / "critical_path.parquet", path)


def _times(simulated: Simulated, gpus_per_node: int) -> Iterator[dict[str, Any]]:
    heated, known = simulated.heated, dict[tuple[int, int, float], tuple[Spans, Spent | None]]()
    for rank in range(simulated.job.num_gpus):
        key = (*simulated.place(rank), simulated.pace(rank))
        if key not in known:
            spans = spans_of(simulated, *key)
            did = None
            if heated is not None:
                trace = heated.trace
                num_steps = max(1, round(len(trace.rate) * trace.period_s / simulated.length_s))
                did = spent(simulated, heated, key[:2], spans, len(trace.rate) // num_steps)
            known[key] = spans, did
        spans, did = known[key]
        energy = [None] * len(LABELS)
        if heated is not None and did is not None:
            energy = energy_j(heated, *divmod(rank, gpus_per_node), did).tolist()
        for label, time, joule in zip(LABELS, spans.part.sum(axis=0).tolist(), energy, strict=True):
            if time:
                yield {"rank": rank, **label._asdict(), "time_ns": time, "gpu_energy_j": joule}


def _traffic(simulated: Simulated, gpus_per_node: int, step_bytes: Float) -> Iterator[dict[str, Any]]:
    inside = simulated.job.fabric.levels[0].counters
    for node, of_node in enumerate(np.split(step_bytes, range(gpus_per_node, len(step_bytes), gpus_per_node))):
        for number, (tx, tx_out, rx, rx_out) in enumerate(of_node.tolist()):
            links = {inside: (tx, rx), "pcie": (tx_out, rx_out)}
            if inside == "pcie":
                links = {"pcie": (tx + tx_out, rx + rx_out)}
            for link, (sent, received) in links.items():
                rank = node * gpus_per_node + number
                yield {"node": node, "rank": rank, "link": link, "tx_bytes": sent, "rx_bytes": received}
        sent, received = of_node[:, (1, 3)].sum(axis=0).tolist()
        yield {"node": node, "rank": None, "link": "infiniband", "tx_bytes": sent, "rx_bytes": received}


def _path(simulated: Simulated) -> Iterator[dict[str, Any]]:
    known: dict[tuple[int, int | None], str] = {}
    for one in critical_path(simulated.timeline):
        key = one.stage, one.which
        if key not in known:
            known[key] = ",".join(map(str, ranks_on(simulated, *key)))
        start, end = ns(np.array([one.start_s, one.end_s])).tolist()
        if end > start:
            times = {"t_start_ns": start, "duration_ns": end - start}
            yield {"stage": one.stage, "ranks": known[key], **one.label._asdict(), **times}
